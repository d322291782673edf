"""Levels, gaps between sites, and gains of an inference over the baseline, with their intervals.

A table here is wide: a column for each (condition, role, site, inference, metric), and a row for each seed, or for each
resample of patients. The same arithmetic on columns then gives the spread over seeds, or an interval.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.rng import stream
from ..metrics import Metric, Resampler
from ..study.plan import Plan
from ..study.run import Run
from ..study.selector import BASELINE
from . import crossed, score
from .auc import logit_interval
from .clusters import Clusters, clusters
from .conditions import ALL, CONDITION, Condition, several
from .names import IDS, LEVELS, Names
from .predictions import INFERENCE, Predictions, Samples
from .statistics import FEWEST, bootstrap, by_cluster, interval, resamples

COLUMNS = [
    *(*IDS, *CONDITION, "role", "site", "metric", "quantity"),
    *("mean", "std", "seeds", "patients", "low", "high", "low_patients", "high_patients", *INFERENCE),
]
Where = tuple[str, str, str, str]
"""Partition, role, site and metric."""
_PLACE = ["role", "site", "metric"]


def undefined(conditions: Mapping[str, Condition], scores: pd.DataFrame) -> set[Where]:
    """Return where a metric has no value in any run of a partition.

    `scores` has the columns condition_id, role, site, metric and value.
    """
    partition = scores["condition_id"].map({key: one.run.partition_id for key, one in conditions.items()})
    counts = scores.groupby([partition, *_PLACE], sort=False)["value"].count()
    return set(counts.index[counts == 0])


def effects(
    wide: pd.DataFrame,
    conditions: Mapping[str, Condition],
    baseline: str | None,
    left_out: set[Where] | frozenset[Where] = frozenset(),
) -> pd.DataFrame:
    """Return a wide table with the column levels LEVELS + quantity, from one with LEVELS.

    level : mean over the sites of a role, each site counted once
    gap : mean of the internal sites minus mean of the external ones
    loss : mean of the internal sites minus the value of an external site
    gain : what an inference adds to the baseline inference, at each site and for the mean of a role

    Sites in `left_out` (see `undefined`) count in no mean. A mean over sites one of which has no value for any other
    reason has none either. Where there are several partitions, the mean over them has the family of a condition as
    condition_id; partitions in which one role has no value do not count in it.
    """
    places = [(conditions[c].run.partition_id, *rest) for c, *rest in _tuples(wide, ["condition_id", *_PLACE])]
    level = _mean_over_sites(wide.loc[:, [place not in left_out for place in places]])
    if several(conditions[c] for c in set(wide.columns.get_level_values("condition_id"))):
        level = pd.concat([level, _mean_over_partitions(level, wide, conditions)], axis=1)
    inside, outside = (_part(level, "role", role) for role in ("internal", "external"))
    quantities = {"level": level, "gap": _minus(inside, outside, "role"), "loss": _losses(wide, inside)}
    if baseline is not None:
        both = pd.concat([wide, level], axis=1)
        others = both.loc[:, both.columns.get_level_values("inference_id") != baseline]
        quantities["gain"] = _minus(others, _part(both, "inference_id", baseline), "inference_id")
    parts = [
        part.T.assign(quantity=quantity).set_index("quantity", append=True).T
        for quantity, part in quantities.items()
        if len(part.T)
    ]
    return pd.concat(parts, axis=1) if parts else _no_columns([*LEVELS, "quantity"])


def _losses(wide: pd.DataFrame, inside: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the internal sites minus the value of each external site."""
    at_home = _replaced(inside, role=["external"] * len(inside.columns)) if len(inside.columns) else inside
    return -_minus(_part(wide, "role", "external"), at_home, "site")


def _no_columns(levels: list[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=pd.MultiIndex.from_tuples([], names=levels), dtype=float)


def _tuples(wide: pd.DataFrame, levels: list[str]) -> list[tuple[str, ...]]:
    return list(wide.columns.to_frame(index=False)[levels].itertuples(index=False, name=None))


def _mean_over_sites(wide: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the sites of each role, whose site then reads ALL."""
    return _mean(_replaced(wide, site=[ALL] * len(wide.columns))) if len(wide.columns) else wide


def _mean_over_partitions(level: pd.DataFrame, wide: pd.DataFrame, conditions: Mapping[str, Condition]) -> pd.DataFrame:
    """Return the mean over the partitions that have a mean for each role that has sites."""

    def roles(table: pd.DataFrame) -> dict[tuple[str, str], set[str]]:
        present: dict[tuple[str, str], set[str]] = defaultdict(set)
        for condition, role, metric in _tuples(table, ["condition_id", "role", "metric"]):
            present[conditions[condition].run.partition_id, metric].add(role)
        return present

    known, wanted = roles(level), roles(wide)
    partitions = [(conditions[c].run.partition_id, metric) for c, metric in _tuples(level, ["condition_id", "metric"])]
    whole = level.loc[:, [known[partition] == wanted[partition] for partition in partitions]]
    families = [conditions[c].family for c in whole.columns.get_level_values("condition_id")]
    return _mean(_replaced(whole, condition_id=families)) if len(whole.columns) else whole


def _replaced(wide: pd.DataFrame, **levels: list[str]) -> pd.DataFrame:
    """Return the table with other values in some levels of its columns."""
    return wide.set_axis(pd.MultiIndex.from_frame(wide.columns.to_frame(index=False).assign(**levels)), axis=1)


def _mean(wide: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of the columns that agree in LEVELS; NaN where one of them is NaN."""
    grouped = wide.T.groupby(level=LEVELS, sort=False)
    size = grouped.size()
    total = np.zeros((len(size), len(wide)))
    np.add.at(total, grouped.ngroup().to_numpy(), wide.T.to_numpy())
    return pd.DataFrame(total / size.to_numpy()[:, None], index=size.index, columns=wide.index).T


def _part(wide: pd.DataFrame, level: str, value: str) -> pd.DataFrame:
    return wide.loc[:, wide.columns.get_level_values(level) == value]


def _minus(left: pd.DataFrame, right: pd.DataFrame, level: str) -> pd.DataFrame:
    """Return `left` minus the columns of `right` that agree in all levels but one, where there are any."""
    bare = right.droplevel(level, axis=1)
    match = bare.columns.get_indexer(left.droplevel(level, axis=1).columns)
    both = left.loc[:, match >= 0]
    return both - bare.iloc[:, match[match >= 0]].to_numpy()


def plain(plan: Plan) -> str | None:
    """Return the id of the baseline inference: training statistics, and no labels of the site. None without one."""
    return next((k for k, i in plan.inferences.items() if i.name == BASELINE and not i.uses_labels), None)


def reported(plan: Plan, condition: Condition) -> str:
    """Return the inference whose levels are reported: the baseline if the study has it, else the first."""
    unlabelled = [k for k in condition.inferences if not plan.inferences[k].uses_labels]
    baseline = plain(plan)
    return baseline if baseline in unlabelled else (unlabelled or condition.inferences)[0]


def by_seed(scores: pd.DataFrame) -> pd.DataFrame:
    """Return scores that have the columns LEVELS as a wide table with a row for each seed."""
    return scores.pivot(index="seed", columns=LEVELS, values="value")


Arm = tuple[str, str]
"""The ids of a condition and an inference."""
Group = tuple[str, str]
"""Data and site whose patients are drawn together; an empty site for all sites that show the same images."""


class Resampled(NamedTuple):
    """Resamples of patients.

    Attributes
    ----------
    draws : a wide table with a row for each resample
    patients : the number of patients behind each column
    group : the patients that each column is about, by the first three of LEVELS
    influences : by how much each patient moves the headline metric of an arm at a site, a row for each training
        (seeds, patients); by condition, role, site and inference
    """

    draws: pd.DataFrame
    patients: pd.Series
    group: dict[tuple[str, str, str], Group]
    influences: dict[tuple[str, str, str, str], pd.DataFrame]


Scorers = dict[tuple[str, ...], list[tuple[np.ndarray, Resampler]]]
"""The cluster of each sample, and what scores resamples of them, of each training; by LEVELS."""


class _Contributions(NamedTuple):
    """Contributions of the samples of a partition to scores.

    Attributes
    ----------
    scores : by site, a row for each sample, and LEVELS + part (the columns of `Metric.per_sample`) as columns
    influences : those of `Resampled`
    scorers : by site, those of metrics that score resamples themselves
    """

    scores: dict[str, pd.DataFrame]
    influences: dict[tuple[str, str, str, str], pd.DataFrame]
    scorers: dict[str, Scorers]


def by_draw(names: Names, predicted: Predictions, samples: Samples, arms: Collection[Arm] = ()) -> Resampled:
    """Return resamples of patients, for metrics that have intervals.

    Scores of samples are first averaged over seeds; metrics that score resamples themselves (`Metric.resampler`) do so
    for each training, and are averaged then. Sites are resampled independently of each other, unless they show
    the same images under different corruptions: then an image has the same weight at all of them. All conditions,
    inferences and partitions see the same resamples of a site, a patient with the same weight in all of them: their
    differences are paired, and their means do not count a patient as several. Influences are kept of `arms` alone.
    """
    plan = names.plan
    by_data = {data: clusters(samples, data) for data in plan.data}
    tables: dict[tuple[str, str], list[tuple[pd.DataFrame, pd.DataFrame]]] = defaultdict(list)
    everyone: dict[str, set[str]] = defaultdict(set)
    group: dict[tuple[str, str, str], Group] = {}
    influences: dict[tuple[str, str, str, str], pd.DataFrame] = {}
    scorers: dict[tuple[str, str], Scorers] = defaultdict(dict)
    for partition in dict.fromkeys(run.partition_id for run in plan.runs.values()):
        runs = {key: run for key, run in plan.runs.items() if run.partition_id == partition}
        data = next(iter(runs.values())).data.id
        contributions = _per_sample(predicted, list(runs.values()), by_data[data], arms)
        influences |= contributions.influences
        for site, values in contributions.scores.items():
            scorers[data, site] |= contributions.scorers[site]
            cluster = by_data[data].of(values.index)
            tables[data, site].append(by_cluster(values, cluster))
            everyone[data].update(cluster)
            drawn_with = (data, "" if by_data[data].shared else site)
            places = _tuples(values, ["condition_id", "role"])
            group |= {(condition, role, site): drawn_with for condition, role in places}
    parts, patients = [], []
    for (data, site), both in tables.items():
        sums, counts = (pd.concat(one, axis=1).sort_index().fillna(0.0) for one in zip(*both, strict=True))
        key = ["bootstrap", data, site]
        if by_data[data].shared:
            key = ["bootstrap", data]
            sums, counts = (t.reindex(sorted(everyone[data]), fill_value=0.0) for t in (sums, counts))
        draws = bootstrap(sums.to_numpy(), counts.to_numpy(), stream(*key))
        level = _mean(pd.DataFrame(draws, columns=sums.columns))
        parts.append(_rescored(level, scorers[data, site], sums.index, stream(*key)))
        patients.append((counts > 0).sum().groupby(level=LEVELS, sort=False).min())
    if not parts:
        return Resampled(_no_columns(LEVELS), pd.Series(dtype=int, index=_no_columns(LEVELS).columns), {}, {})
    return Resampled(pd.concat(parts, axis=1), pd.concat(patients), group, influences)


def _rescored(level: pd.DataFrame, scorers: Scorers, index: pd.Index, rng: np.random.Generator) -> pd.DataFrame:
    """Return resamples with the columns of metrics that score resamples themselves, unless patients were too few.

    `index` are the clusters that `rng` draws, as it drew them for the other columns.
    """
    known = [where for where in scorers if level[where].notna().any()]
    if not known:
        return level
    trainings = {
        where: [(index.get_indexer(pd.Index(each)), scorer) for each, scorer in scorers[where]] for where in known
    }
    most, out = max(len(at) for each in trainings.values() for at, _ in each), np.empty((len(level), len(known)))
    for part, weight in resamples(len(index), rng, len(level), most):
        for column, where in enumerate(known):
            out[part, column] = np.mean([scorer(weight.take(at, axis=1)) for at, scorer in trainings[where]], axis=0)
    level.loc[:, known] = out
    return level


def _per_sample(predicted: Predictions, runs: list[Run], clusters: Clusters, arms: Collection[Arm]) -> _Contributions:
    """Return what samples and patients contribute to scores, of the seeds that are there."""
    single: dict[tuple[str, str, str, str], dict[int, pd.Series]] = defaultdict(dict)
    total: dict[str, dict[tuple[str, ...], pd.Series]] = defaultdict(dict)
    count: dict[tuple[str, ...], int] = defaultdict(int)
    scorers: dict[str, Scorers] = defaultdict(lambda: defaultdict(list))
    headline = predicted.plan.study.headline
    metrics = score.metrics(predicted.plan)
    for run, inference in predicted.every(runs):
        for site, role, samples, label, probability, _ in predicted.parts(run, inference):
            cluster = clusters.of(samples)
            for metric in metrics:
                each = metric.per_sample(label, probability)
                if each is None:
                    continue
                if metric.name == headline and (run.condition, inference) in arms:
                    place = (run.condition, role, site, inference)
                    single[place][run.seed] = influence(each.reshape(len(label), -1), cluster)
                if scorer := metric.resampler(label, probability):
                    scorers[site][run.condition, role, site, inference, metric.name].append((cluster, scorer))
                for part, values in enumerate(each.reshape(len(label), -1).T):
                    column = (run.condition, role, site, inference, metric.name, str(part))
                    added = pd.Series(values, samples)
                    total[site][column] = total[site][column] + added if column in total[site] else added
                    count[column] += 1
    wide = {
        site: pd.DataFrame({c: values / count[c] for c, values in columns.items()}).rename_axis(
            columns=[*LEVELS, "part"]
        )
        for site, columns in total.items()
    }
    influences = {place: pd.DataFrame(seeds).T.sort_index() for place, seeds in single.items()}
    return _Contributions(wide, influences, scorers)


def influence(each: np.ndarray, clusters: np.ndarray) -> pd.Series:
    """Return by how much each cluster moves the mean of column means of `each` (n, columns), to first order.

    NaN does not count. A cluster moves the mean of a column by the sum of its deviations from it, divided by the number
    of samples that count. Influences sum to zero.
    """
    known = ~np.isnan(each)
    with np.errstate(invalid="ignore", divide="ignore"):  # a column without any sample that counts is NaN
        mean = np.nansum(each, 0) / known.sum(0)
        deviation = np.where(known, each - mean, 0.0) / known.sum(0)
    return pd.Series(deviation.mean(1)).groupby(clusters).sum()


@dataclass(frozen=True)
class Measured:
    """The numbers of a study by seed and by resample, which all its intervals are made of.

    Attributes
    ----------
    seeds, resampled : single sites by LEVELS
    by_seed, by_draw : levels, gaps and gains, by LEVELS and quantity
    left_out : where a metric is not defined
    """

    names: Names
    seeds: pd.DataFrame
    resampled: Resampled
    by_seed: pd.DataFrame
    by_draw: pd.DataFrame
    left_out: set[Where]

    @functools.cached_property
    def _sites(self) -> dict[tuple[str, ...], dict[Group, int]]:
        """The patients of each group behind a level, by the id of a condition or family, role, site and the rest."""
        conditions, sites = self.names.conditions, dict[tuple[str, ...], dict[Group, int]]()
        places = self.resampled.patients.reset_index(name="number")[[*LEVELS, "number"]]
        for condition, role, site, inference, metric, number in places.itertuples(index=False, name=None):
            partition, group = conditions[condition].run.partition_id, self.resampled.group[condition, role, site]
            if (partition, role, site, metric) in self.left_out:
                continue
            for id_, at in itertools.product((condition, conditions[condition].family), (site, ALL)):
                known = sites.setdefault((id_, role, at, inference, metric), {})
                known[group] = max(number, known.get(group, 0))
        return sites

    def patients(self, where: tuple[str, ...]) -> int:
        """Return the number of patients behind a row of effects.csv, each counted once: both roles behind a gap."""
        id_, role, site, inference, metric, quantity = where
        places = [("internal", ALL), ("external", site)] if quantity in ("gap", "loss") else [(role, site)]
        known = [self._sites.get((id_, *place, inference, metric), {}) for place in places]
        return sum({group: number for groups in known for group, number in groups.items()}.values())


def measured(
    names: Names, predicted: Predictions, scores: pd.DataFrame, samples: Samples, arms: Collection[Arm] = ()
) -> Measured:
    """Return the numbers behind all intervals. `scores` has the columns LEVELS, seed and value."""
    seeds, resampled = by_seed(scores), by_draw(names, predicted, samples, arms)
    left_out = undefined(names.conditions, scores)
    by_each, by_draw_ = (
        effects(wide, names.conditions, plain(names.plan), left_out) for wide in (seeds, resampled.draws)
    )
    return Measured(names, seeds, resampled, by_each, by_draw_, left_out)


def table(numbers: Measured) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `patients`, `se`, `low` and `high` of the rows of the summary, by LEVELS, and effects.csv.

    effects.csv has the columns COLUMNS. The intervals of the summary hold patients alone, and so does `se`, the
    standard error. Those of effects.csv hold patients and trainings (`low`, `high`), and patients alone
    (`low_patients`, `high_patients`). With one training both are the same. `patients` are all those behind a number.
    """
    names, patients = numbers.names, numbers.resampled.patients
    metrics = {metric.name: metric for metric in score.metrics(names.plan)}
    bounds = _resampled(numbers.resampled.draws).join(_over_seeds(numbers.seeds)).join(patients.rename("patients"))
    rows = _rows(bounds)
    bounds[["low", "high"]] = _pairs([_alone(row, metrics[where[-1]]) for where, row in rows])
    bounds["se"] = [row.over_patients**0.5 for _, row in rows]
    out = _over_seeds(numbers.by_seed).join(_resampled(numbers.by_draw))
    fewest = _fewest(patients, names.conditions)
    out["patients"] = [fewest.get((where[0], where[4]), 0) for where, _ in _rows(out)]
    out[["low_patients", "high_patients"]] = out[["low", "high"]]
    together = [_together(row, metrics[where[4]], where[5] == "level") for where, row in _rows(out)]
    out[["low", "high"]] = _pairs(together)
    out["patients"] = [numbers.patients(where) for where, _ in _rows(out)]
    return bounds[["patients", "se", "low", "high"]], names.described(out.reset_index())[COLUMNS]


def _pairs(bounds: list[tuple[float, float]]) -> np.ndarray:
    return np.array(bounds, dtype=float).reshape(-1, 2)


def _over_seeds(wide: pd.DataFrame) -> pd.DataFrame:
    """Return mean, std and the number of seeds of each column."""
    tall = wide.T
    return pd.DataFrame({"mean": tall.mean(axis=1), "std": tall.std(axis=1), "seeds": tall.count(axis=1)})


def _resampled(wide: pd.DataFrame) -> pd.DataFrame:
    """Return `low` and `high` of each column, and its variance over resamples."""
    bounds = [(*interval(column), column.var()) for column in wide.to_numpy(dtype=float).T]
    return pd.DataFrame(bounds, index=wide.columns, columns=["low", "high", "variance"], dtype=float)


def _rows(table: pd.DataFrame) -> list[tuple[tuple[str, ...], _Row]]:
    """Return the index and the numbers of each row."""
    numbers = table.reindex(columns=_Row._fields).astype(float).itertuples(index=False, name=None)
    return list(zip(table.index, map(_Row._make, numbers), strict=True))


class _Row(NamedTuple):
    """A mean over seeds, its spread over them, and its interval and variance over resamples of so many patients."""

    mean: float
    std: float
    seeds: float
    low: float
    high: float
    variance: float
    patients: float

    @property
    def over_patients(self) -> float:
        """The variance over patients. Resampling k of them gives k - 1 parts of k."""
        return self.variance * self.patients / (self.patients - 1) if self.patients > 1 else float("nan")


def _alone(row: _Row, metric: Metric) -> tuple[float, float]:
    """Return the interval of a level over patients alone; none at 0 or 1 where that is a bound of a score."""
    if not metric.logit or (metric.has_resampler and 0 < row.mean < 1):
        return row.low, row.high
    return logit_interval(row.mean, row.over_patients)


def _together(row: _Row, metric: Metric, level: bool) -> tuple[float, float]:
    """Return the interval over patients and trainings; over patients alone where there is one training.

    Levels of percentages are cut at 0 and 1.
    """
    logit = metric.logit and level
    if row.seeds < 2 or np.isnan(row.over_patients):
        return _alone(row, metric) if logit else (row.low, row.high)
    spread = crossed.summed(row.over_patients, int(row.patients), row.std**2, int(row.seeds))
    if logit:
        return logit_interval(row.mean, spread.variance, spread.df)
    low, high = crossed.interval(row.mean, spread)
    return (max(low, 0.0), min(high, 1.0)) if level and metric.percent else (low, high)


def _fewest(patients: pd.Series, conditions: Mapping[str, Condition]) -> dict[tuple[str, str], int]:
    """Return the fewest patients at any site that has an interval, by the id of a condition or family, and metric."""
    fewest: dict[tuple[str, str], int] = {}
    enough = patients[patients >= FEWEST].reset_index(name="number")
    for condition, metric, number in enough[["condition_id", "metric", "number"]].itertuples(index=False, name=None):
        for id_ in (condition, conditions[condition].family):
            fewest[id_, metric] = min(number, fewest.get((id_, metric), number))
    return fewest
