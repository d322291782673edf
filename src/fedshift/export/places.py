"""Where exports lie, and what they tell of other places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from ..disk import atomic_folder
from ..errors import UserError
from ..files import read_json, write_json
from ..run import Run

MARKER = "fedshift-export.json"
"""Lists the files of an export: what may be replaced by the next one."""


@contextmanager
def own_folder(out: Path, option: str) -> Iterator[Path]:
    """An empty folder to fill, which then replaces an earlier export in `out`; nothing changes if the block fails.

    Raises UserError where `out` holds anything that an earlier export did not write there, and names the `option` by
    which another folder is chosen.
    """
    require_own(out, option)
    with atomic_folder(out.resolve()) as new:
        yield new
        written = sorted(path.relative_to(new).as_posix() for path in new.rglob("*"))
        write_json(new / MARKER, {"files": written})


def require_own(out: Path, option: str) -> None:
    """Raise UserError for a folder, or a file, that holds anything but an earlier export."""
    if not out.exists():
        return
    found = {path.relative_to(out).as_posix() for path in out.rglob("*")} if out.is_dir() else {out.name}
    known = read_json(out / MARKER) if MARKER in found and out.is_dir() else None
    listed = known.get("files") if isinstance(known, dict) else None
    foreign = found - {MARKER, *map(str, listed if isinstance(listed, list) else ())}
    if foreign:
        what = f"holds {min(foreign)}, which is not of an earlier export"
        raise UserError(out, what, f"choose another folder with {option}, or remove it yourself")


def without_places(run: Run) -> Run:
    """The run with names alone of files, which may lie in someone's home."""
    data = run.data.dataset
    names = {key: Path(value.name) for key, value in data if isinstance(value, PurePath)}
    return run.model_copy(update={"data": run.data.model_copy(update={"dataset": data.model_copy(update=names)})})
