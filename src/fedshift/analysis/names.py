"""Translation between ids and the words that people read: the one place where both meet.

Everything else in the package is keyed by LEVELS: the id of a condition, role, site, the id of an inference, metric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from .conditions import ALL, CONDITION, conditions
from .predictions import INFERENCE, TYPES, inferences

if TYPE_CHECKING:
    from ..study.plan import Plan

IDS = ["condition_id", "inference_id"]
LEVELS = ["condition_id", "role", "site", "inference_id", "metric"]
"""The columns that identify one number of a study, but for its seed."""


class Names:
    """The conditions and inferences of a plan, by id, with the columns that describe them in words."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.conditions = conditions(plan)
        self.inferences = inferences(plan)

    def identified(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Return rows of scores.csv with the columns IDS, without rows of runs or inferences that the plan has not.

        The id of the condition follows from the run. The columns INFERENCE differ between any two inferences of a
        plan (see `predictions.inferences`), so that the id of the inference follows from them.
        """
        ids = {tuple(words[name] for name in INFERENCE): key for key, words in self.inferences.items()}
        runs = {name: run.condition for name, run in self.plan.runs.items()}
        columns = (scores[name].astype(object).where(scores[name].notna(), None) for name in INFERENCE)
        inference = pd.Series([ids.get(words) for words in zip(*columns, strict=True)], scores.index, dtype=object)
        rows = scores.assign(condition_id=scores["run"].map(runs), inference_id=inference)
        return rows.dropna(subset=IDS).reset_index(drop=True)

    def described(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table that has the columns IDS with the columns CONDITION and INFERENCE added."""
        words = {one.id: one.words for one in self.conditions.values()}
        words |= {one.family: one.words | {"held_out": ALL} for one in self.conditions.values()}
        condition = {name: [words[id_][name] for id_ in table["condition_id"]] for name in CONDITION}
        chosen = [self.inferences[id_] for id_ in table["inference_id"]]
        inference = {name: pd.array([one[name] for one in chosen], dtype=TYPES.get(name, "str")) for name in INFERENCE}
        return table.assign(**condition, **inference)
