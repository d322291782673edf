"""The rule by which a study chooses the threshold of its operating point."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen

YOUDEN = "youden"


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
