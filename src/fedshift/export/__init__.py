"""Exports of studies and runs in the formats of other tools.

Pages of this project belong to `report`.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from ..study.run import Run


def without_places(run: Run) -> Run:
    """Return the run with the names of its files but not their folders, which may be private."""
    data = run.data.dataset
    names = {key: Path(value.name) for key, value in data if isinstance(value, PurePath)}
    return run.model_copy(update={"data": run.data.model_copy(update={"dataset": data.model_copy(update=names)})})
