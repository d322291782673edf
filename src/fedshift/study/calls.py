"""The calls of Snakemake and of fedshift that make, resume or repeat a study, as messages and pages give them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import UserError
from ..io.paths import STUDIES, Paths
from ..io.shipped import is_clone
from .plan import Plan, named


def require_plain(interpreter: str) -> None:
    """Raise UserError for a Python whose path a shell would split: Snakemake does not quote it in jobs of a cluster."""
    if shlex.quote(interpreter) != interpreter:
        problem = "has a path with a space or a special character, which Snakemake does not quote in jobs for a cluster"
        raise UserError(interpreter, problem, "clone the project into a folder without them, and run make setup there")


def written(
    study: str,
    settings: Mapping[str, str],
    files: Sequence[str] = (),
    folder: Path = Path(),
    changes: Sequence[str] = (),
) -> str:
    """Return the call that makes all files of a study, or those that are named. It is for the project in `folder`.

    `changes` are settings that replace those of the study, such as `training.lr=0.01`.

    It is one of Snakemake in a clone of the repository, and one of `fedshift run` in users' projects.
    """
    if is_clone(folder):
        values = [f"{key}={value}" for key, value in {"study": study, **settings}.items()]
        words = ["snakemake", "--cores", "all", "--config", *values, *in_config(changes)]
    else:
        options = [word for key, value in settings.items() for word in (f"--{key}", value)]
        words = ["fedshift", "run", study, *options, *(word for text in changes for word in ("--set", text))]
    if files:
        # Snakemake would take the words after --config for further settings.
        words += ["--", *files]
    return shlex.join(words)


def in_config(changes: Sequence[str]) -> list[str]:
    """Return the value of Snakemake's option `--config` for settings that replace those of a study."""
    return [f"set={json.dumps(list(changes), ensure_ascii=False)}"] if changes else []


def dry_run(folder: Path = Path()) -> str:
    """Return the call that lists the jobs of the project in `folder`."""
    return "snakemake -n" if is_clone(folder) else "fedshift run STUDY -n"


def unlock(folder: Path = Path()) -> str:
    """Return the call that unlocks the project in `folder` after Snakemake was killed."""
    return "snakemake --unlock" if is_clone(folder) else "fedshift run STUDY --unlock"


def snakemake(plan: Plan, paths: Paths, targets: Sequence[Path] = ()) -> str:
    """Return the command that repeats or resumes a study, or makes some of its files; to be called in `paths.root`."""
    folder = paths.root / STUDIES
    file = named(plan.name, folder)
    study = str(plan.path)
    if plan.path.resolve().parent == folder.resolve() or (file and file.resolve() == plan.path.resolve()):
        study = plan.name  # a call from the project's folder finds it by its name
    settings = {}
    if plan.scaled:
        settings["scale"] = str(plan.scale)
    if archives(plan):
        # Archives without an address are fetched by hand: the reader writes the folder in the place of DIR.
        settings["mirror"] = "DIR"
    files = [str(path.relative_to(paths.root)) for path in targets]
    return written(study, settings, files, paths.root, plan.settings)


def one_run(plan: Plan, paths: Paths, run: str, placeholder: str = "") -> str:
    """Return the command that trains and predicts one run of a study alone, with all that it needs.

    With a placeholder in the place of its id, the command is the one of all runs with the same inferences.
    """
    return snakemake(plan, paths, [paths.predictions(placeholder or run, plan.prediction_jobs[run])])


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
    options = [option for scale in scales for option in ("--scale", scale)]
    if studies != STUDIES:
        options += ["--studies", str(studies)]
    for changes in {plan.settings for plan in plans.values()}:
        options += [word for text in changes for word in ("--set", text)]
    return shlex.join(["fedshift", *words, *options])
