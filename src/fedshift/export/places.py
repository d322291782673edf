"""Where exports lie, and what they tell of other places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from ..io.disk import atomic_folder
from ..io.owned import require_own
from ..io.text import write_json
from ..study.run import Run

MARKER = "fedshift-export.json"
"""Lists the files of an export: what may be replaced by the next one."""


@contextmanager
def own_folder(out: Path, option: str) -> Iterator[Path]:
    """An empty folder to fill, which then replaces an earlier export in `out`; nothing changes if the block fails.

    Raises UserError where `out` holds anything that an earlier export did not write there, and names the `option` by
    which another folder is chosen.
    """
    require_own(out, MARKER, option)
    with atomic_folder(out.resolve()) as new:
        yield new
        written = sorted(path.relative_to(new).as_posix() for path in new.rglob("*"))
        write_json(new / MARKER, {"files": written})


def without_places(run: Run) -> Run:
    """The run with names alone of files, which may lie in someone's home."""
    data = run.data.dataset
    names = {key: Path(value.name) for key, value in data if isinstance(value, PurePath)}
    return run.model_copy(update={"data": run.data.model_copy(update={"dataset": data.model_copy(update=names)})})
