"""The values of a study's cells by seed, from scores.csv, the record of the rounds and the ledger."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..analysis import effects, predictions
from ..analysis.findings import full_title, groups, several
from ..analysis.predictions import CONDITION
from ..analysis.results import card
from ..analysis.values import inner, number
from ..core import registry
from ..core.errors import UserError
from ..io.paths import Paths
from ..io.tables import read_table
from ..metrics import Metric
from ..study.plan import Plan
from ..study.published import RECORDED
from .conditions import Cell

NO_LEDGER = ["run", "statistics", "quantity", "value"]
_MB = 4 / 2**20


@dataclass(frozen=True)
class Measure:
    """A quantity that is compared: its words, its direction, and how its values and differences are written."""

    name: str
    title: str
    higher: bool
    metric: Metric | None

    @classmethod
    def of(cls, name: str) -> Measure:
        if name in RECORDED:
            title = {"traffic": "traffic in MB"}.get(name, name.replace("_", " "))
            metric = registry.build("metric", "accuracy") if name == "validation_accuracy" else None
            return cls(name, title, RECORDED[name], metric)
        metric = registry.build("metric", name)
        return cls(name, inner(metric), metric.higher_is_better, metric)

    @property
    def percent(self) -> bool:
        return bool(self.metric and self.metric.percent)

    def text(self, value: float, sign: bool = False) -> str:
        """Percent, or three decimals."""
        if self.metric:
            return number(value, self.metric, sign)
        return f"{value:{'+' if sign else ''}.3f}".replace("-", "−")

    def amount(self, value: float) -> str:
        """A difference with its unit."""
        return f"{self.text(value)} points" if self.percent else self.text(value)


class Values:
    """What is known of a study's cells."""

    def __init__(self, plan: Plan, paths: Paths, scores: pd.DataFrame) -> None:
        self.plan, self.paths = plan, paths
        self._conditions = predictions.conditions(plan)
        found = groups(plan)
        self._titles = {run: full_title(group, several(found)) for group in found for run in group.runs}
        columns = [*CONDITION, "role", "site", "key", "metric", "seed", "value"]
        keyed = effects.with_key(plan, scores)[columns]
        self._scores: dict[tuple[str, ...], dict[int, float]] = {}
        for *key, seed, value in keyed.itertuples(index=False, name=None):
            self._scores.setdefault(tuple(key), {})[seed] = value

    def title(self, cell: Cell) -> str:
        """What people call its condition."""
        return self._titles[cell.condition.runs[0]]

    def key(self, cell: Cell, metric: str) -> tuple[str, ...]:
        """The values of effects.LEVELS."""
        about = self._conditions[cell.condition.runs[0]]
        return (*(about[c] for c in CONDITION), cell.role, cell.site, cell.inference, metric)

    def by_seed(self, cell: Cell, of: str) -> dict[int, float]:
        """A metric, or a quantity of RECORDED, by seed; without the seeds that are not there."""
        if of not in RECORDED:
            return self._scores.get(self.key(cell, of), {})
        found = {self.plan.runs[name].seed: self._recorded(name, of).get(cell.site) for name in cell.condition.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    @functools.cache  # noqa: B019 - lives as long as the summary is made
    def _recorded(self, run: str, of: str) -> dict[str, float]:
        """A quantity of each site, from the record of a run's rounds; nothing where there is none."""
        try:
            table = read_table(self.paths.run(run) / "rounds.parquet")
        except UserError:
            return {}
        if of == "traffic":
            sent = table.assign(moved=(table["floats_down"] + table["floats_up"]) * _MB)
            series = sent.groupby("site")["moved"].sum()
        else:
            split, column = {"training_loss": ("train", "loss"), "validation_accuracy": ("val", "accuracy")}[of]
            series = table[table["split"] == split].groupby("site")[column].mean()
        return {str(site): float(value) for site, value in series.items()}

    def ledger(self, cell: Cell, quantity: str, statistics: bool) -> float:
        """What ledger.csv says of a condition; NaN where it says nothing."""
        return self._ledger.get((cell.condition.runs[0], statistics, quantity), math.nan)

    @functools.cached_property
    def _ledger(self) -> dict[tuple[str, bool, str], float]:
        path = self.paths.study(self.plan.name) / "ledger.csv"
        table = read_table(path, NO_LEDGER) if path.exists() else pd.DataFrame(columns=NO_LEDGER)
        return {(str(r), bool(s), str(q)): float(v) for r, s, q, v in table.itertuples(index=False)}

    @functools.cached_property
    def synthetic(self) -> bool:
        """Whether any of the study's images are made up."""
        return any(card(self.paths, data)["synthetic"] for data in self.plan.data.values())


def incomparable(values: Values) -> str:
    """Why nothing of a study is to be held against what was published; empty if it is."""
    return "synthetic data" if values.synthetic else "mini scale" if values.plan.scale == "mini" else ""


def finite(values: dict[int, float]) -> Any:
    """The seeds with a value."""
    return {seed: value for seed, value in values.items() if not math.isnan(value)}
