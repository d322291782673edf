"""A study as its YAML declares it: keys, scales, schema. `study` says which runs it stands for. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, Field

from ..algorithms import Training
from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..core.frozen import Frozen
from ..core.registry import validated
from ..data.partition import Partition
from ..datasets import Scale
from ..io.yaml import read_yaml
from .fields import (
    MANY,
    AddonField,
    AlgorithmField,
    BNName,
    DatasetField,
    FigureName,
    InferenceField,
    MetricName,
    ModelField,
    TransformField,
)
from .published import Published, Trend


class _Settings(Training):
    """Training without the rules by which settings go together: they are held against the whole."""

    def _together(self) -> Training:  # type: ignore[override]
        return self


def _setting(values: dict[str, Any]) -> dict[str, Any]:
    """Some settings of the training, each checked by itself."""
    validated(_Settings, values, registry.HERE)
    return values


class Grid(Frozen):
    """Some runs of a study: each key one value, or a list of values, of which every combination is run."""

    algorithm: Annotated[tuple[AlgorithmField, ...], Field(min_length=1), *MANY]
    bn: Annotated[tuple[BNName, ...], Field(min_length=1), *MANY] | None = Field(
        None, description="default: what each algorithm asks for"
    )
    addon: Annotated[tuple[AddonField | None, ...], Field(min_length=1), *MANY] = (None,)
    model: ModelField | None = Field(None, description="default: the study's model")
    dataset: dict[str, Any] = Field({}, description="settings that differ from the study's dataset")
    partition: dict[str, Any] = Field({}, description="settings that differ from the study's partitions")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, min_length=1, description="default: the study's"
    )
    training: Annotated[dict[str, Any], AfterValidator(_setting)] = Field(
        {}, description="settings that differ from the study's training"
    )
    inferences: tuple[InferenceField, ...] | None = Field(
        None, min_length=1, description="default: the study's inferences"
    )


class Study(Frozen):
    """What is asked, of which data, by which runs, and how it is shown."""

    title: str = Field(description="one line")
    question: str = Field("", description="what the reader wants to know")
    notes: tuple[str, ...] = Field((), description="caveats and decisions shown on the page")
    dataset: DatasetField
    partition: Annotated[tuple[Partition, ...], *MANY] = Field(
        min_length=1, description="one, or several, each trained on"
    )
    model: ModelField
    transforms: tuple[TransformField, ...] = ()
    training: Training = Training()
    runs: tuple[Grid, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field((0,), min_length=1)
    inferences: tuple[InferenceField, ...] = Field(
        min_length=1, description="a setting that is a list stands for an inference each, predicted in one job"
    )
    metrics: tuple[MetricName, ...] = (
        "accuracy",
        "balanced_accuracy",
        "auc",
        "sensitivity",
        "specificity",
        "brier",
        "ece",
    )
    headline: MetricName = Field("accuracy", description="the metric that the page leads with")
    figures: tuple[FigureName, ...] = ("convergence", "patches", "sites")
    reproduces: tuple[str, ...] = Field((), description="tables and figures of papers: ids of config/papers.csv")
    published: Published | None = Field(None, description="printed tables, and what their words stand for")
    trends: tuple[Trend, ...] = Field((), description="what the papers claim, and is held against our numbers")
    scales: dict[Scale, dict[str, Any]] = Field(
        {}, description="what differs at a scale; merged into the study, key by key"
    )


def read(path: Path, scale: Scale) -> Study:
    """A study at a scale, checked. Raises UserErrors that name the file and every wrong key."""
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise UserError(path, "is not a mapping of keys", "see docs/add-a-study.md")
    if scale not in get_args(Scale):
        raise UserError("scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale)))
    scales = raw.get("scales") or {}
    if not isinstance(scales, dict) or not all(isinstance(v, dict) for v in scales.values()):
        raise UserError(f"{path}.scales", "is not a mapping of scale to keys")
    over = scales.get(scale, {})
    found: Study = validated(Study, _scaled(merge(raw, over), over), str(path))
    return found


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mappings key by key, all else replaced."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        deep = (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        )
        out[key] = merge(old, value) if deep else value  # type: ignore[arg-type]
    return out


def _scaled(study: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What a scale says of training, dataset and partition holds for all runs, whatever they say themselves."""
    if "runs" in over or not isinstance(study.get("runs"), list):
        return study
    held = {key: over[key] for key in ("training", "dataset", "partition") if isinstance(over.get(key), Mapping)}

    def laid_on(grid: Any) -> Any:
        if not isinstance(grid, Mapping):
            return grid
        said = {key: grid[key] for key in held if isinstance(grid.get(key), Mapping)}
        return {**grid, **{key: merge(own, held[key]) for key, own in said.items()}}

    return study | {"runs": [laid_on(grid) for grid in study["runs"]]}


def schema() -> dict[str, Any]:
    """The JSON schema of a study's YAML, plug-ins and all, for editors and for `config/study.schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Study.model_json_schema()}
