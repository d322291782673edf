"""The calls of Snakemake and of fedshift that make, resume or repeat a study, as messages and pages give them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import UserError
from ..io.paths import STUDIES, Paths
from .plan import Plan


def require_plain(interpreter: str) -> None:
    """Raise UserError for a Python whose path a shell would split: Snakemake does not quote it in jobs of a cluster."""
    if shlex.quote(interpreter) != interpreter:
        what = "has a path with a space or a special character, which Snakemake does not quote in jobs for a cluster"
        raise UserError(interpreter, what, "clone the project into a folder without them, and run make setup there")


def written(settings: Sequence[str], files: Sequence[str] = ()) -> str:
    """Return the call of Snakemake with some settings, which makes all files or those that are named."""
    targets = ["--", *files] if files else []
    return shlex.join(["snakemake", "--cores", "all", "--config", *settings, *targets])


def snakemake(plan: Plan, paths: Paths, targets: Sequence[Path] = ()) -> str:
    """Return the command that repeats or resumes a study, or makes some of its files. Call it in the project folder."""
    at_home = plan.path.resolve().parent == (paths.root / STUDIES).resolve()
    settings = [f"study={plan.name if at_home else plan.path}"]
    if plan.scaled:
        settings.append(f"scale={plan.scale}")
    if archives(plan):
        settings.append("mirror=DIR")
    return written(settings, [str(path.relative_to(paths.root)) for path in targets])


def one_run(plan: Plan, paths: Paths, run: str, placeholder: str = "") -> str:
    """Return the command that trains and predicts one run of a study alone, with all that it needs.

    With a placeholder in the place of its id, the command is the one of all runs with the same inferences.
    """
    return snakemake(plan, paths, [paths.predictions(placeholder or run, job) for job in plan.prediction_jobs[run]])


def single_runs(plan: Plan, paths: Paths) -> dict[str, list[str]]:
    """Return the command of `one_run` with RUN in the place of an id, and the runs that have this command."""
    commands: dict[str, list[str]] = {}
    for run in plan.runs:
        commands.setdefault(one_run(plan, paths, run, "RUN"), []).append(run)
    return commands


def archives(plan: Plan) -> list[str]:
    """Return the names of the archives that cannot be downloaded and must be in the mirror directory."""
    sets = [data.dataset for data in plan.data.values() if not data.synthetic]
    return [source.filename for dataset in sets for source in dataset.sources() if source.url is None]


def fedshift(words: Sequence[str], plans: Mapping[str, Plan], studies: Path) -> str:
    """Return a call of fedshift about studies of the folder `studies`, with the scale where that makes a difference."""
    scales = {plan.scale for plan in plans.values() if plan.scaled}
    scale = [option for one in scales for option in ("--scale", one)]
    folder = [] if studies == STUDIES else ["--studies", str(studies)]
    return shlex.join(["fedshift", *words, *scale, *folder])
