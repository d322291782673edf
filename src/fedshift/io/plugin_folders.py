"""The folders of plug-ins that a project names in its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
