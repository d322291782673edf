"""The folder of a project, and what comes with fedshift beside its code: workflow, studies, optional packages.

In a clone the files are those of the repository. An installed package holds them in its folder `shipped`. Optional
packages are brought into a clone by `make exports` and `make flower`, and into other places by `pip install`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.errors import UserError
from ..core.plugin import as_list
from .text import read_yaml

PACKAGE = Path(__file__).parents[1]
"""The folder of the Python package fedshift."""
INSIDE = PACKAGE / "shipped"
"""The folder in which an installed package holds workflow, studies and profiles (see setup.py)."""
SHIPPED = INSIDE if INSIDE.is_dir() else PACKAGE.parents[1]
"""The folder that holds the Snakefile, workflow, config, envs and profiles."""
SNAKEFILE = SHIPPED / "Snakefile"
"""The workflow. The Snakefile of a project includes it."""


def has_workflow(folder: Path) -> bool:
    """Return whether the Snakefile of a folder is the workflow of fedshift, or includes it."""
    file = folder / SNAKEFILE.name
    try:
        return is_clone(folder) or __name__ in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def is_clone(folder: Path) -> bool:
    """Return whether a folder is the clone of the repository that this package comes from."""
    try:
        return (folder / SNAKEFILE.name).samefile(SNAKEFILE)
    except OSError:
        return False


def workflow_of(folder: Path) -> Path:
    """Return the Snakefile for a folder: its own if that is or includes the workflow of fedshift, or else SNAKEFILE."""
    return folder / SNAKEFILE.name if has_workflow(folder) else SNAKEFILE


def python_path(workflow: Any) -> Path | None:
    """Return the folder that the jobs of a workflow need on PYTHONPATH, or None if they find this package anyway.

    In a clone it is src. An installed package lies among other libraries, which must not reach the Python of a conda
    environment: for that, a folder with a link to this package alone is made in the working folder.
    """
    from snakemake.settings.types import DeploymentMethod

    if SHIPPED != INSIDE:
        return PACKAGE.parent
    if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
        return None
    link = Path.cwd() / ".snakemake" / "fedshift" / PACKAGE.name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(PACKAGE)
    return link.parent


@contextmanager
def extra(name: str, what_for: str = "") -> Iterator[None]:
    """Turn a failed import inside the block into UserError: the packages of `fedshift[name]` are not installed.

    `what_for` is what the error calls the work that needs the packages; by default, an export to `name`.
    """
    try:
        yield
    except ImportError as error:
        problem = f"needs packages that are not installed ({error.name or error})"
        # most of those of a clone lie in an environment of their own
        target, folder = {"flower": ("flower", ".venv-flower"), "excel": ("setup", ".venv")}.get(
            name, ("exports", ".venv-exports")
        )
        remedy = f"call make {target} in the clone, and {folder}/bin/python -m fedshift in place of fedshift"
        if SHIPPED == INSIDE:
            remedy = f"pip install 'fedshift[{name}]'"
        raise UserError(what_for or f"export to {name}", problem, remedy) from error


CONFIG = Path("config", "config.yaml")
"""Path of the configuration of a project, from its folder."""


def plugin_folders() -> list[Path]:
    """Return the folders that the key `plugins` in config/config.yaml names; [] without that file or key.

    Raises UserError for a file that cannot be read, and for a value other than a path or a list of paths.
    """
    return folders(configuration().get("plugins"), str(CONFIG))


def configuration() -> dict[str, Any]:
    """Return the settings in config/config.yaml of the current folder; {} without that file.

    Raises UserError for a file that cannot be read.
    """
    settings = read_yaml(CONFIG) if CONFIG.is_file() else {}
    return settings if isinstance(settings, dict) else {}


def folders(value: Any, where: str) -> list[Path]:
    """Return the folders in the `value` of the key `plugins`: None, one path, or a list of paths.

    Raises UserError, which names the file `where` the key stands, for other values.
    """
    value = [] if value is None else as_list(value)
    if not all(isinstance(folder, str) and folder for folder in value):
        raise UserError(f"{where}.plugins", f"is {value!r}", "give a folder, or a list of folders")
    return [Path(folder) for folder in value]


@contextlib.contextmanager
def inside(project: Path) -> Iterator[None]:
    """Change into the folder of a project for the block, and register its plug-ins, which stay registered afterwards.

    Raises UserError if the folder or one of its folders of plug-ins does not exist, and for a damaged
    config/config.yaml.
    """
    if not project.is_dir():
        raise UserError(project, "no such folder", "name the folder of a project")
    with contextlib.chdir(project):
        find_plugins()
        yield


def find_plugins() -> None:
    """Register the plug-ins of the project in the current folder, to be found by name.

    Raises UserError as `inside` does.
    """
    for folder in plugin_folders():
        registry.add_folder(folder)


def project_of(folder: Path) -> Path:
    """Return the absolute path of the project in which `folder`, the folder results/runs/ID of a run, lies.

    If the run lies elsewhere or does not exist, return `.`, the current folder.
    """
    parents = folder.resolve().parents
    in_project = folder.is_dir() and [parent.name for parent in parents[:2]] == ["runs", "results"]
    return parents[2] if in_project else Path()
