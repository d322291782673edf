"""The keys of a study's YAML file, as pydantic models, and how it is read at a scale. `plan` expands it into runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..core.plugin import MANY, Frozen
from ..core.registry import validated
from ..data.partition import Partition
from ..datasets import Scale, SiteKind
from ..io.text import parsed, read_yaml
from ..nn.policies import BATCH
from ..tasks import CLASSIFICATION, Task
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
from .published import Published, Selector, Trend
from .run import Rule, TrainingField

PARTS = ("department", "scanner")
"""Kinds of sites that are parts of a hospital."""


class Author(Frozen):
    """Statements that only the authors can make, shown on the page as they are written.

    An empty statement is an open item of the page's checklists.
    """

    summary: str = Field("", description="structured summary that names the kind of model and how it was trained")
    intended_use: str = Field("", description="clinical background, purpose of the model, and who would use it where")
    hypotheses: str = Field("", description="aims and hypotheses, and whether they were fixed before the results")
    design: str = Field("", description="prospective or retrospective; what the study is for: development, evaluation")
    data_sources: str = Field("", description="where, in which setting and between which dates the data were collected")
    eligibility: str = Field("", description="who was included and excluded, and treatments that they had received")
    preparation: str = Field(
        "", description="what was done to the data before fedshift read them: patches cut, missing data, rows removed"
    )
    deidentification: str = Field("", description="how the data were de-identified")
    acquisition: str = Field("", description="how images were acquired: scanners, protocols, stains, magnification")
    predictors: str = Field("", description="inputs beside the image, why they were chosen and who assessed them")
    reference_standard: str = Field("", description="definition of the reference standard, and the reason for it")
    annotation: str = Field("", description="who annotated training and test data, how qualified, blinded to what")
    variability: str = Field("", description="variability within and between annotators, and how it was resolved")
    sample_size: str = Field("", description="the intended sample size and how it was determined")
    participants: str = Field("", description="demographic and clinical characteristics, and patients lost on the way")
    fairness: str = Field("", description="known health inequalities between groups, and what was done about them")
    robustness: str = Field("", description="how robust the results are to changes of data and assumptions")
    explainability: str = Field("", description="methods that explain predictions, and their validation; or none")
    failures: str = Field("", description="cases in which the model fails, as read by an expert")
    interpretation: str = Field("", description="interpretation of the results, beside those of other studies")
    limitations: str = Field("", description="limitations of the study")
    usability: str = Field("", description="poor or missing inputs in use, interaction with users, and next steps")
    protocol: str = Field("", description="where the full protocol of the study can be read")
    registration: str = Field("", description="registration number of the study or trial")
    ethics: str = Field("", description="ethics approval, and consent or its waiver")
    involvement: str = Field("", description="how patients and the public were involved; or not")
    data_availability: str = Field("", description="where others obtain the data, or why they cannot")
    code_availability: str = Field("", description="where others obtain code and trained weights")
    funding: str = Field("", description="funding, and the role of the funders")
    conflicts: str = Field("", description="conflicts of interest of the authors")

    def statements(self) -> dict[str, str]:
        """Return the statements that are not empty, by the name of their field, in the order of the fields."""
        texts = {name: str(getattr(self, name)).strip() for name in type(self).model_fields}
        return {name: text for name, text in texts.items() if text}


class SiteWords(Frozen):
    """What kind of place one site is, such as a scanner of a hospital."""

    kind: SiteKind = Field(
        description="hospital, collection (images of several hospitals), department or scanner (of one hospital), "
        "domain, client, or site"
    )
    of: str = Field(
        "",
        description="the hospital that a scanner or a department belongs to: a site of the study, or any name. If "
        "another site of this hospital trains, the page says so, and does not count this site as an outside hospital",
    )

    @model_validator(mode="after")
    def _part_of_a_hospital(self) -> SiteWords:
        if self.of and self.kind not in PARTS:
            raise UserError("of", f"is for a {' or a '.join(PARTS)}, and the site is a {self.kind}", "leave it out")
        return self


def _singular(noun: str) -> str:
    """Return a noun unchanged. Raises UserError unless it is one lower-case English word that is no plural."""
    if not (noun.isascii() and noun.isalpha() and noun.islower()):
        raise UserError("", f"{noun!r} is no plain noun", "write one word in small letters, such as lesion")
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is")):
        raise UserError("", f"{noun!r} is a plural", "write the singular, such as lesion")
    return noun


Unit = Annotated[str, AfterValidator(_singular), Field(max_length=30)]
"""The noun, in the singular, for what the column `patient` of the images' table identifies, such as lesion."""


Sites = Literal["internal", "external"] | Annotated[tuple[str, ...], Field(min_length=1)]
"""Sites by role, or a list of names of sites."""
YOUDEN = "youden"
"""The threshold rule that maximises Youden's index, sensitivity + specificity - 1."""
MARGIN = 0.05
"""The default margin (see `Study.margin`) for metrics in percent."""


class Primary(Frozen):
    """The comparison of two conditions that a study is made for, declared before its results are seen.

    A condition is a combination of algorithm, batch norm policy and settings.
    """

    condition: Selector = Field(description="settings that select the condition of interest, or several conditions")
    against: Selector = Field(description="settings that select the condition with which it is compared")
    smallest: float | None = Field(
        None,
        gt=0,
        description="the smallest difference that matters, in units of the headline metric: 0.01 is 1 point",
    )


class Hypothesis(Frozen):
    """A claim about a difference of the headline metric, between two conditions or between two groups of sites.

    The difference is the mean over sites of `condition` minus the mean over sites of `against`. Its sign is turned for
    metrics of which lower is better, so that it is positive if `condition` is better. Each side is one condition
    (algorithm x batch norm policy x settings) under one inference, and its mean if there are several partitions, as
    with `leave_one_out`.
    """

    claim: str = Field(min_length=1, description="the claim in a plain sentence that is true or false")
    condition: Selector = Field(
        description="settings that select the condition, and its inference (default: source, the trained network)"
    )
    at: Sites = Field("external", description="the sites at which `condition` is taken: a role, or a list of sites")
    against: Selector | None = Field(
        None, description="settings of the condition that it is compared with; default: the same condition"
    )
    against_at: Sites | None = Field(
        None, description="the sites at which `against` is taken; default: those of `condition`"
    )
    direction: Literal["above", "below", "within"] = Field(
        "above",
        description="what is claimed of the difference: it is above the margin, below it, or within plus or minus it",
    )
    margin: float = Field(0.0, description="the margin in units of the headline metric: 0.02 is 2 points")

    @model_validator(mode="after")
    def _two_sides(self) -> Hypothesis:
        if self.against is None and self.against_at is None:
            raise UserError("against", "is missing, and so is against_at: nothing is compared", "give one of the two")
        if self.direction == "within" and self.margin <= 0:
            raise UserError("margin", f"is {self.margin:g}, and nothing is within it", "give a margin above 0")
        return self

    @property
    def sides(self) -> tuple[tuple[Selector, Sites], tuple[Selector, Sites]]:
        """The two sides of the difference, each as the settings that select a condition and the sites."""
        settings = self.condition if self.against is None else self.against
        sites = self.at if self.against_at is None else self.against_at
        return (self.condition, self.at), (settings, sites)


class Threshold(Frozen, allow_inf_nan=False):
    """The rule for a decision threshold: a fixed probability, or one chosen on validation samples of internal sites.

    A sample is classified as positive if its probability of the positive class is at least the threshold.
    """

    value: float | None = Field(None, ge=0, le=1, description="a fixed threshold")
    specificity: float | None = Field(None, gt=0, le=1, description="the smallest threshold with this specificity")
    sensitivity: float | None = Field(None, gt=0, le=1, description="the largest threshold with this sensitivity")
    youden: bool = Field(False, description="the threshold with the largest sensitivity + specificity - 1")

    @model_validator(mode="after")
    def _has_one_rule(self) -> Threshold:
        if len(self._set) != 1:
            problem = f"has {len(self._set)} rules, and needs one"
            raise UserError("", problem, "give youden, {value: ...}, {specificity: ...} or {sensitivity: ...}")
        return self

    @property
    def _set(self) -> dict[str, Any]:
        """The rules that the study gives for the threshold, with their numbers, by name."""
        return {name: value for name, value in self if value is not None and value is not False}

    @property
    def rule(self) -> str:
        """The name of the rule: value, specificity, sensitivity or youden."""
        return next(iter(self._set))

    @property
    def level(self) -> float:
        """The number of the rule, such as a specificity of 0.9; 1 for the rule youden, which has none."""
        return float(self._set[self.rule])

    @property
    def label(self) -> str:
        """The rule as text for the page: `specificity 0.9`, or `youden`."""
        return YOUDEN if self.youden else f"{self.rule} {self.level:g}"


class Conformal(Frozen, allow_inf_nan=False):
    """Conformal prediction sets, which contain the right class with a declared probability at internal sites.

    For segmentation, masks that contain a declared share of each structure. Sets and masks are calibrated for each
    training and inference on validation patients of the internal sites. At external sites no probability is
    guaranteed; the share that sets or masks contain is measured.
    """

    alpha: float = Field(
        gt=0,
        lt=1,
        description="the share of sets that may miss the right class: 0.1 promises 90 %; for masks, the share of a "
        "structure that they may miss, in the mean over patients",
    )
    score: Literal["lac", "aps"] = Field(
        "lac",
        description="nonconformity score of a class: lac, 1 - its probability, which gives the smallest sets; or, for "
        "three classes and more, aps, the sum of its probability and of all larger ones",
    )
    unit: Literal["patient", "one"] = Field(
        "patient",
        description="what has a set: a patient with one class, by the mean probabilities of the images (patient), or "
        "one image of each patient, drawn at random, for patients with images of several classes (one)",
    )
    sites: Literal["pooled", "own"] = Field(
        "pooled",
        description="whose validation patients calibrate an internal site: those of all internal sites together, or "
        "its own; external sites always take those of all",
    )
    margin: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="how far below 1 - alpha the 95% interval of the measured share may reach to count as held",
    )


def _schema() -> dict[str, Any]:
    """Return the JSON schema of a threshold: `youden`, or a mapping of one other rule to its number."""
    levels = [name for name in Threshold.model_fields if name != YOUDEN]
    options = [
        {
            "type": "object",
            "properties": {name: {"type": "number", "minimum": 0, "maximum": 1}},
            "required": [name],
            "additionalProperties": False,
            "description": Threshold.model_fields[name].description,
        }
        for name in levels
    ]
    return {"anyOf": [{"const": YOUDEN, "description": Threshold.model_fields[YOUDEN].description}, *options]}


ThresholdField = Annotated[
    Threshold,
    BeforeValidator(lambda value: {YOUDEN: True} if value == YOUDEN else value),
    PlainSerializer(lambda threshold: YOUDEN if threshold.youden else {threshold.rule: threshold.level}),
    WithJsonSchema(_schema()),
]
"""A Threshold, written as `{rule: number}`, or as `youden`."""


class Grid(Frozen):
    """One entry of a study's `runs`. Keys may have lists of values; every combination of values is one run."""

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
    """A study as its YAML file declares it: its question, data, runs, analysis, and what its page shows."""

    title: str = Field(description="title of the page, in one line")
    question: str = Field("", description="the question that the study answers")
    notes: tuple[str, ...] = Field((), description="caveats and decisions, shown on the page")
    author: Author = Field(
        Author(), description="what only the authors know, for the checklists CLAIM 2024 and TRIPOD+AI on the page"
    )
    task: TaskField = Field(
        CLASSIFICATION, description="what the network predicts: classification of images, or segmentation with settings"
    )
    dataset: DatasetField = Field(description="the dataset, by name or with settings")
    partition: Annotated[tuple[Partition, ...], *MANY] = Field(
        min_length=1, description="one partition or several; every run is trained once on each of them"
    )
    sites: dict[str, SiteWords] = Field(
        {},
        description="the kind of single sites that are no hospitals, or not what the dataset says; only the page uses "
        "it, and no run changes",
    )
    unit: Annotated[tuple[Unit, ...], *MANY] = Field(
        (),
        description="what the column patient identifies, such as lesion, eye or slide; several nouns if sites differ; "
        "only the page uses them, and no run changes. Default: patient, or image if no patient is known",
    )
    model: ModelField = Field(description="the network, by name or with settings")
    norms: NormsField = Field(
        BATCH,
        description="types of the normalisation layers to which the BN policies apply: all, or some of batch, group, "
        "layer and instance; the parameters of all other layers are sent to the server",
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
    runs: tuple[Grid, ...] = Field(min_length=1, description="the runs; for a list of values, one run for each value")
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="every run is trained once with each seed"
    )
    inferences: tuple[InferenceField, ...] = Field(
        min_length=1,
        description="how images are predicted; for a setting with a list of values, one inference for each value; one "
        "job predicts all inferences of a run",
    )
    metrics: tuple[MetricName, ...] = Field(
        CLASSIFICATION.metrics, description="the metrics that are computed; default: the metrics of the task"
    )
    headline: MetricName = Field(
        CLASSIFICATION.headline, description="the metric that the page shows first; default for segmentation: dice"
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
        description="number of patients of each site, the ones with most test images, that are left out to answer all "
        "hypotheses a second time, which shows whether a few patients decide",
    )
    positive: str | None = Field(
        None, description="with two classes, the class that counts as positive; default: the second"
    )
    threshold: ThresholdField = Field(
        {"value": 0.5},
        validate_default=True,
        description="how the threshold above which a sample is positive is chosen, on validation samples of internal "
        "sites",
    )
    conformal: Conformal | None = Field(
        None,
        description="conformal prediction: sets that contain the right class with a declared probability at internal "
        "sites, or masks that miss at most a declared share of a structure there; default: none",
    )
    decision_range: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=0, lt=1)]] = Field(
        (0.05, 0.5), description="lowest and highest threshold of the figure decision_curve"
    )
    prevalence: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a prevalence of the positive class, as in a clinic, for which predictive values are given too",
    )
    control: bool | None = Field(
        None,
        description="whether a linear classifier without a network is tested beside the runs, on colour and texture of "
        "images or, for masks, on colours and edges around each pixel; default: true if the samples are images",
    )
    figures: tuple[FigureName, ...] = Field(
        ("convergence", "patches", "sites"),
        description="figures of the page, in order; with two classes, calibration and roc follow unless the list is "
        "empty",
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
        """Add the default metrics and headline of the study's task to the keys of its file, before validation."""
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
            problem = "is one, and for masks the missed share is measured on all images of a patient"
            raise UserError("conformal.unit", problem, "leave it out")
        return self

    def resampled(self, known: bool) -> str:
        """Return the noun, in the singular, for the units that confidence intervals resample.

        This is the study's `unit` (`slide or block` for several). Without one it is patient if patients are `known`,
        and else the noun for a sample, such as image.
        """
        *first, last = self.unit or ("patient" if known else self.dataset.sample_noun,)
        return " or ".join(filter(None, (", ".join(first), last)))

    @property
    def two_classes(self) -> bool:
        """True if predictions are probabilities of two classes, which thresholds, ROC and decision curves need."""
        return self.task.has_probabilities and len(self.dataset.classes) == 2


def read(path: Path, scale: Scale, settings: Sequence[str] = ()) -> Study:
    """Read a study's YAML file at a scale and validate it.

    `settings` replace settings of the file, such as `training.lr=0.01`; see `changed`. Raises UserErrors that name the
    file and every wrong key.
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
    """Return the keys of a study with one value replaced, given as `training.lr=0.01`, `runs.0.bn=local`, `seeds=[0]`.

    A number addresses a member of a list, from 0; without it, all members change. A plug-in that is given by name alone
    becomes a mapping. Values of training, dataset and partition also replace values of single entries of `runs`.
    Raises UserError if the text is no `KEY=VALUE` or the path does not exist. The new value is not validated here.
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
    """Return a copy of a part of a study in which the value at the path `keys` is replaced.

    Raises UserError, with the place `where`, if the path does not exist.
    """
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
    """Return a study in which values of training, dataset and partition in `over` also replace values of its `runs`.

    `over` holds the keys of a scale or of a command's setting.
    """
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
    """Return the JSON schema of a study's YAML file, with all plug-ins, as in `config/study.schema.json`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **shared(Study.model_json_schema())}
