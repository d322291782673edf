"""What is handed on tells no one where someone's files lie."""

from __future__ import annotations

from pathlib import Path, PurePath

from ..run import Run


def without_places(run: Run) -> Run:
    """The run with names alone of files, which may lie in someone's home."""
    data = run.data.dataset
    names = {key: Path(value.name) for key, value in data if isinstance(value, PurePath)}
    return run.model_copy(update={"data": run.data.model_copy(update={"dataset": data.model_copy(update=names)})})
