"""Types of a study's fields whose values are plug-ins, given by name or with settings, and their JSON schemas."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, GetJsonSchemaHandler, PlainSerializer

from ..addons import Addon
from ..algorithms import Algorithm
from ..core import registry
from ..core.errors import UserError
from ..core.plugin import as_list
from ..datasets import Dataset
from ..inferences import Inference
from ..models import Model
from ..nn.policies import NORMS, POLICIES, norm_types
from ..tasks import Task
from ..transforms import Transform

MOST = 1000
"""The most combinations that the lists of settings of one plug-in may make."""

SHARED = 150
"""The length in characters from which a part of the schema that occurs several times is written once, in `$defs`."""
AT_PATH = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"}
"""The JSON schema of the path of a plug-in that does not come with fedshift, `module:Class`."""


class LazySchema:
    """An annotation whose JSON schema is computed by `make` only when needed.

    The schema names all plug-ins, whereas reading a study imports only the plug-ins that the study uses.
    """

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self.make = make

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.make()


def or_list(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a value with the given schema or a non-empty list of such values."""
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _name_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a plug-in of a kind that is given by its name or by its path `module:Class`."""
    return {"anyOf": [{"enum": registry.names(kind)}, AT_PATH]}


def _plugin_schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of a plug-in of a kind: a name, or a mapping with `name` and settings."""
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
    """Return the JSON schema of one or several plug-ins of a kind whose settings may be lists of values."""
    schema = _plugin_schema(kind)
    for option in schema["anyOf"][1:]:
        settings = {name: or_list(value) for name, value in option["properties"].items() if name != "name"}
        option["properties"] = {"name": option["properties"]["name"], **settings}
    return or_list(schema)


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema in which each `$ref` is replaced by its definition in `$defs`."""
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
    """Return an equivalent JSON schema in which every large part that occurs several times is moved to `$defs`.

    The parts become `$ref`s, which makes the file a sixth as long.
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
    """Return a copy of a JSON schema with the function `change` applied to each of its direct subschemas."""
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
    """Return the pydantic annotations of a field that holds one plug-in of a kind: validator, serializer, schema."""
    return (
        BeforeValidator(lambda value: registry.build(kind, value, "")),
        PlainSerializer(lambda plugin: plugin.spec()),
        LazySchema(lambda: _plugin_schema(kind)),
    )


def _lists(kind: str, value: Any) -> dict[str, list[Any]]:
    """Return the settings of a plug-in that list several values to combine, from its mapping `value`.

    A list given for a setting of type tuple is one value, and is left out.
    """
    if not isinstance(value, dict):
        return {}
    lists = {key: values for key, values in value.items() if isinstance(values, list) and key != "name"}
    if lists and isinstance(value.get("name"), str):
        fields = registry.get(kind, value["name"], "").model_fields
        lists = {k: v for k, v in lists.items() if k not in fields or get_origin(fields[k].annotation) is not tuple}
    return lists


def _swept(kind: str, value: Any) -> tuple[Any, ...]:
    """Return a plug-in of a kind for every combination of the values that its settings list.

    `value` is a name, a mapping with `name` and settings, or a list of these, whose plug-ins are joined. Raises
    UserError for empty lists and for more than MOST combinations.
    """
    if isinstance(value, list):
        if not value or any(isinstance(member, list) for member in value):
            raise UserError("", "is an empty list, or a list of lists of lists", f"name each {kind} once")
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
    """Return an algorithm for every combination of the numbers that its settings list; a search chooses among them.

    `value` is a name, or a mapping with `name` and settings. Raises UserError for lists of values that are no numbers,
    and for lists of settings that shape the network.
    """
    lists = _lists("algorithm", value)
    for key, values in lists.items():
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            remedy = "give one value, or an entry of `runs` for each"
            raise UserError(f".{key}", "is a list, and a search varies numbers alone", remedy)
        if len(set(values)) < len(values):
            raise UserError(f".{key}", "has a value twice", "leave out one of the two")
    algorithms = _swept("algorithm", value)
    for key in lists.keys() & algorithms[0].network_fields:
        raise UserError(
            f".{key}",
            "is a list, but this setting shapes the network",
            "list the algorithm under `runs` once for each value",
        )
    return algorithms


def _checked_name(kind: str) -> tuple[Any, ...]:
    """Return the pydantic annotations of a field that holds the name of a plug-in of a kind: validator and schema."""
    return AfterValidator(lambda name: registry.get(kind, name, "").name), LazySchema(lambda: _name_schema(kind))


AlgorithmField = Annotated[Algorithm, *_named("algorithm")]
AlgorithmsField = Annotated[
    tuple[Algorithm, ...],
    BeforeValidator(_searched),
    PlainSerializer(lambda plugins: plugins[0].spec() if len(plugins) == 1 else [plugin.spec() for plugin in plugins]),
    LazySchema(lambda: _sweep_schema("algorithm")["anyOf"][0]),
]
"""The algorithms of one entry: one, or if settings list numbers, one per combination, among which a search chooses."""
AddonField = Annotated[Addon, *_named("addon")]
DatasetField = Annotated[Dataset, *_named("dataset")]
ModelField = Annotated[Model, *_named("model")]
InferenceField = Annotated[
    tuple[Inference, ...],
    BeforeValidator(lambda value: _swept("inference", value)),
    PlainSerializer(lambda plugins: [plugin.spec() for plugin in plugins]),
    LazySchema(lambda: _sweep_schema("inference")),
]
"""The inferences of one entry: one, or several if a list of inferences, or of values of a setting, is given."""
TaskField = Annotated[Task, *_named("task")]
TransformField = Annotated[Transform, *_named("transform")]
MetricName = Annotated[str, *_checked_name("metric")]
FigureName = Annotated[str, *_checked_name("figure")]
BNName = Literal["aggregated", "local", "local_statistics", "local_affine"]
assert set(get_args(BNName)) == set(POLICIES)


NormsField = Annotated[
    tuple[str, ...],
    BeforeValidator(lambda value: norm_types(value if isinstance(value, str) else as_list(value), "")),
    LazySchema(lambda: {"anyOf": [{"enum": ["all", *NORMS]}, or_list({"enum": [*NORMS]})["anyOf"][1]]}),
]
"""Types of the normalisation layers to which a BN policy applies: `all`, one type, or a list of types."""
