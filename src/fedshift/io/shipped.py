"""The files that come with fedshift beside its code: workflow, profiles, environments, studies and published tables.

In a clone they are those of the repository. An installed package holds them in its folder `shipped`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
"""The folder of the package."""
INSIDE = PACKAGE / "shipped"
"""The folder in which an installed package holds them (see setup.py)."""
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
    if has_workflow(folder):
        return folder / SNAKEFILE.name
    return SNAKEFILE


def python_path(workflow: Any) -> Path | None:
    """Return the folder that the jobs of a workflow need on PYTHONPATH, or None where they find this package anyway.

    Of a clone it is src. An installed package lies among other libraries, which must not reach the Python of a conda
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
