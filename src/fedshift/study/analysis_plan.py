"""The analysis that a study declares before results are seen: comparison, hypotheses, threshold, prediction sets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from .published import Selector

Sites = Literal["internal", "external"] | Annotated[tuple[str, ...], Field(min_length=1)]
YOUDEN = "youden"
MARGIN = 0.05
"""The margin of a study that declares none, for metrics in percent, and of a study that is proposed."""


class Primary(Frozen):
    """The comparison that a study is made for, declared before its results are seen."""

    condition: Selector = Field(description="settings of the condition that is compared, or of several conditions")
    against: Selector = Field(description="settings of the condition that it is compared with, given in the same way")
    smallest: float | None = Field(
        None,
        gt=0,
        description="the smallest difference that matters, in units of the headline metric: 0.01 is 1 point",
    )


class Hypothesis(Frozen):
    """A claim about a difference of the headline metric, between two conditions or between two groups of sites.

    The difference is that of means over sites, `condition` minus `against`, and positive where `condition` is better,
    also where a lower metric is better. Each side is one condition under one inference; of several partitions, such as
    those of `leave_one_out`, it is the mean.
    """

    claim: str = Field(min_length=1, description="the claim in a plain sentence, which the answer is yes or no to")
    condition: Selector = Field(description="settings of the condition, and its inference; default: source")
    at: Sites = Field("external", description="the sites at which it is taken: a role, or a list of sites")
    against: Selector | None = Field(
        None, description="settings of the condition that it is compared with; default: the same condition"
    )
    against_at: Sites | None = Field(
        None, description="the sites at which `against` is taken; default: those of `condition`"
    )
    direction: Literal["above", "below", "within"] = Field(
        "above",
        description="what is claimed of the difference: it is above the margin, below it, or within it either way",
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
        """Both sides, each as settings and sites."""
        settings = self.condition if self.against is None else self.against
        sites = self.at if self.against_at is None else self.against_at
        return (self.condition, self.at), (settings, sites)


class Threshold(Frozen, allow_inf_nan=False):
    """A decision threshold: a fixed probability, or the one at which validation samples reach a target.

    Only validation samples of internal sites count. A sample is called positive if its probability of the positive
    class is the threshold or more.
    """

    value: float | None = Field(None, ge=0, le=1, description="this threshold, whatever the data")
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
        return {name: value for name, value in self if value is not None and value is not False}

    @property
    def rule(self) -> str:
        """The name of the rule: value, specificity, sensitivity or youden."""
        return next(iter(self._set))

    @property
    def level(self) -> float:
        """The number that the rule asks for; 1 where it asks for none."""
        return float(self._set[self.rule])

    @property
    def label(self) -> str:
        """The rule in a few words: `specificity 0.9`, or `youden`."""
        return YOUDEN if self.youden else f"{self.rule} {self.level:g}"


class Conformal(Frozen, allow_inf_nan=False):
    """Prediction sets: as many classes as it takes to hold the right one with a declared probability at home.

    Of masks, as many pixels as it takes to hold a declared share of each structure. Validation patients of the internal
    sites calibrate the sets, for each training and inference. At a site that took no part nothing is promised, and
    the share that sets or masks hold is measured.
    """

    alpha: float = Field(
        gt=0,
        lt=1,
        description="the share of sets that may miss the right class: 0.1 promises 90 %; of masks, the share of a "
        "structure that they may miss, in the mean over patients",
    )
    score: Literal["lac", "aps"] = Field(
        "lac",
        description="how strange a class is: lac, 1 - its probability, which gives the smallest sets; or, for three "
        "classes and more, aps, the sum of its probability and of all larger ones",
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
        0.05, ge=0, lt=1, description="how far below 1 - alpha the share may lie and still count as held"
    )


def _from_name(value: Any) -> Any:
    """Return the settings of a rule that is given by its name alone."""
    return {YOUDEN: True} if value == YOUDEN else value


def _as_declared(threshold: Threshold) -> str | dict[str, float]:
    """Return a rule as a study declares it."""
    return YOUDEN if threshold.youden else {threshold.rule: threshold.level}


def _schema() -> dict[str, Any]:
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
    Threshold, BeforeValidator(_from_name), PlainSerializer(_as_declared), WithJsonSchema(_schema())
]
