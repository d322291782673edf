"""What a study is about: gaps between sites, and what an inference changes, with their intervals.

A table here is wide: a column for each (condition, role, site, inference, metric), and a row for each
seed, or for each resample of patients. The same arithmetic on columns then gives the spread over seeds, or
an interval.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..core.errors import UserError
from ..core.rng import stream
from ..io.paths import Paths
from ..io.tables import read_table
from ..study.plan import Plan
from . import predictions, score
from .predictions import CONDITION, INFERENCE
from .statistics import bootstrap, by_cluster, interval

LEVELS = [*CONDITION, "role", "site", "key", "metric"]
BASELINE = "source"
ALL = "*"
"""As held_out: the mean over all partitions; as site: the mean over all sites of a role."""


_WHERE = ["held_out", "role", "site", "metric"]


def undefined(scores: pd.DataFrame) -> set[tuple[str, ...]]:
    """Where a metric has no value in any run: (held_out, role, site, metric), from scores or a table like them."""
    counts = scores.groupby(_WHERE, sort=False)["value"].count()
    return set(counts.index[counts == 0])


def effects(
    wide: pd.DataFrame, baseline: str | None, left_out: set[tuple[str, ...]] | frozenset[tuple[str, ...]] = frozenset()
) -> pd.DataFrame:
    """Columns LEVELS + quantity, from columns LEVELS.

    level : mean over the sites of a role, each site counted once
    gap : mean of the internal sites minus mean of the external ones
    gain : what an inference adds to the baseline inference, at each site and for the mean of a role

    Sites in `left_out`, as of `undefined`, count in no mean; a mean over sites one of which has no value for any
    other reason has none either. Where there are several partitions, `held_out` = ALL is the mean over them, without
    those of which one role has no value.
    """
    defined = [where not in left_out for where in _tuples(wide, _WHERE)]
    level = _mean_over(wide.loc[:, defined], "site")
    if wide.columns.get_level_values("held_out").nunique() > 1:
        level = pd.concat([level, _mean_over(_whole(level, wide), "held_out")], axis=1)
    inside, outside = (_part(level, "role", role) for role in ("internal", "external"))
    found = {"level": level, "gap": _minus(inside, outside, "role")}
    if baseline is not None:
        both = pd.concat([wide, level], axis=1)
        others = both.loc[:, both.columns.get_level_values("key") != baseline]
        found["gain"] = _minus(others, _part(both, "key", baseline), "key")
    named = [part.T.assign(quantity=q).set_index("quantity", append=True).T for q, part in found.items() if len(part.T)]
    return pd.concat(named, axis=1) if named else _no_columns([*LEVELS, "quantity"])


def _no_columns(levels: list[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=pd.MultiIndex.from_tuples([], names=levels), dtype=float)


def _tuples(wide: pd.DataFrame, levels: list[str]) -> list[tuple[str, ...]]:
    return list(wide.columns.to_frame(index=False)[levels].itertuples(index=False, name=None))


def _whole(level: pd.DataFrame, wide: pd.DataFrame) -> pd.DataFrame:
    """The means of those partitions that have one for each role that has sites."""
    pair = ["held_out", "metric"]
    has, wants = (t.columns.to_frame(index=False).groupby(pair)["role"].nunique().to_dict() for t in (level, wide))
    return level.loc[:, [has[where] == wants[where] for where in _tuples(level, pair)]]


def _mean_over(wide: pd.DataFrame, name: str) -> pd.DataFrame:
    """The mean over a level, which then reads ALL."""
    if wide.empty:
        return wide
    mean = _mean(wide, [n for n in LEVELS if n != name]).T
    return mean.assign(**{name: ALL}).set_index(name, append=True).reorder_levels(LEVELS).T


def _mean(wide: pd.DataFrame, levels: list[str]) -> pd.DataFrame:
    """The mean of the columns that agree in `levels`; NaN where one of them is."""
    grouped = wide.T.groupby(level=levels, sort=False)
    size = grouped.size()
    total = np.zeros((len(size), len(wide)))
    np.add.at(total, grouped.ngroup().to_numpy(), wide.T.to_numpy())
    return pd.DataFrame(total / size.to_numpy()[:, None], index=size.index, columns=wide.index).T


def _part(wide: pd.DataFrame, level: str, value: str) -> pd.DataFrame:
    return wide.loc[:, wide.columns.get_level_values(level) == value]


def _minus(left: pd.DataFrame, right: pd.DataFrame, level: str) -> pd.DataFrame:
    """`left` minus the columns of `right` that agree in all levels but one; the rest is left out."""
    bare = right.droplevel(level, axis=1)
    match = bare.columns.get_indexer(left.droplevel(level, axis=1).columns)
    kept = left.loc[:, match >= 0]
    return kept - bare.iloc[:, match[match >= 0]].to_numpy()


def plain(plan: Plan) -> str | None:
    """The inference that others are held against: training statistics, and no labels of the site."""
    return next((k for k, i in plan.inferences.items() if i.name == BASELINE and not i.uses_labels), None)


def by_seed(plan: Plan, scores: pd.DataFrame) -> pd.DataFrame:
    """scores.csv as a wide table with a row for each seed."""
    return with_key(plan, scores).pivot(index="seed", columns=LEVELS, values="value")


def _keys(plan: Plan) -> pd.DataFrame:
    """What scores.csv says of each inference, and its id in the column `key`."""
    rows = [{"key": key, **columns} for key, columns in predictions.inferences(plan).items()]
    return pd.DataFrame(rows).astype(score.TYPES)


def with_key(plan: Plan, table: pd.DataFrame) -> pd.DataFrame:
    """A table with the columns INFERENCE, and the id of the inference added as the column `key`."""
    return table.merge(_keys(plan), on=INFERENCE, how="inner")


def by_draw(plan: Plan, paths: Paths) -> pd.DataFrame:
    """The same with a row for each resample of patients, for metrics that are made of what each sample adds.

    Per-sample scores are first averaged over seeds. Sites are resampled independently of each other, but for those that
    show the same images in another guise, of which an image has the same weight everywhere. All conditions, inferences
    and partitions see the same resamples of a site, a patient with the same weight in all of them: their differences
    are paired, and their means are not taken for more patients than there are.
    """
    names = predictions.conditions(plan)
    clusters = {name: _clusters(paths, name) for name in plan.data}
    found: dict[tuple[str, str], list[tuple[pd.DataFrame, pd.DataFrame]]] = defaultdict(list)
    everyone: dict[str, set[str]] = defaultdict(set)
    for partition in {run.partition_id: None for run in plan.runs.values()}:
        runs = {k: run for k, run in plan.runs.items() if run.partition_id == partition}
        data = next(iter(runs.values())).data.id
        for site, values in _per_sample(plan, paths, list(runs), names).items():
            of = clusters[data].of.reindex(values.index)
            of = of.fillna(values.index.to_series())
            found[data, site].append(by_cluster(values, of.to_numpy()))
            everyone[data].update(of)
    parts = []
    for (data, site), tables in found.items():
        sums, counts = (pd.concat(both, axis=1).sort_index().fillna(0.0) for both in zip(*tables, strict=True))
        key = ["bootstrap", data, site]
        if clusters[data].shared:
            key = ["bootstrap", data]
            sums, counts = (t.reindex(sorted(everyone[data]), fill_value=0.0) for t in (sums, counts))
        draws = bootstrap(sums.to_numpy(), counts.to_numpy(), stream(*key))
        parts.append(_mean(pd.DataFrame(draws, columns=sums.columns), LEVELS))
    return pd.concat(parts, axis=1) if parts else _no_columns(LEVELS)


class _Clusters(NamedTuple):
    """What is resampled as one: by sample, missing where unknown; and whether several sites hold the same."""

    of: pd.Series
    shared: bool


def _clusters(paths: Paths, data: str) -> _Clusters:
    """The image that a sample is a guise of, where sites show the same ones; else its patient."""
    try:
        table = read_table(paths.data(data) / "samples.parquet")
    except UserError:
        return _Clusters(pd.Series(dtype=object), shared=False)
    shared = "base" in table
    known = table.astype({"sample": str}).set_index("sample")["base" if shared else "patient"].astype(object)
    return _Clusters(known.where(known.isna(), known.astype(str)), shared)


def _per_sample(plan: Plan, paths: Paths, runs: list[str], names: dict[str, dict[str, str]]) -> dict[str, pd.DataFrame]:
    """Per-sample scores of each site, averaged over the seeds that are there.

    Rows are samples, columns LEVELS + part: the columns of `Metric.per_sample`.
    """
    total: dict[str, dict[tuple[str, ...], pd.Series]] = defaultdict(dict)
    count: dict[tuple[str, ...], int] = defaultdict(int)
    for run in runs:
        for key in plan.predictions(run):
            try:
                table = predictions.read(plan, paths, plan.runs[run], key)
            except UserError:
                continue  # score() lists it in missing.json
            classes = predictions.probabilities(table)
            for _, group in table.groupby(predictions.SITE, sort=False):
                site, role = str(group["site"].iloc[0]), str(group["role"].iloc[0])
                label, probability = group["label"].to_numpy(), group[classes].to_numpy(dtype=float)
                for metric in score.metrics(plan):
                    each = metric.per_sample(label, probability)
                    if each is None:
                        continue
                    for part, values in enumerate(each.reshape(len(label), -1).T):
                        column = (*names[run].values(), role, site, key, metric.name, str(part))
                        added = pd.Series(values, group["sample"])
                        total[site][column] = total[site][column] + added if column in total[site] else added
                        count[column] += 1
    return {
        site: pd.DataFrame({c: values / count[c] for c, values in columns.items()}).rename_axis(
            columns=[*LEVELS, "part"]
        )
        for site, columns in total.items()
    }


def table(plan: Plan, paths: Paths, scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The interval (`low`, `high`) of each row of the summary, and effects.csv.

    Both have the columns CONDITION, site, role, INFERENCE and metric; effects.csv has quantity, mean, std,
    seeds, low and high.
    """
    baseline = plain(plan)
    seeds, draws, left_out = by_seed(plan, scores), by_draw(plan, paths), undefined(scores)
    spread = effects(seeds, baseline, left_out).T
    out = pd.DataFrame({"mean": spread.mean(axis=1), "std": spread.std(axis=1), "seeds": spread.count(axis=1)})
    out = out.join(intervals(effects(draws, baseline, left_out)))
    return _with_columns(plan, intervals(draws)), _with_columns(plan, out)


def intervals(wide: pd.DataFrame) -> pd.DataFrame:
    """`low` and `high` of each column."""
    bounds = [interval(wide[column].to_numpy()) for column in wide.columns]
    return pd.DataFrame(bounds, index=wide.columns, columns=["low", "high"])


def _with_columns(plan: Plan, keyed: pd.DataFrame) -> pd.DataFrame:
    """`key` spelt out as the columns of an inference."""
    return keyed.reset_index().merge(_keys(plan), on="key", how="left").drop(columns="key")
