"""How plug-ins stand in a study's YAML: by name, or with settings; and how the schema says so."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, GetJsonSchemaHandler, PlainSerializer

from . import registry
from .addon import Addon
from .algorithm import Algorithm
from .bn import POLICIES
from .dataset import Dataset
from .inference import Inference
from .model import Model
from .transform import Transform


class _Named:
    """Lets a plug-in stand in YAML as its name, or as a mapping with `name` and settings; and says so in the schema."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        options: list[dict[str, Any]] = [{"enum": sorted(registry.discover(self.kind))}]
        for name, cls in sorted(registry.discover(self.kind).items()):
            schema = cls.model_json_schema()
            options.append(
                {
                    "type": "object",
                    "description": cls.summary(),
                    "properties": {"name": {"const": name}, **schema.get("properties", {})},
                    "required": ["name", *schema.get("required", [])],
                    "additionalProperties": False,
                }
            )
        return {"anyOf": options}


def _named(kind: str) -> tuple[Any, ...]:
    return (
        BeforeValidator(lambda value: registry.build(kind, value, registry.HERE)),
        PlainSerializer(lambda plugin: plugin.spec()),
        _Named(kind),
    )


class _Known:
    """Lets a plug-in stand by its name alone."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": sorted(registry.discover(self.kind))}


def _known(kind: str) -> tuple[Any, ...]:
    return AfterValidator(lambda name: registry.get(kind, name, registry.HERE).name), _Known(kind)


class _Single:
    """Says in the schema that a list of one may stand without its brackets."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(core)
        return {"anyOf": [several["items"], several]}


AlgorithmField = Annotated[Algorithm, *_named("algorithm")]
AddonField = Annotated[Addon, *_named("addon")]
DatasetField = Annotated[Dataset, *_named("dataset")]
ModelField = Annotated[Model, *_named("model")]
InferenceField = Annotated[Inference, *_named("inference")]
TransformField = Annotated[Transform, *_named("transform")]
MetricName = Annotated[str, *_known("metric")]
FigureName = Annotated[str, *_known("figure")]
MANY = (BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]), _Single())
BNName = Literal["aggregated", "local", "local_statistics", "local_affine"]
assert set(get_args(BNName)) == set(POLICIES)
