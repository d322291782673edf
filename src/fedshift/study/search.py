"""Searches over settings of the training: lists of values in a study, and the rule that chooses one combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from ..algorithms import Algorithm, Training
from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.registry import validated
from .fields import LazySchema, or_list

Rule = Literal["validation", "oracle"]
"""Rules that choose: by validation images of the internal sites, or by test images of the external ones."""
ALONE = frozenset(
    (
        *("train", "class_weights", "select", "select_by", "select_at", "epochs_at"),
        *("watch_every", "training_loss_every", "training_loss_images"),
        *("precision", "channels_last", "deterministic"),
    )
)
"""Settings that have one value in a search. Those of LISTS are one value; the others do not belong to what is
learnt, or would compare values of different kinds."""
LISTS = frozenset({"train", "class_weights", "select_at"})
"""Settings whose one value may be a list."""
MOST = 100
"""The most combinations that one search may try."""


OPTION = "algorithm."
"""Prefix of the settings of an algorithm among those of a search; the others are settings of the training."""


class Search(Frozen):
    """A search: the settings that vary, each with its values in order, and the rule that chooses.

    They are settings of the training and, under names that begin with OPTION, of the algorithm.
    """

    rule: Rule
    values: dict[str, tuple[Any, ...]]

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of the values, the last setting varying first."""
        return [dict(zip(self.values, values, strict=True)) for values in itertools.product(*self.values.values())]


def options(algorithms: Sequence[Algorithm]) -> dict[str, tuple[Any, ...]]:
    """Return the settings in which several algorithms of one kind differ, each with its values in order."""
    specs = [algorithm.spec() for algorithm in algorithms]
    differ = [key for key in specs[0] if any(spec[key] != specs[0][key] for spec in specs)]
    return {OPTION + key: tuple(dict.fromkeys(spec[key] for spec in specs)) for key in differ}


class _Separate(Training):
    """Training without the rules that compare settings: these are checked when a grid is merged with its study."""

    def _together(self) -> Training:  # type: ignore[override]
        return self


def varied(settings: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the settings of a training that are lists of values, but for a list with one value."""
    return {key: tuple(value) for key, value in settings.items() if _several(key, value) and len(value) > 1}


def trainings(settings: Mapping[str, Any], where: str) -> list[Training]:
    """Return the training of each combination of the values in `settings`. Raises UserErrors for wrong settings."""
    values = {key: tuple(value) for key, value in settings.items() if _several(key, value)}
    number = math.prod(map(len, values.values()))
    if number > MOST:
        raise UserError(where, f"its lists make {number} combinations, more than {MOST}", "shorten them")
    search = Search(rule="validation", values=values)
    return [validated(Training, {**settings, **chosen}, where) for chosen in search.combinations()]


def _several(key: str, value: Any) -> bool:
    return isinstance(value, list | tuple) and key not in ALONE


def _each_alone(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings after checking each value alone. Raises UserErrors for wrong values and empty lists."""
    for key, value in settings.items():
        if key in ALONE and key not in LISTS and isinstance(value, list):
            raise UserError(f".{key}", "is a list, but this setting cannot be searched", "give one value")
        if _several(key, value):
            if not value:
                raise UserError(f".{key}", "is an empty list", "give at least one value")
            if len(set(map(repr, value))) < len(value):
                raise UserError(f".{key}", "has a value twice", "leave out one of the two")
    several = {key: value for key, value in settings.items() if _several(key, value)}
    # One value of each list at a time: rules between settings are checked when the grid is merged with its study.
    validated(_Separate, {**settings, **{key: value[0] for key, value in several.items()}}, "")
    for key, value in several.items():
        for further in value[1:]:
            validated(_Separate, {key: further}, "")
    return settings


def _training_schema() -> dict[str, Any]:
    """Return the schema of the settings of a training, most of which may be lists of values."""
    properties = Training.model_json_schema()["properties"]
    properties |= {key: or_list(value) for key, value in properties.items() if key not in ALONE}
    return {"type": "object", "properties": properties, "additionalProperties": False}


TrainingField = Annotated[dict[str, Any], AfterValidator(_each_alone), LazySchema(_training_schema)]
"""Settings of a training. A list of values is a search: each combination of values is trained, and one is chosen."""
