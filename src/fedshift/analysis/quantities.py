"""The values of a study's cells by seed, from scores.csv, the record of the rounds and the ledger."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.units import FLOAT_BYTES, MIB
from ..io.tables import read_table
from ..metrics import Metric
from ..study.published import RECORDED
from .cells import UNION, Cell
from .conditions import several
from .names import LEVELS
from .predictions import Missing
from .study_results import StudyResults
from .values import inner, number

NO_LEDGER = ["run", "statistics", "quantity", "value"]


@dataclass(frozen=True)
class Measure:
    """A quantity that is compared: its name and title, its direction, and how its values are written."""

    name: str
    title: str
    higher: bool
    metric: Metric | None

    @classmethod
    def of(cls, name: str) -> Measure:
        """Return the measure of a metric, or of a quantity of RECORDED."""
        if name == "validation_accuracy":
            return cls(name, "validation accuracy", RECORDED[name], registry.build("metric", "accuracy"))
        if name in RECORDED:
            title = {"traffic": "traffic in MB"}.get(name, name.replace("_", " "))
            return cls(name, title, RECORDED[name], None)
        metric = registry.build("metric", name)
        return cls(name, inner(metric), metric.higher_is_better, metric)

    @property
    def percent(self) -> bool:
        """True where values are written in percent."""
        return bool(self.metric and self.metric.percent)

    def text(self, value: float, sign: bool = False) -> str:
        """Return a value in percent, or with three decimals."""
        if self.metric:
            return number(value, self.metric, sign)
        text = f"{value:+.3f}"
        if not sign:
            text = text.removeprefix("+")
        return text.replace("-", "−")

    def amount(self, value: float, sign: bool = False) -> str:
        """Return a difference with its unit."""
        return self.text(value, sign) + (" points" if self.percent else "")

    def gain(self, value: float, than: float) -> float:
        """Return the difference of two values, turned so that positive is better."""
        return value - than if self.higher else than - value

    def best(self, values: Iterable[Any], key: Callable[[Any], float] | None = None) -> Any:
        """Return the best of some values, judged by `key`."""
        best: Callable[..., Any] = max if self.higher else min
        return best(values, key=key)


_SERIES = {
    "training_loss": ("averaged", "loss"),
    "step_loss": ("train", "loss"),
    "validation_accuracy": ("val", "accuracy"),
}
"""Split and column of the table of rounds that hold a recorded quantity."""


class Values:
    """The values of a study's cells by seed."""

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.plan = results.plan
        self._several = several(results.names.conditions.values())
        self._scores: dict[tuple[str, ...], dict[int, float]] = {}
        columns = results.scores[[*LEVELS, "seed", "value"]]
        for *key, seed, value in columns.itertuples(index=False, name=None):
            self._scores.setdefault(tuple(key), {})[seed] = value

    def title(self, cell: Cell) -> str:
        """Return the title of a cell's condition."""
        return cell.condition.full_title(self._several)

    def by_seed(self, cell: Cell, quantity: str) -> dict[int, float]:
        """Return a metric, or a quantity of RECORDED, by seed; without the seeds that are not there."""
        if cell.networks:
            parts = [self.by_seed(replace(cell, inference=network, networks=()), quantity) for network in cell.networks]
            seeds = [seed for seed in parts[0] if all(seed in part for part in parts)]
            return {seed: float(np.mean([part[seed] for part in parts])) for seed in seeds}
        if cell.site == UNION:
            return self._pooled(cell, quantity)
        if quantity not in RECORDED:
            return self._scores.get(cell.key(quantity), {})
        runs = cell.condition.runs
        values = {run.seed: self._recorded(name, quantity).get(cell.site) for name, run in runs.items()}
        return {seed: value for seed, value in values.items() if value is not None}

    def _pooled(self, cell: Cell, metric: str) -> dict[int, float]:
        """Return a metric over the test images of all sites of the cell's role, by seed."""
        score: Metric = registry.build("metric", metric)
        pooled = {}
        for run in cell.condition.runs.values():
            try:
                parts = self.results.predictions.parts(run, cell.inference)
            except Missing:
                continue
            chosen = [part for part in parts if part.role == cell.role]
            label = np.concatenate([part.label for part in chosen])
            pooled[run.seed] = score.value(label, np.concatenate([part.probability for part in chosen]))
        return pooled

    # Cached, since a trend asks for every site of a run, and the table of rounds is long.
    @functools.cache  # noqa: B019 - lives as long as the summary is made
    def _recorded(self, run: str, quantity: str) -> dict[str, float]:
        """Return a quantity of each site, from the record of a run's rounds; empty where there is none."""
        table = self._rounds.get(run)
        if table is None:
            return {}
        if quantity == "traffic":
            sent = table.assign(moved=(table["floats_down"] + table["floats_up"]) * FLOAT_BYTES / MIB)
            series = sent.groupby("site")["moved"].sum()
        else:
            split, column = _SERIES[quantity]
            series = table[table["split"] == split].groupby("site")[column].mean()
        return {str(site): float(value) for site, value in series.items()}

    @functools.cached_property
    def _rounds(self) -> dict[str, pd.DataFrame]:
        return {str(run): rows for run, rows in self.results.rounds.groupby("run")}

    def ledger(self, cell: Cell, quantity: str, statistics: bool) -> float:
        """Return a quantity of a condition from ledger.csv; NaN where it is not there."""
        return self._ledger.get((cell.condition.run.id, statistics, quantity), math.nan)

    @functools.cached_property
    def _ledger(self) -> dict[tuple[str, bool, str], float]:
        path = self.results.files.ledger
        if not path.exists():
            return {}
        table = read_table(path, NO_LEDGER)
        return {(str(r), bool(s), str(q)): float(v) for r, s, q, v in table.itertuples(index=False)}


def incomparable(values: Values) -> str:
    """Return why nothing of a study can be compared with published values; empty if it can."""
    if values.results.synthetic:
        return "synthetic data"
    if values.plan.scale == "mini":
        return "mini scale"
    return ""


def finite(values: dict[int, float]) -> dict[int, float]:
    """Return the seeds whose value is not NaN."""
    return {seed: value for seed, value in values.items() if not math.isnan(value)}
