"""Exports of studies and runs in the formats of other tools.

Pages of this project belong to `page`.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from ..core.registry import Plugin
from ..study.run import Run


def without_places(run: Run) -> Run:
    """Return a copy of the run in which paths of files have lost their folders, which may be private."""

    def named(plugin: Plugin) -> Plugin:
        return plugin.model_copy(update={k: Path(v.name) for k, v in plugin if isinstance(v, PurePath)})

    data = run.data.model_copy(update={"dataset": named(run.data.dataset)})
    # A new run, since a copy would keep the specification that was made before.
    fields = {name: getattr(run, name) for name in Run.model_fields}
    return Run(**{**fields, "data": data, "model": named(run.model)})
