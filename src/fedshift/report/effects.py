"""What a study is about: gaps between sites, and what an inference changes, with their intervals.

A table here is wide: a column for each (condition, role, site, inference, metric), and a row for each
seed, or for each resample of patients. The same arithmetic on columns then gives the spread over seeds, or
an interval.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..errors import UserError
from ..files import read_table
from ..paths import Paths
from ..rng import stream
from ..study import Plan
from . import predictions, score
from .predictions import CONDITION, INFERENCE
from .statistics import bootstrap, interval

LEVELS = [*CONDITION, "role", "site", "key", "metric"]
BASELINE = "source"
ALL = "*"
"""As held_out: the mean over all partitions; as site: the mean over all sites of a role."""


def effects(wide: pd.DataFrame, baseline: str | None) -> pd.DataFrame:
    """Columns LEVELS + quantity, from columns LEVELS.

    level : mean over the sites of a role, each site counted once
    gap : mean of the internal sites minus mean of the external ones
    gain : what an inference adds to the baseline inference, at each site and for the mean of a role

    Where there are several partitions, `held_out` = ALL is the mean over them. A mean over sites one of
    which has no value has none either.
    """
    level = _mean_over(wide, "site")
    if wide.columns.get_level_values("held_out").nunique() > 1:
        level = pd.concat([level, _mean_over(level, "held_out")], axis=1)
    inside, outside = (_part(level, "role", role) for role in ("internal", "external"))
    found = {"level": level, "gap": _minus(inside, outside, "role")}
    if baseline is not None:
        both = pd.concat([wide, level], axis=1)
        others = both.loc[:, both.columns.get_level_values("key") != baseline]
        found["gain"] = _minus(others, _part(both, "key", baseline), "key")
    named = [part.T.assign(quantity=q).set_index("quantity", append=True).T for q, part in found.items() if len(part.T)]
    return pd.concat(named, axis=1)


def _mean_over(wide: pd.DataFrame, name: str) -> pd.DataFrame:
    """The mean over a level, which then reads ALL."""
    rest = [n for n in LEVELS if n != name]
    grouped = wide.T.groupby(level=rest, sort=False)
    size = grouped.size()
    total = np.zeros((len(size), len(wide)))
    np.add.at(total, grouped.ngroup().to_numpy(), wide.T.to_numpy())  # NaN stays NaN
    mean = pd.DataFrame(total / size.to_numpy()[:, None], index=size.index, columns=wide.index)
    return mean.assign(**{name: ALL}).set_index(name, append=True).reorder_levels(LEVELS).T


def _part(wide: pd.DataFrame, level: str, value: str) -> pd.DataFrame:
    return wide.loc[:, wide.columns.get_level_values(level) == value]


def _minus(left: pd.DataFrame, right: pd.DataFrame, level: str) -> pd.DataFrame:
    """`left` minus the columns of `right` that agree in all levels but one; the rest is left out."""
    bare = right.droplevel(level, axis=1)
    match = bare.columns.get_indexer(left.droplevel(level, axis=1).columns)
    kept = left.loc[:, match >= 0]
    return kept - bare.iloc[:, match[match >= 0]].to_numpy()


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
    """The same with a row for each resample of patients, for metrics that are means over samples.

    Per-sample scores are first averaged over seeds. Sites are resampled independently of each other, and all
    conditions and inferences see the same resamples of a site, so that differences are paired.
    """
    names = predictions.conditions(plan)
    patients = {name: _patients(paths, name) for name in plan.data}
    parts: list[pd.DataFrame] = []
    for partition in {run.partition_id: None for run in plan.runs.values()}:
        runs = {k: run for k, run in plan.runs.items() if run.partition_id == partition}
        each = _per_sample(plan, paths, list(runs), names)
        known = patients[next(iter(runs.values())).data.id].reindex(each.index.get_level_values("sample"))
        for (site, role), values in each.groupby(level=["site", "role"], sort=False):
            own = known[(each.index.get_level_values("site") == site)]
            clusters = own.fillna(own.index.to_series()).to_numpy() if own.notna().any() else None
            rng = stream("bootstrap", partition, site)
            columns = [(*c[:4], role, site, *c[4:]) for c in values.columns]
            index = pd.MultiIndex.from_tuples(columns, names=LEVELS)
            parts.append(pd.DataFrame(bootstrap(values.to_numpy(), clusters, rng), columns=index))
    return pd.concat(parts, axis=1)


def _patients(paths: Paths, data: str) -> pd.Series:
    """The patient of each sample, missing where unknown."""
    path = paths.data(data) / "samples.parquet"
    try:
        table = read_table(path, ["sample", "patient"])
    except UserError:
        return pd.Series(dtype=object)
    return table.astype({"sample": str}).set_index("sample")["patient"].astype(object)


def _per_sample(plan: Plan, paths: Paths, runs: list[str], names: dict[str, dict[str, str]]) -> pd.DataFrame:
    """Per-sample scores, averaged over the seeds that are there.

    Rows are (sample, site, role), columns CONDITION + key + metric.
    """
    total: dict[tuple[str, ...], pd.Series] = {}
    count: dict[tuple[str, ...], int] = {}
    for run in runs:
        for key in plan.inferences:
            try:
                table = predictions.read(paths, plan.runs[run], key)
            except UserError:
                continue  # score() lists it in missing.json
            label = table["label"].to_numpy()
            probability = table[predictions.probabilities(table)].to_numpy(dtype=float)
            index = pd.MultiIndex.from_frame(table[["sample", "site", "role"]])
            for metric in score.metrics(plan):
                each = metric.per_sample(label, probability)
                if each is None:
                    continue
                column = (*names[run].values(), key, metric.name)
                total[column] = total.get(column, 0.0) + pd.Series(each, index)
                count[column] = count.get(column, 0) + 1
    return pd.DataFrame({column: values / count[column] for column, values in total.items()})


def table(plan: Plan, paths: Paths, scores: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The interval (`low`, `high`) of each row of the summary, and effects.csv.

    Both have the columns CONDITION, site, role, INFERENCE and metric; effects.csv has quantity, mean, std,
    seeds, low and high.
    """
    baseline = next((k for k, i in plan.inferences.items() if i.name == BASELINE), None)
    seeds, draws = by_seed(plan, scores), by_draw(plan, paths)
    spread = effects(seeds, baseline).T
    out = pd.DataFrame({"mean": spread.mean(axis=1), "std": spread.std(axis=1), "seeds": spread.count(axis=1)})
    out = out.join(intervals(effects(draws, baseline)))
    return _with_columns(plan, intervals(draws)), _with_columns(plan, out)


def intervals(wide: pd.DataFrame) -> pd.DataFrame:
    """`low` and `high` of each column."""
    bounds = [interval(wide[column].to_numpy()) for column in wide.columns]
    return pd.DataFrame(bounds, index=wide.columns, columns=["low", "high"])


def _with_columns(plan: Plan, keyed: pd.DataFrame) -> pd.DataFrame:
    """`key` spelt out as the columns of an inference."""
    return keyed.reset_index().merge(_keys(plan), on="key", how="left").drop(columns="key")
