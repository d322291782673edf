"""Folders of exports, and runs without the places of their files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from ..io.disk import atomic_folder
from ..io.identity import require_own
from ..io.text import write_json
from ..study.run import Run

MARKER = "fedshift-export.json"
"""File that lists the files of an export: the next export may replace these."""


@contextmanager
def own_folder(out: Path, option: str) -> Iterator[Path]:
    """Yield an empty folder to fill, which then replaces an earlier export in `out`; nothing changes after an error.

    Raises UserError where `out` holds anything that an earlier export did not write there, and names the `option` that
    chooses another folder.
    """
    require_own(out, MARKER, option)
    with atomic_folder(out.resolve()) as new:
        yield new
        written = sorted(path.relative_to(new).as_posix() for path in new.rglob("*"))
        write_json(new / MARKER, {"files": written})


def without_places(run: Run) -> Run:
    """Return the run with the names of its files but not their folders, which may be private."""
    data = run.data.dataset
    names = {key: Path(value.name) for key, value in data if isinstance(value, PurePath)}
    return run.model_copy(update={"data": run.data.model_copy(update={"dataset": data.model_copy(update=names)})})
