"""Fields of a study that hold plug-ins, given by name or with settings, and their part of the JSON schema."""

from __future__ import annotations

import itertools
import math
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, GetJsonSchemaHandler, PlainSerializer

from ..addons import Addon
from ..algorithms import Algorithm
from ..core import registry
from ..core.errors import UserError
from ..core.limits import Limit
from ..datasets import Dataset
from ..inferences import Inference
from ..models import Model
from ..nn.bn_policy import POLICIES
from ..transforms import Transform

MOST: Limit[int] = 1000
"""The most combinations that one entry with lists of settings may have."""

AT_PATH = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"}
"""The schema of the path of a plug-in that is not known here, `module:Class`."""


class _Named:
    """Schema of a plug-in that is given by its name, or as a mapping with `name` and settings."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        options: list[dict[str, Any]] = [{"anyOf": [{"enum": registry.names(self.kind)}, AT_PATH]}]
        for name, cls in sorted(registry.discover(self.kind).items()):
            schema = _inline(cls.model_json_schema())
            options.append(
                {
                    "type": "object",
                    "description": cls.summary(),
                    "properties": {"name": _constant(name, *cls.aliases), **schema.get("properties", {})},
                    "required": ["name", *schema.get("required", [])],
                    "additionalProperties": False,
                }
            )
        options.append({"type": "object", "properties": {"name": AT_PATH}, "required": ["name"]})
        return {"anyOf": options}


def _constant(*names: str) -> dict[str, Any]:
    """Return the schema of a value that is one of these."""
    return {"enum": list(names)} if len(names) > 1 else {"const": names[0]}


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which each reference to a definition is replaced by that definition."""
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


def _named(kind: str) -> tuple[Any, ...]:
    return (
        BeforeValidator(lambda value: registry.build(kind, value, registry.HERE)),
        PlainSerializer(lambda plugin: plugin.spec()),
        _Named(kind),
    )


class _Sweep:
    """Schema of a plug-in each setting of which may be a list of values, or of a list of such plug-ins."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = _Named(self.kind).__get_pydantic_json_schema__(core, handler)
        for option in schema["anyOf"][1:]:
            option["properties"] = {
                name: value if name == "name" else {"anyOf": [value, {"type": "array", "items": value, "minItems": 1}]}
                for name, value in option["properties"].items()
            }
        return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _swept(kind: str, value: Any) -> tuple[Any, ...]:
    """Return a plug-in for every combination of the settings that are lists; one plug-in if none is a list.

    A list of plug-ins stands for all of them.
    """
    if isinstance(value, list):
        if not value or any(isinstance(one, list) for one in value):
            raise UserError(registry.HERE, "is an empty list, or a list in a list of a list", f"name each {kind} once")
        return tuple(itertools.chain.from_iterable(_swept(kind, one) for one in value))
    fields = dict(value) if isinstance(value, dict) else {}
    lists = {k: v for k, v in fields.items() if isinstance(v, list) and k != "name"}
    if empty := [k for k, v in lists.items() if not v]:
        raise UserError(f"{registry.HERE}.{empty[0]}", "is an empty list", "give at least one value")
    if not lists:
        return (registry.build(kind, value, registry.HERE),)
    if (number := math.prod(map(len, lists.values()))) > MOST:
        raise UserError(registry.HERE, f"its lists make {number} combinations, more than {MOST}", "shorten them")
    combinations = (dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values()))
    return tuple(registry.build(kind, fields | values, registry.HERE) for values in combinations)


class _Known:
    """Schema of a plug-in that is given by its name alone."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": registry.names(self.kind)}, AT_PATH]}


def _known(kind: str) -> tuple[Any, ...]:
    return AfterValidator(lambda name: registry.get(kind, name, registry.HERE).name), _Known(kind)


class _Single:
    """Schema of a list that may be written without brackets if it has one member."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(core)
        return {"anyOf": [several["items"], several]}


AlgorithmField = Annotated[Algorithm, *_named("algorithm")]
AddonField = Annotated[Addon, *_named("addon")]
DatasetField = Annotated[Dataset, *_named("dataset")]
ModelField = Annotated[Model, *_named("model")]
InferenceField = Annotated[
    tuple[Inference, ...],
    BeforeValidator(lambda value: _swept("inference", value)),
    PlainSerializer(lambda plugins: [plugin.spec() for plugin in plugins]),
    _Sweep("inference"),
]
"""One inference, or several that one job predicts: a list of inferences, or of values of a setting."""
TransformField = Annotated[Transform, *_named("transform")]
MetricName = Annotated[str, *_known("metric")]
FigureName = Annotated[str, *_known("figure")]
MANY = (BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]), _Single())
BNName = Literal["aggregated", "local", "local_statistics", "local_affine"]
assert set(get_args(BNName)) == set(POLICIES)
