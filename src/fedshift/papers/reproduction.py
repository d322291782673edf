"""The trends and published values of a study's papers, for its page and for the index of all studies."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..analysis.results import StudyResults
from ..analysis.table import Table
from . import published_values


@dataclass(frozen=True)
class Claim:
    """A trend in words. `held` is yes, no, cannot tell or not run; `doubt` says what weakens it."""

    claim: str
    held: str
    sentence: str
    doubt: str


@dataclass(frozen=True)
class Reproduction:
    """comparison.csv and trends.csv of a study. `reason` says why the trends do not count, if so."""

    compared: pd.DataFrame
    claims: list[Claim]
    reason: str

    @classmethod
    def of(cls, results: StudyResults) -> Reproduction:
        """Return the reproduction of a study. It is empty where the study names nothing published."""
        rows = [{str(k): v for k, v in row.items()} for row in results.table("trends").to_dict("records")]
        claims = [Claim(*(str(row[name]) for name in Claim.__dataclass_fields__)) for row in rows]
        reason = next((str(row["reason"]) for row in rows if row["reason"]), "")
        return cls(results.table("comparison"), claims, reason)

    @functools.cached_property
    def tables(self) -> list[tuple[Table, str]]:
        """A table for each published one, with the sentence above it."""
        return published_values.tables(self.compared)

    @property
    def held(self) -> int:
        """The number of trends that hold."""
        return sum(claim.held == "yes" for claim in self.claims)

    @property
    def judged(self) -> int:
        """The number of trends that were run."""
        return sum(claim.held != "not run" for claim in self.claims)

    def headline(self) -> dict[str, Any]:
        """Return the part of headline.json that is about the papers."""
        return {
            "trends": {"held": self.held, "judged": self.judged, "of": len(self.claims), "reason": self.reason},
            "published": published_values.counts(self.compared),
        }
