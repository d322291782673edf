"""The folder of a project: its configuration, and the folders of plug-ins that this names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import UserError
from .text import read_yaml

CONFIG = Path("config", "config.yaml")
"""The configuration of a project, in its folder."""


def plugin_folders(project: Path = Path()) -> list[Path]:
    """Return the folders that the key `plugins` of a project's configuration names; an empty list without such a file.

    Raises UserError for a file that cannot be read, and for a value other than a path or a list of paths.
    """
    return folders(configuration(project).get("plugins"), project, str(project / CONFIG))


def configuration(project: Path = Path()) -> dict[str, Any]:
    """Return the settings in a project's configuration; none without such a file.

    Raises UserError for a file that cannot be read.
    """
    file = project / CONFIG
    settings = read_yaml(file) if file.is_file() else {}
    return settings if isinstance(settings, dict) else {}


def folders(value: Any, project: Path, where: str) -> list[Path]:
    """Return the folders that a value of the key `plugins` names: nothing, a path, or a list of paths.

    Relative paths count from the project's folder. Raises UserError for any other value.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        value = [value]
    if not all(isinstance(folder, str) and folder for folder in value):
        raise UserError(f"{where}.plugins", f"is {value!r}", "give a folder, or a list of folders")
    return [project / folder for folder in value]


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
