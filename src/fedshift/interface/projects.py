"""The folder of a project, in which paths of own images count, the user's plug-ins are found and results lie."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ..core import registry
from ..core.errors import UserError
from ..io.plugin_folders import plugin_folders


@contextlib.contextmanager
def inside(project: Path) -> Iterator[None]:
    """Make the folder of a project the current one inside the block, and let its plug-ins be found, also after it.

    Raises UserError where the folder or one of its folders of plug-ins does not exist, and for a damaged
    config/config.yaml.
    """
    if not project.is_dir():
        raise UserError(project, "no such folder", "name the folder of a project")
    with contextlib.chdir(project):
        find_plugins()
        yield


def find_plugins() -> None:
    """Let the plug-ins of the project in the current folder be found by name. Raises UserError as `inside` does."""
    for folder in plugin_folders():
        registry.add_folder(folder)


def project_of(folder: Path) -> Path:
    """Return the absolute path of the project that has a run's folder, `results/runs/ID`, in it.

    For a run that lies elsewhere or is not there, it is `.`, the current folder.
    """
    parents = folder.resolve().parents
    in_project = folder.is_dir() and [parent.name for parent in parents[:2]] == ["runs", "results"]
    return parents[2] if in_project else Path()
