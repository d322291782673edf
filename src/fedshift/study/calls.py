"""Calls of Snakemake and fedshift that make, resume or repeat a study, and the settings of such a call.

The settings are the keys of config/config.yaml and of `snakemake --config`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.paths import STUDIES, Paths
from ..io.shipped import CONFIG, configuration, is_clone
from .plan import Plan, named

DEFAULTS: dict[str, Any] = {
    "study": "demo",
    "scale": "mini",
    "mirror": None,
    "studies": str(STUDIES),
    "processes": 1,
    "fork_server": True,
    "plugins": None,
    "set": [],
}
"""Every key that there is, and its value where none is given. config/README.md describes them."""


def complete(config: Mapping[str, Any], foreign: bool = False) -> dict[str, Any]:
    """Return settings with the default of each key that is missing or empty.

    Raises UserError for an unknown key and for a value that a key cannot have. `foreign` says that the settings are
    those of another workflow, which imports this one as a module: then keys that are unknown here are its own.
    """
    unknown = sorted(config.keys() - DEFAULTS.keys())
    if unknown and not foreign:
        raise UserError("--config", f"unknown key {unknown[0]!r}", did_you_mean(unknown[0], DEFAULTS))
    settings = DEFAULTS | {key: value for key, value in config.items() if key in DEFAULTS and value is not None}
    # A value is a number from a YAML file, and may be text from a profile.
    if not (str(settings["processes"]).isdecimal() and int(settings["processes"])):
        raise UserError("--config processes", f"{settings['processes']!r} is not a whole number from 1")
    if isinstance(settings["set"], str):
        settings["set"] = [settings["set"]]
    if not isinstance(settings["set"], list) or not all(isinstance(text, str) for text in settings["set"]):
        raise UserError("--config set", f"{settings['set']!r} is not a list of texts such as training.lr=0.01")
    if str(settings["fork_server"]).lower() not in ("true", "false"):
        raise UserError("--config fork_server", f"{settings['fork_server']!r} is neither true nor false")
    return settings


def scale_of() -> Scale:
    """Return the scale of a command that names none: config.yaml's, or the default; or raise UserError for another."""
    scale: Scale = configuration().get("scale") or DEFAULTS["scale"]
    if scale not in get_args(Scale):
        raise UserError(f"{CONFIG}.scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale)))
    return scale


def require_own_paths(workflow: Any) -> None:
    """Raise UserError where another workflow imports this one with other paths: its jobs would not know of them."""
    paths = workflow.modifier.path_modifier
    if any(paths.replace_prefix(file, None) != file for file in ("resources/x", "results/x", "reports/x")):
        problem = "fedshift is imported with prefix or replace_prefix, and its jobs write to results/ all the same"
        raise UserError("module", problem, "leave that line out")


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


def dry_run() -> str:
    """Return the call that lists the jobs of the project in the current folder."""
    return "snakemake -n" if is_clone(Path()) else "fedshift run STUDY -n"


def unlock() -> str:
    """Return the call that unlocks the project in the current folder after Snakemake was killed."""
    return "snakemake --unlock" if is_clone(Path()) else "fedshift run STUDY --unlock"


def snakemake(plan: Plan, paths: Paths, targets: Sequence[Path] = ()) -> str:
    """Return the command that repeats or resumes a study, or makes some of its files; to be called in `paths.root`."""
    folder = paths.root / STUDIES
    file = named(plan.name, folder)
    study = str(plan.path)
    if plan.path.resolve().parent == folder.resolve() or (file and file.resolve() == plan.path.resolve()):
        study = plan.name  # a call from the project's folder finds it by its name
    settings = {"scale": str(plan.scale)} if plan.scaled else {}
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
