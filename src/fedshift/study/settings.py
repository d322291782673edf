"""The settings of a call of the workflow: the keys of config/config.yaml and of `snakemake --config`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ..core.errors import UserError, did_you_mean
from ..datasets import Scale
from ..io.paths import STUDIES
from ..io.project import CONFIG, configuration

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


def scale_of(project: Path = Path()) -> Scale:
    """Return the scale of a call that names none: that of the project's config/config.yaml, or else the default.

    Raises UserError for a value other than a scale.
    """
    scale: Scale = configuration(project).get("scale") or DEFAULTS["scale"]
    if scale not in get_args(Scale):
        raise UserError(
            f"{project / CONFIG}.scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale))
        )
    return scale


def require_own_paths(workflow: Any) -> None:
    """Raise UserError where another workflow imports this one with other paths: its jobs would not know of them."""
    paths = workflow.modifier.path_modifier
    if any(paths.replace_prefix(file, None) != file for file in ("resources/x", "results/x", "reports/x")):
        problem = "fedshift is imported with prefix or replace_prefix, and its jobs write to results/ all the same"
        raise UserError("module", problem, "leave that line out")
