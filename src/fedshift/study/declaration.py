"""A study as its YAML file declares it: keys, scales and schema. The module `plan` expands it to runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, model_validator

from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..core.plugin import MANY, Frozen
from ..core.registry import validated
from ..data.partition import Partition
from ..datasets import Scale
from ..io.text import parsed, read_yaml
from ..nn.policies import BATCH
from ..tasks import CLASSIFICATION, Task
from .analysis_plan import Conformal, Hypothesis, Primary, ThresholdField
from .author import Author, SiteWords, Unit
from .fields import (
    AddonField,
    AlgorithmsField,
    BNName,
    DatasetField,
    FigureName,
    InferenceField,
    MetricName,
    ModelField,
    NormsField,
    TaskField,
    TransformField,
    shared,
)
from .published import Published, Trend
from .search import Rule, TrainingField


class Grid(Frozen):
    """Some runs of a study. A key has one value, or a list of values; every combination of values is run."""

    algorithm: Annotated[tuple[AlgorithmsField, ...], Field(min_length=1), *MANY] = Field(
        description="one algorithm or several, by name or with settings; a setting with a list of numbers is a search"
    )
    bn: Annotated[tuple[BNName, ...], Field(min_length=1), *MANY] | None = Field(
        None, description="one BN policy or several; default: the usual policy of each algorithm"
    )
    norms: NormsField | None = Field(None, description="default: the study's norms")
    addon: Annotated[tuple[AddonField | None, ...], Field(min_length=1), *MANY] = Field(
        (None,), description="one add-on or several; null stands for none"
    )
    model: ModelField | None = Field(None, description="default: the study's model")
    dataset: dict[str, Any] = Field({}, description="settings that differ from the study's dataset")
    partition: dict[str, Any] = Field({}, description="settings that differ from the study's partitions")
    transforms: tuple[TransformField, ...] | None = Field(
        None, description="transforms of the images, in order; default: the study's transforms"
    )
    seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, min_length=1, description="default: the study's seeds"
    )
    training: TrainingField = Field({}, description="settings that differ from the study's training")
    inferences: tuple[InferenceField, ...] | None = Field(
        None, min_length=1, description="default: the study's inferences"
    )


class Study(Frozen):
    """A study: its question, its data, its runs, and how results are shown."""

    title: str = Field(description="title of the page, in one line")
    question: str = Field("", description="the question that the study answers")
    notes: tuple[str, ...] = Field((), description="caveats and decisions, shown on the page")
    author: Author = Field(
        Author(), description="what only the authors know, for the checklists CLAIM 2024 and TRIPOD+AI on the page"
    )
    task: TaskField = Field(
        CLASSIFICATION, description="what the network says of an image: classification, or segmentation with settings"
    )
    dataset: DatasetField = Field(description="the dataset, by name or with settings")
    partition: Annotated[tuple[Partition, ...], *MANY] = Field(
        min_length=1, description="one partition or several; every run is trained once on each of them"
    )
    sites: dict[str, SiteWords] = Field(
        {},
        description="what single sites are, where they are no hospitals (or not what the dataset says): words of the "
        "page, which change no run",
    )
    unit: Annotated[tuple[Unit, ...], *MANY] = Field(
        (),
        description="what the column of patients names, such as lesion, eye or slide; several where sites differ: "
        "words of the page, which change no run. Default: patient, or image where no patient is known",
    )
    model: ModelField = Field(description="the network, by name or with settings")
    norms: NormsField = Field(
        BATCH,
        description="types of the normalisation layers that the BN policies are about, by the type of the layer: all, "
        "or some of batch, group, layer and instance; the parameters of all other layers travel",
    )
    transforms: tuple[TransformField, ...] = Field((), description="transforms of the images, in order")
    training: TrainingField = Field(
        {},
        description="settings of the training that all runs share; a setting with a list of values is a search: every "
        "run is trained with each combination of values, and one is chosen",
    )
    search: Rule = Field(
        "validation",
        description="rule by which a search chooses: the best validation value of the internal sites, or, under the "
        "name oracle, the best result at the external sites, which gives upper bounds and no results",
    )
    runs: tuple[Grid, ...] = Field(min_length=1, description="the runs; a list of values stands for a run each")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="every run is trained once with each seed"
    )
    inferences: tuple[InferenceField, ...] = Field(
        min_length=1,
        description="how images are predicted; a setting with a list of values stands for an inference each; one "
        "job predicts all inferences of a run",
    )
    metrics: tuple[MetricName, ...] = Field(
        CLASSIFICATION.metrics, description="the metrics that are computed; another task has others by default"
    )
    headline: MetricName = Field(
        CLASSIFICATION.headline, description="the metric that the page shows first; of masks it is dice by default"
    )
    margin: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="the largest loss at external sites that counts as holding up, in units of the headline metric: "
        "0.05 is 5 points; default: 0.05 for metrics in percent, and none for others",
    )
    primary: Primary | None = Field(
        None,
        description="the comparison of conditions that the study is made for, by its headline metric; default: every "
        "two conditions are compared, and p values are adjusted for all these pairs",
    )
    hypotheses: tuple[Hypothesis, ...] = Field(
        (),
        description="claims about differences of the headline metric, each with a margin, that are written down before "
        "the results are seen; the page answers each of them with yes, no or cannot tell",
    )
    without_largest: int | None = Field(
        None,
        ge=1,
        description="a number of patients of each site, those with most test images, without whom every hypothesis is "
        "answered a second time: whether a few patients decide",
    )
    positive: str | None = Field(
        None, description="the positive class of an operating point, with two classes; default: the second"
    )
    threshold: ThresholdField = Field(
        {"value": 0.5},
        validate_default=True,
        description="how the threshold of an operating point is chosen, on validation samples of the internal sites",
    )
    conformal: Conformal | None = Field(
        None,
        description="prediction sets that hold the right class with a declared probability at the internal sites, or "
        "masks that miss no more than a declared share of a structure there, and what each site has; default: none",
    )
    decision_range: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0, lt=1)]] = Field(
        (0.05, 0.5), description="lowest and highest threshold of the figure decision_curve"
    )
    prevalence: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a share of positive samples, as in a clinic, for which predictive values are given too",
    )
    control: bool | None = Field(
        None,
        description="whether a linear classifier, without a network, is tested beside the runs: of colour and texture, "
        "and for masks of colours and edges around each pixel; default: it is where the samples are images",
    )
    figures: tuple[FigureName, ...] = Field(
        ("convergence", "patches", "sites"),
        description="figures of the page, in order; with two classes, calibration and roc follow unless it is empty",
    )
    subgroups: tuple[str, ...] = Field(
        (),
        description="further columns of the table of images, such as [scanner, sex]: the page also shows the headline "
        "metric of each of their groups of test images",
    )
    reproduces: tuple[str, ...] = Field(
        (), description="tables and figures of papers that the study reproduces: ids of config/papers.csv"
    )
    published: Published | None = Field(
        None, description="published tables to compare with, and the meaning of their words"
    )
    trends: tuple[Trend, ...] = Field((), description="claims of papers that are checked with our numbers")
    scales: dict[Scale, dict[str, Any]] = Field(
        {}, description="keys that differ at a scale; merged into the study key by key"
    )

    @model_validator(mode="before")
    @classmethod
    def _follow_the_task(cls, values: Any) -> Any:
        """Add the metrics of the task where the study names none."""
        task = values.get("task") if isinstance(values, dict) else None
        name = task.get("name") if isinstance(task, dict) else task
        if not isinstance(name, str) or name not in registry.names("task"):
            return values
        plugin = registry.get("task", name)
        assert issubclass(plugin, Task)
        return {"metrics": plugin.metrics, "headline": plugin.headline, **values}

    @model_validator(mode="after")
    def _operating_point(self) -> Study:
        classes = self.dataset.classes
        if self.positive is not None and len(classes) != 2:
            raise UserError("positive", f"is for two classes, and the dataset has {len(classes)}", "leave it out")
        if self.positive not in (None, *classes):
            problem = f"unknown class {self.positive!r}"
            raise UserError("positive", problem, did_you_mean(str(self.positive), classes))
        if not self.decision_range[0] < self.decision_range[1]:
            raise UserError("decision_range", "its first threshold is not below its second", "give [lowest, highest]")
        return self

    @model_validator(mode="after")
    def _prediction_sets(self) -> Study:
        sets, masks = self.conformal, self.task.has_masks
        if sets and sets.score == "aps" and (masks or len(self.dataset.classes) == 2):
            raise UserError("conformal.score", "is aps, which is for three classes and more", "leave it out")
        if sets and sets.unit == "one" and masks:
            raise UserError(
                "conformal.unit", "is one, and what masks miss is that of all images of a patient", "leave it out"
            )
        return self

    def resampled(self, known: bool) -> str:
        """Return what intervals resample, in the singular: patient, `slide or block`, or image if none is `known`."""
        *first, last = self.unit or ("patient" if known else self.dataset.sample_noun,)
        return " or ".join(filter(None, (", ".join(first), last)))

    @property
    def two_classes(self) -> bool:
        """True if predictions are the probabilities of two classes, as thresholds, ROC and decision curves need."""
        return self.task.has_probabilities and len(self.dataset.classes) == 2


def read(path: Path, scale: Scale, settings: Sequence[str] = ()) -> Study:
    """Read a study at a scale and check it. Raises UserErrors that name the file and every wrong key.

    `settings` are those of the call, such as `training.lr=0.01`; see `changed`.
    """
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise UserError(path, "is not a mapping of keys", "give title, dataset, partition, model, runs, inferences")
    if scale not in get_args(Scale):
        raise UserError("scale", f"unknown scale {scale!r}", did_you_mean(str(scale), get_args(Scale)))
    scales = raw.get("scales") or {}
    if not isinstance(scales, dict) or not all(isinstance(v, dict) for v in scales.values()):
        raise UserError(f"{path}.scales", "is not a mapping of scale to keys")
    over = scales.get(scale, {})
    declared = _scaled(merge(raw, over), over)
    for setting in settings:
        declared = changed(declared, setting)
    study: Study = validated(Study, declared, str(path))
    return study


def changed(study: Mapping[str, Any], setting: str) -> dict[str, Any]:
    """Return a study, as it is declared, with a setting of a call: `training.lr=0.01`, `runs.0.bn=local`, `seeds=[0]`.

    A key of a list is the number of a member from 0; without it, all members change. A plug-in that is given by name
    alone takes further settings. Values of training, dataset and partition also replace those of single runs.
    Raises UserError for what is no setting; the study's own fields judge the value.
    """
    name, equals, value = setting.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise UserError("--set", f"{setting!r} is not KEY=VALUE", "write it as training.lr=0.01 or seeds=[0]")
    part: Any = parsed(value, f"--set {name}")
    for key in reversed(keys):
        part = {key: part}
    return _scaled(_put(study, keys, parsed(value, f"--set {name}"), f"--set {name}"), part)


def _put(part: Any, keys: Sequence[str], value: Any, where: str) -> Any:
    """Return a part of a study in which the member that `keys` lead to is a value."""
    if not keys:
        return value
    first, rest = keys[0], keys[1:]
    if isinstance(part, list):
        if not first.isdecimal():
            return [_put(member, keys, value, where) for member in part]
        if int(first) >= len(part):
            raise UserError(where, f"no member {first}: there are {len(part)}, and the first one is 0")
        return [_put(member, rest, value, where) if n == int(first) else member for n, member in enumerate(part)]
    if isinstance(part, str):
        part = {"name": part}
    if not isinstance(part, Mapping | None):
        raise UserError(where, f"{first!r} is no key there: the value is {part!r}", "leave out what follows it")
    return {**(part or {}), first: _put((part or {}).get(first), rest, value, where)}


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`: mappings are merged key by key, other values are replaced."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name") in (None, old.get("name")):
            out[key] = merge(old, value)
        else:
            # This also replaces a mapping with another name: settings of another plug-in mean something else.
            out[key] = value
    return out


def _scaled(study: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study whose runs take the scale's values for training, dataset and partition, which override theirs."""
    # A scale with its own runs replaces them as a whole, and their settings stay as they are written.
    if "runs" in over or not isinstance(study.get("runs"), list):
        return study
    overrides = {key: over[key] for key in ("training", "dataset", "partition") if isinstance(over.get(key), Mapping)}

    def overridden(grid: Any) -> Any:
        if not isinstance(grid, Mapping):
            return grid
        values = {key: grid[key] for key in overrides if isinstance(grid.get(key), Mapping)}
        return {**grid, **{key: merge(value, overrides[key]) for key, value in values.items()}}

    return study | {"runs": [overridden(grid) for grid in study["runs"]]}


def schema() -> dict[str, Any]:
    """Return the JSON schema of a study's YAML file, with all plug-ins: for editors and `config/study.schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shared(Study.model_json_schema())}
