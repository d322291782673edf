"""The numbers of a study, by name: what tables, sentences and the page are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from ..data.partition import Partition
from ..io.paths import Paths
from ..metrics import Metric
from ..study.plan import Plan
from ..study.run import Run
from . import effects, predictions, score
from .predictions import CONDITION
from .values import NAN, Value

LABELS = "uses labels of the site"
"""In the name of every inference that does."""


class Condition(NamedTuple):
    """What the runs of all seeds have in common, in the words of scores.csv."""

    algorithm: str
    bn: str
    addon: str
    held_out: str


@dataclass(frozen=True)
class Group:
    """The runs of a condition, one a seed. `title` is for people and says all but the partition.

    `asked` are the inferences that the study asks of them.
    """

    condition: Condition
    title: str
    partition: Partition
    runs: dict[str, Run]
    asked: tuple[str, ...]

    @property
    def run(self) -> Run:
        """One of its runs: the others differ in their seed alone."""
        return next(iter(self.runs.values()))

    @property
    def tests_inside(self) -> bool:
        """Whether internal sites have test samples; if not, all of theirs train or validate."""
        return self.partition.split.test > 0

    def sites(self) -> Iterator[tuple[str, str]]:
        """Role and site of those with test samples, internal ones first, in the order of the study."""
        yield from (("internal", site) for site in self.partition.internal if self.tests_inside)
        yield from (("external", site) for site in self.partition.external)


class Findings:
    """summary.csv and effects.csv of a plan, looked up by condition, role, site, inference and metric."""

    def __init__(self, plan: Plan, summary: pd.DataFrame, contrasts: pd.DataFrame) -> None:
        self.plan = plan
        self.metrics: dict[str, Metric] = {m.name: m for m in score.metrics(plan)}
        self.headline = self.metrics[plan.study.headline]
        self.groups = groups(plan)
        self.keys = list(plan.inferences)
        self.baseline = effects.plain(plan)
        self._values = self._index(summary, [])
        self._left_out = effects.undefined(summary.rename(columns={"mean": "value"}))
        self._effects = self._index(contrasts, ["quantity"])

    @classmethod
    def read(cls, plan: Plan, paths: Paths) -> Findings:
        folder = paths.study(plan.name)
        return cls(plan, *(score.read_tidy(folder / f"{name}.csv") for name in ("summary", "effects")))

    @property
    def several(self) -> bool:
        """Whether there are several partitions."""
        return several(self.groups)

    @property
    def averaged(self) -> bool:
        """Whether a mean over partitions says something: where each leaves out other sites.

        Those of the same clients (iid data, or not; more data, or less), or that leave out nothing (more clients, or
        fewer), are compared, not averaged.
        """
        clients = {g.condition.held_out: frozenset(g.partition.internal) for g in self.groups}
        leave_out = all(g.partition.external for g in self.groups)
        return self.several and leave_out and len(set(clients.values())) == len(clients)

    @property
    def tests_inside(self) -> bool:
        """Whether internal sites have test samples in any partition, so that there may be a gap."""
        return any(g.tests_inside for g in self.groups)

    def full(self, group: Group) -> str:
        """The title of a group, with its partition where there are several."""
        return full_title(group, self.several)

    def others(self, group: Group | None = None) -> list[str]:
        """All inferences but the baseline; those asked of a group."""
        return [k for k in (group.asked if group else self.keys) if k != self.baseline]

    def compared(self, group: Group | None = None) -> list[str]:
        """Inferences whose gain over the baseline is told: where that was asked for, and without labels of the site."""
        if self.baseline not in (group.asked if group else self.keys):
            return []
        return [k for k in self.others(group) if not self.plan.inferences[k].uses_labels]

    def value(self, group: Group, role: str, site: str, key: str, metric: str = "") -> Value:
        """One row of the summary; empty where it is not there."""
        return self._values.get((*group.condition, role, site, key, metric or self.headline.name), Value())

    def effect(
        self,
        quantity: str,
        group: Group,
        key: str,
        role: str = "external",
        site: str = effects.ALL,
        held_out: str | None = None,
    ) -> Value:
        """A level, gap or gain of the headline metric; see `effects.effects`."""
        condition = group.condition if held_out is None else group.condition._replace(held_out=held_out)
        return self._effects.get((*condition, role, site, key, self.headline.name, quantity), Value())

    def gap(self, group: Group, key: str, held_out: str | None = None) -> Value:
        """Inside minus outside; positive is a loss outside, also where lower is better."""
        return self.better(self.effect("gap", group, key, "internal", held_out=held_out))

    def gain(self, group: Group, key: str, role: str, site: str = effects.ALL, held_out: str | None = None) -> Value:
        """What an inference adds to the baseline; positive is better, also where lower is better."""
        return self.better(self.effect("gain", group, key, role, site, held_out))

    def better(self, value: Value) -> Value:
        """A difference, turned so that positive is better."""
        if self.headline.higher_is_better:
            return value
        return value._replace(mean=-value.mean, low=-value.high, high=-value.low)

    def recovered(self, group: Group, key: str, held_out: str | None = None) -> float:
        """Share of the external loss that an inference recovers: its external gain by the baseline's gap.

        A ratio of two means over seeds; NaN without a gap. It is no share of the gap that the inference itself has,
        since it may change internal sites too.
        """
        if self.baseline is None or key == self.baseline:
            return NAN
        gap = self.gap(group, self.baseline, held_out).mean
        return self.gain(group, key, "external", held_out=held_out).mean / gap if gap > 0 else NAN

    def left_out(self, role: str = "", metric: str = "", groups: list[Group] | None = None) -> list[str]:
        """Sites at which a metric is not defined, so that they count in no mean over sites."""
        name = metric or self.headline.name
        found = [
            site
            for g in (self.groups if groups is None else groups)
            for r, site in g.sites()
            if role in ("", r) and (g.condition.held_out, r, site, name) in self._left_out
        ]
        return list(dict.fromkeys(found))

    def without_interval(self, groups: list[Group], roles: tuple[str, ...]) -> list[str]:
        """Sites with a value of the headline metric, but too few patients for its interval."""
        found: dict[str, None] = {}
        for group in groups:
            for role, site in group.sites():
                values = [self.value(group, role, site, key) for key in self.keys] if role in roles else []
                if any(v.known and math.isnan(v.low) for v in values):
                    found[site] = None
        return list(found)

    def scored(self, group: Group, key: str) -> bool:
        """Whether any run of it has been scored, be the metric defined or not."""
        return any(self.value(group, role, site, key).seeds for role, site in group.sites())

    def worst(self, group: Group, key: str) -> str | None:
        """The external site with the worst headline value."""
        known = {s: self.value(group, "external", s, key).mean for s in group.partition.external}
        known = {s: v for s, v in known.items() if not math.isnan(v)}
        if not known:
            return None
        return (min if self.headline.higher_is_better else max)(known, key=known.__getitem__)

    def name(self, key: str) -> str:
        """An inference for people: its name, and the settings where several share it."""
        inference = self.plan.inferences[key]
        name = type(inference).__name__
        alike = [i for i in self.plan.inferences.values() if i.name == inference.name]
        specs = [i.model_dump(mode="json") for i in alike]
        single = {k: v for k, v in inference.model_dump(mode="json").items() if not isinstance(v, dict | None)}
        own = [f"{k} {v}" for k, v in single.items() if len({str(s[k]) for s in specs}) > 1]
        if inference.uses_labels:
            own.append(f"{LABELS}: {inference.labels_used}")
        return f"{name} ({', '.join(own)})" if own else name

    def _index(self, table: pd.DataFrame, extra: list[str]) -> dict[tuple[str, ...], Value]:
        keyed = effects.with_key(self.plan, table)
        levels = [*effects.LEVELS, *extra]
        columns = [c for c in Value._fields if c in keyed]
        rows = zip(
            keyed[levels].itertuples(index=False), keyed[columns].astype(object).itertuples(index=False), strict=True
        )
        return {tuple(key): Value(**dict(zip(columns, row, strict=True))) for key, row in rows}


def several(found: list[Group]) -> bool:
    """Whether groups are of several partitions."""
    return len({g.condition.held_out for g in found}) > 1


def full_title(group: Group, among_several: bool) -> str:
    """The title of a group, with its partition where there are several."""
    return f"{group.title}, held out {group.condition.held_out}" if among_several else group.title


def groups(plan: Plan) -> list[Group]:
    """The conditions of a plan, in its order."""
    found: dict[Condition, dict[str, Run]] = {}
    for name, columns in predictions.conditions(plan).items():
        found.setdefault(Condition(*(columns[c] for c in CONDITION)), {})[name] = plan.runs[name]
    return [_group(condition, runs, plan) for condition, runs in found.items()]


def _group(condition: Condition, runs: dict[str, Run], plan: Plan) -> Group:
    first = next(iter(runs.values()))
    asked = {key for name in runs for key in plan.predictions(name)}
    ordered = tuple(key for key in plan.inferences if key in asked)
    return Group(condition, _title(condition, first), first.partition, runs, ordered)


def _title(condition: Condition, run: Run) -> str:
    """`FedAvg, aggregated BN`."""
    name = condition.algorithm.replace(run.algorithm.name, type(run.algorithm).__name__, 1)
    addon = f" + {condition.addon.replace(run.addon.name, type(run.addon).__name__, 1)}" if run.addon else ""
    return f"{name}{addon}, {condition.bn.replace('_', ' ')} BN"
