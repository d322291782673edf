"""What a study says of the papers: trends and published values, for its page and for the index of all studies."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..analysis import score
from ..analysis.table import Table
from ..io.paths import Paths
from ..study.plan import Plan
from . import comparison


@dataclass(frozen=True)
class Claim:
    """A trend in words. `held` is yes, no or not run; `doubt` what takes from it."""

    claim: str
    held: str
    sentence: str
    doubt: str


@dataclass(frozen=True)
class Reproduction:
    """comparison.csv and trends.csv, read. `reason`: why the trends do not count, if so."""

    compared: pd.DataFrame
    claims: list[Claim]
    reason: str

    @classmethod
    def read(cls, plan: Plan, paths: Paths) -> Reproduction:
        """Empty where the study names nothing published."""
        folder = paths.study(plan.name)
        compared, trends = (score.read_tidy(folder / f"{name}.csv") for name in ("comparison", "trends"))
        rows = [{str(k): v for k, v in row.items()} for row in trends.to_dict("records")]
        claims = [Claim(*(str(row[name]) for name in Claim.__dataclass_fields__)) for row in rows]
        return cls(compared, claims, next((str(row["reason"]) for row in rows if row["reason"]), ""))

    @functools.cached_property
    def tables(self) -> list[tuple[Table, str]]:
        """A table for each published one, with its line."""
        return comparison.tables(self.compared)

    @property
    def held(self) -> int:
        return sum(claim.held == "yes" for claim in self.claims)

    @property
    def judged(self) -> int:
        return sum(claim.held != "not run" for claim in self.claims)

    def headline(self) -> dict[str, Any]:
        """For headline.json."""
        return {
            "trends": {"held": self.held, "judged": self.judged, "of": len(self.claims), "reason": self.reason},
            "published": comparison.counts(self.compared),
        }
