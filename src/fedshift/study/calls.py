"""Shell commands of Snakemake and fedshift that run, resume or repeat a study, and the settings of such a command.

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
"""Every allowed setting, with its default. config/README.md describes the settings."""


def complete(config: Mapping[str, Any], foreign: bool = False) -> dict[str, Any]:
    """Return all settings of a call: the given ones, and the default of each key that is missing or null.

    Raises UserError for an unknown key and for a value that a key cannot have. If `foreign` is True, another workflow
    imports this one as a module and `config` is that workflow's: unknown keys are then ignored.
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
    """Return the scale of a command without `--scale`: the one in config/config.yaml, or else the default, `mini`.

    Raises UserError for an unknown scale in config/config.yaml.
    """
    scale: Scale = configuration().get("scale") or DEFAULTS["scale"]
    if scale not in get_args(Scale):
        raise UserError(f"{CONFIG}.scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale)))
    return scale


def require_own_paths(workflow: Any) -> None:
    """Raise UserError if another Snakemake workflow imports this one as a module and changes its output paths.

    The jobs of this workflow would still write to results/ and reports/.
    """
    paths = workflow.modifier.path_modifier
    if any(paths.replace_prefix(file, None) != file for file in ("resources/x", "results/x", "reports/x")):
        problem = "fedshift is imported with prefix or replace_prefix, and its jobs write to results/ all the same"
        raise UserError("module", problem, "leave that line out")


def require_plain(interpreter: str) -> None:
    """Raise UserError if the path of the Python `interpreter` has a space or another character that a shell interprets.

    Snakemake does not quote the path in jobs for a cluster.
    """
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
    """Return the shell command that makes all files of a study, or only `files`, in the project `folder`.

    `settings` are keys of config/config.yaml with values, and `changes` replace settings of the study, such as
    `training.lr=0.01`. The command is `snakemake` in a clone of the repository, and `fedshift run` elsewhere.
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
    """Return the words of Snakemake's option `--config` for changes such as `training.lr=0.01`; [] without changes."""
    return [f"set={json.dumps(list(changes), ensure_ascii=False)}"] if changes else []


def dry_run() -> str:
    """Return the shell command that lists the jobs that would run in the project of the current folder."""
    return "snakemake -n" if is_clone(Path()) else "fedshift run STUDY -n"


def unlock() -> str:
    """Return the shell command that unlocks the project of the current folder after Snakemake was killed."""
    return "snakemake --unlock" if is_clone(Path()) else "fedshift run STUDY --unlock"


def snakemake(plan: Plan, paths: Paths, targets: Sequence[Path] = ()) -> str:
    """Return the shell command that repeats or resumes a study, or makes only the files `targets`.

    The command is for the folder `paths.root`. It has the word DIR where the reader must write the folder of archives
    that cannot be downloaded.
    """
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
    """Return the shell command that trains and predicts one run of a study, and makes the data that the run needs.

    `run` is its id. A `placeholder`, such as RUN, stands in the command in place of the id, so that the command is the
    same for all runs with the same inferences.
    """
    return snakemake(plan, paths, [paths.predictions(placeholder or run, plan.prediction_jobs[run])])


def single_runs(plan: Plan, paths: Paths) -> dict[str, list[str]]:
    """Return each command that trains and predicts one run, with RUN in place of its id, and the ids RUN stands for."""
    commands: dict[str, list[str]] = {}
    for run in plan.runs:
        commands.setdefault(one_run(plan, paths, run, "RUN"), []).append(run)
    return commands


def archives(plan: Plan) -> list[str]:
    """Return the file names of a study's archives that cannot be downloaded and must lie in the mirror folder."""
    sets = [data.dataset for data in plan.data.values() if not data.synthetic]
    return [source.filename for dataset in sets for source in dataset.sources() if source.url is None]


def fedshift(words: Sequence[str], plans: Mapping[str, Plan], studies: Path) -> str:
    """Return the shell command `fedshift WORDS` with the options that repeat the plans' scale, folder and settings.

    `studies` is the folder of the studies' files. The scale is left out for studies that are the same at every scale.
    """
    scales = {plan.scale for plan in plans.values() if plan.scaled}
    options = [option for scale in scales for option in ("--scale", scale)]
    if studies != STUDIES:
        options += ["--studies", str(studies)]
    for changes in {plan.settings for plan in plans.values()}:
        options += [word for text in changes for word in ("--set", text)]
    return shlex.join(["fedshift", *words, *options])
