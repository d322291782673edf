"""Fields of a study that hold plug-ins or settings of the training, their part of the JSON schema, and searches.

A plug-in is given by name or with settings. A setting may be a list of values: a search tries each combination, and a
rule chooses one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, GetJsonSchemaHandler, PlainSerializer

from ..addons import Addon
from ..algorithms import Algorithm, Training
from ..core import registry
from ..core.errors import UserError
from ..core.plugin import Frozen, as_list
from ..core.registry import validated
from ..datasets import Dataset
from ..inferences import Inference
from ..models import Model
from ..nn.policies import NORMS, POLICIES, norm_types
from ..tasks import Task
from ..transforms import Transform

MOST = 1000
"""The most combinations that one entry with lists of settings may have."""

SHARED = 150
"""Letters from which on a part of the schema that stands in several places is written once."""
AT_PATH = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"}
"""The schema of the path of a plug-in from outside, `module:Class`."""


class LazySchema:
    """A JSON schema that is made when it is asked for: it names all plug-ins, and a study imports only its own."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self.make = make

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.make()


def or_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value, or of a list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _name_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a plug-in that is given by its name alone."""
    return {"anyOf": [{"enum": registry.names(kind)}, AT_PATH]}


def _plugin_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a plug-in that is given by its name, or as a mapping with `name` and settings."""
    options = [_name_schema(kind)]
    for name, cls in sorted(registry.discover(kind).items()):
        schema = _inline(cls.model_json_schema())
        options.append(
            {
                "type": "object",
                "description": cls.summary(),
                "properties": {
                    "name": {"enum": [name, *cls.aliases]} if cls.aliases else {"const": name},
                    **schema.get("properties", {}),
                },
                "required": ["name", *schema.get("required", [])],
                "additionalProperties": False,
            }
        )
    options.append({"type": "object", "properties": {"name": AT_PATH}, "required": ["name"]})
    return {"anyOf": options}


def _sweep_schema(kind: str) -> dict[str, Any]:
    """Return the schema of a plug-in whose settings may be lists of values, or of a list of such plug-ins."""
    schema = _plugin_schema(kind)
    for option in schema["anyOf"][1:]:
        settings = {name: or_list(value) for name, value in option["properties"].items() if name != "name"}
        option["properties"] = {"name": option["properties"]["name"], **settings}
    return or_list(schema)


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which each reference to a definition is replaced by that definition."""
    # The schemas of several plug-ins stand in one file, where their definitions could share names.
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(v) for v in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(definitions[part["$ref"].rpartition("/")[2]])
        return {k: resolved(v) for k, v in part.items()}

    inlined: dict[str, Any] = resolved(schema)
    return inlined


def shared(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which every large part that stands in several places is one of `$defs`, and is referred to.

    An editor understands both in the same way, and the file is a sixth as long.
    """
    places: Counter[str] = Counter()

    def count(part: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(part)
        places[text] += 1
        if places[text] == 1:  # what stands in a part that is written once is written once, too
            _in_parts(part, count)
        return part

    names: dict[str, str] = {}
    definitions: dict[str, Any] = {}

    def referred(part: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(part)
        if places[text] < 2 or len(text) < SHARED:
            return _in_parts(part, referred)
        if text not in names:
            names[text] = f"shared{len(names) + 1}"
            definitions[names[text]] = _in_parts(part, referred)
        return {"$ref": f"#/$defs/{names[text]}"}

    count(schema)
    whole = _in_parts(schema, referred)
    return whole | {"$defs": whole["$defs"] | definitions}


def _in_parts(schema: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return a schema in which each schema directly within it is what `change` makes of it."""
    changed = dict(schema)
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            changed[key] = {name: change(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            changed[key] = [change(part) for part in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            changed[key] = change(value)
    return changed


def _named(kind: str) -> tuple[Any, ...]:
    return (
        BeforeValidator(lambda value: registry.build(kind, value, "")),
        PlainSerializer(lambda plugin: plugin.spec()),
        LazySchema(lambda: _plugin_schema(kind)),
    )


def _lists(kind: str, value: Any) -> dict[str, list[Any]]:
    """Return the settings of a plug-in that are lists of values; a setting whose value is a list has one value."""
    if not isinstance(value, dict):
        return {}
    lists = {key: values for key, values in value.items() if isinstance(values, list) and key != "name"}
    if lists and isinstance(value.get("name"), str):
        fields = registry.get(kind, value["name"], "").model_fields
        lists = {k: v for k, v in lists.items() if k not in fields or get_origin(fields[k].annotation) is not tuple}
    return lists


def _swept(kind: str, value: Any) -> tuple[Any, ...]:
    """Return a plug-in for every combination of the settings that are lists; one plug-in if none is a list.

    Of a list of plug-ins, each is expanded, and the results are joined.
    """
    if isinstance(value, list):
        if not value or any(isinstance(member, list) for member in value):
            raise UserError("", "is an empty list, or a list in a list of a list", f"name each {kind} once")
        return tuple(itertools.chain.from_iterable(_swept(kind, member) for member in value))
    lists = _lists(kind, value)
    if not lists:
        return (registry.build(kind, value, ""),)
    for key, values in lists.items():
        if not values:
            raise UserError(f".{key}", "is an empty list", "give at least one value")
    number = math.prod(map(len, lists.values()))
    if number > MOST:
        raise UserError("", f"its lists make {number} combinations, more than {MOST}", "shorten them")
    combinations = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return tuple(registry.build(kind, value | values, "") for values in combinations)


def _searched(value: Any) -> tuple[Algorithm, ...]:
    """Return an algorithm for every combination of the numbers that its settings list.

    Raises UserError for lists of other values, and of settings that shape the network.
    """
    lists = _lists("algorithm", value)
    for key, values in lists.items():
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            raise UserError(
                f".{key}",
                "is a list, and a search varies numbers alone",
                "give one value, or an entry of `runs` for each",
            )
        if len(set(values)) < len(values):
            raise UserError(f".{key}", "has a value twice", "leave out one of the two")
    algorithms = _swept("algorithm", value)
    for key in lists.keys() & algorithms[0].network_fields:
        raise UserError(f".{key}", "is a list, but this setting shapes the network", "name the algorithm several times")
    return algorithms


def _checked_name(kind: str) -> tuple[Any, ...]:
    return AfterValidator(lambda name: registry.get(kind, name, "").name), LazySchema(lambda: _name_schema(kind))


AlgorithmField = Annotated[Algorithm, *_named("algorithm")]
AlgorithmsField = Annotated[
    tuple[Algorithm, ...],
    BeforeValidator(_searched),
    PlainSerializer(lambda plugins: plugins[0].spec() if len(plugins) == 1 else [plugin.spec() for plugin in plugins]),
    LazySchema(lambda: _sweep_schema("algorithm")["anyOf"][0]),
]
"""An algorithm, or those among which a search chooses: one for each combination of the numbers in lists."""
AddonField = Annotated[Addon, *_named("addon")]
DatasetField = Annotated[Dataset, *_named("dataset")]
ModelField = Annotated[Model, *_named("model")]
InferenceField = Annotated[
    tuple[Inference, ...],
    BeforeValidator(lambda value: _swept("inference", value)),
    PlainSerializer(lambda plugins: [plugin.spec() for plugin in plugins]),
    LazySchema(lambda: _sweep_schema("inference")),
]
"""One inference, or several: a list of inferences, or of values of a setting."""
TaskField = Annotated[Task, *_named("task")]
TransformField = Annotated[Transform, *_named("transform")]
MetricName = Annotated[str, *_checked_name("metric")]
FigureName = Annotated[str, *_checked_name("figure")]
BNName = Literal["aggregated", "local", "local_statistics", "local_affine"]
assert set(get_args(BNName)) == set(POLICIES)


def _norms_schema() -> dict[str, Any]:
    """Return the schema of types of norms: all, one of them, or a list."""
    return {"anyOf": [{"enum": ["all", *NORMS]}, {"type": "array", "items": {"enum": [*NORMS]}, "minItems": 1}]}


NormsField = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: norm_types(value if isinstance(value, str) else as_list(value), "")),
    LazySchema(_norms_schema),
]
"""Types of the norms that a BN policy is about: `all`, one type, or a list of types."""


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
MOST_TRIED = 100
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
    if number > MOST_TRIED:
        raise UserError(where, f"its lists make {number} combinations, more than {MOST_TRIED}", "shorten them")
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
