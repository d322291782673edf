"""Hypotheses of a study, registered in its YAML file before results are seen. Imports neither torch nor pandas."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from .selector import Selector

Sites = Literal["internal", "external"] | Annotated[tuple[str, ...], Field(min_length=1)]


class Hypothesis(Frozen):
    """A claim about a difference of the headline metric, between two conditions or between two groups of sites.

    The difference is that of means over sites, `condition` minus `against`, and positive where `condition` is better,
    also where a lower metric is better. Each side is one condition under one inference.
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
