"""Levels of the controls that have no network, and what each condition adds to them: controls.csv."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Set
from typing import Any

import numpy as np
import pandas as pd

from ..io.guards import require_columns
from ..io.paths import Paths
from ..io.tables import read_table
from ..io.text import readable
from ..metrics import Metric
from ..study.plan import Plan
from . import predictions
from .auc import logit_interval
from .clusters import Clusters, clusters
from .conditions import ALL, Condition
from .effects import Where
from .estimates import Estimate, of_means, over_sites, over_trainings
from .findings import Findings
from .names import IDS, Names
from .predictions import Predictions, Samples
from .values import Value

COLUMNS = ["quantity", "partition", "held_out", *IDS, "role", "site", "metric", "n", "mean", "std", "seeds"]
COLUMNS += ["low", "high"]
Site = tuple[str, str]
"""Role and site."""


def table(
    findings: Findings, names: Names, predicted: Predictions, samples: Samples, left_out: Set[Where]
) -> pd.DataFrame:
    """Return controls.csv.

    level : what the control of a partition reaches, at each site and as a mean over the sites of a role (site `*`)
    gap : its headline metric as the mean over internal sites minus the mean over external ones
    difference : the headline metric of a condition minus that of the control on the same images, mean over sites

    Differences are there for all inferences that use no labels of a site. `low` and `high` are 95% intervals over
    patients and, of differences, trainings. Where the study averages over partitions, there are means over them too:
    with the partition `*`, and with the condition's family as condition_id. Sites in `left_out` (see
    `effects.undefined`) count in no mean. A control that is not there has no rows.
    """
    rows = [*_rows(findings, names, predicted, samples, left_out)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(
    findings: Findings, names: Names, predicted: Predictions, samples: Samples, left_out: Set[Where]
) -> Iterator[dict[str, Any]]:
    plan, headline = names.plan, findings.headline
    levels: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    differences: dict[tuple[str, str, str], list[Estimate]] = defaultdict(list)
    titles = {condition.run.partition_id: condition.held_out for condition in findings.conditions}
    known = functools.cache(functools.partial(clusters, samples))
    for partition, run in plan.controls.items():
        by_site = _of_control(predicted.paths, partition)
        reference: dict[tuple[str, Site], np.ndarray] = {}
        about = {"partition": partition, "held_out": titles[partition], "condition_id": "", "inference_id": ""}
        for metric in findings.metrics.values():
            sites: dict[Site, Estimate] = {}
            for site, rows in by_site.items():
                each = _per_sample(metric, rows)
                reference[metric.name, site] = each
                sites[site] = _estimate(metric, rows, each, known(run.data.id).at_sites(rows))
                yield _row("level", about, *site, metric, sites[site], len(rows))
            means = dict(_means(sites, partition, metric, left_out))
            for role, one in means.items():
                levels[role, metric.name].append(one)
                yield _row("level", about, role, ALL, metric, one)
            if metric is headline and len(means) == 2:
                yield _row("gap", about, "internal", ALL, metric, means["internal"].minus(means["external"]))
        for condition in findings.conditions if by_site else ():
            if condition.run.partition_id != partition:
                continue
            for key in _unlabelled(plan, condition):
                ids = {**about, "condition_id": condition.id, "inference_id": key}
                gains = _differences(predicted, condition, key, headline, by_site, reference, known(run.data.id))
                for role, one in _means(gains, partition, headline, left_out):
                    differences[condition.family, key, role].append(one)
                    yield _row("difference", ids, role, ALL, headline, one)
    if findings.averaged:
        about = {"partition": ALL, "held_out": ALL, "condition_id": "", "inference_id": ""}
        for (role, name), parts in levels.items():
            yield _row("level", about, role, ALL, findings.metrics[name], over_sites(parts))
        for (family, key, role), parts in differences.items():
            if len({len(part.values) for part in parts}) == 1:
                ids = {**about, "condition_id": family, "inference_id": key}
                yield _row("difference", ids, role, ALL, headline, over_sites(parts))


def _unlabelled(plan: Plan, condition: Condition) -> list[str]:
    return [key for key in condition.inferences if not plan.inferences[key].uses_labels]


def _of_control(paths: Paths, partition: str) -> dict[Site, pd.DataFrame]:
    """Return the predictions of a control by role and site, samples sorted; empty where they are not there.

    Raises UserError for a table that lacks a column or holds other values.
    """
    path = paths.control(partition)
    if not path.exists():
        return {}
    with readable(path, "table"):
        rows = read_table(path).astype({"sample": str, "site": str, "role": str, "label": int})
    require_columns(path, rows, dict.fromkeys(predictions.probabilities(rows), "numbers"))
    rows = rows.sort_values(["site", "sample"], ignore_index=True)
    return {(str(role), str(site)): part for (role, site), part in rows.groupby(["role", "site"], sort=False)}


def _per_sample(metric: Metric, rows: pd.DataFrame) -> np.ndarray:
    """Return the contributions of samples to a metric, (n, 0) where it has none."""
    p = rows[predictions.probabilities(rows)].to_numpy(dtype=float)
    each = metric.per_sample(rows["label"].to_numpy(), p)
    return np.empty((len(rows), 0)) if each is None else each.reshape(len(rows), -1)


def _estimate(metric: Metric, rows: pd.DataFrame, each: np.ndarray, cluster: np.ndarray) -> Estimate:
    """Return the level of a control at a site; without influences where a metric has no contributions of samples."""
    if each.shape[1]:
        return of_means(each, cluster)
    p = rows[predictions.probabilities(rows)].to_numpy(dtype=float)
    return Estimate(np.array([metric.value(rows["label"].to_numpy(), p)]), pd.Series(dtype=float), 0)


def _means(
    sites: dict[Site, Estimate], partition: str, metric: Metric, left_out: Set[Where]
) -> Iterator[tuple[str, Estimate]]:
    """Yield the mean over the sites of each role at which the metric is defined."""
    for role in ("internal", "external"):
        parts = [
            one for (r, site), one in sites.items() if r == role and (partition, r, site, metric.name) not in left_out
        ]
        if parts and len({len(part.values) for part in parts}) == 1:
            yield role, over_sites(parts)


def _differences(
    predicted: Predictions,
    condition: Condition,
    key: str,
    metric: Metric,
    controls: dict[Site, pd.DataFrame],
    reference: dict[tuple[str, Site], np.ndarray],
    known: Clusters,
) -> dict[Site, Estimate]:
    """Return a condition's headline metric minus that of the control, at each site, for the trainings that are there.

    Sites whose samples are not those of the control are left out.
    """
    trainings: dict[Site, list[Estimate]] = defaultdict(list)
    for _, table in predicted.readable(condition.runs.values(), key):
        for (role, site), rows in table.groupby(["role", "site"], sort=False):
            place = str(role), str(site)
            control = controls.get(place)
            if control is None or list(control["sample"]) != list(rows["sample"]):
                continue
            each, other = _per_sample(metric, rows), reference[metric.name, place]
            if each.shape[1]:
                trainings[place].append(of_means(each - other, known.at_sites(rows)))
            else:
                ours, theirs = (_estimate(metric, part, each, np.empty(0)) for part in (rows, control))
                trainings[place].append(ours.minus(theirs))
    return {place: over_trainings(each) for place, each in trainings.items()}


def _row(
    quantity: str, about: dict[str, str], role: str, site: str, metric: Metric, one: Estimate, n: int = 0
) -> dict[str, Any]:
    low, high = one.interval()
    if quantity == "level" and low == low:
        variance, df = one.spread
        low, high = logit_interval(one.mean, variance, df) if metric.logit else _cut(low, high, metric)
    numbers = {"mean": one.mean, "std": one.std, "seeds": len(one.values), "low": low, "high": high}
    return {"quantity": quantity, **about, "role": role, "site": site, "metric": metric.name, "n": n, **numbers}


def _cut(low: float, high: float, metric: Metric) -> tuple[float, float]:
    return (max(low, 0.0), min(high, 1.0)) if metric.percent else (low, high)


class Controls:
    """The rows of controls.csv by partition and condition."""

    def __init__(self, findings: Findings, rows: pd.DataFrame) -> None:
        self.findings = findings
        self._levels: dict[tuple[str, ...], Value] = {}
        self._gaps: dict[str, Value] = {}
        self._differences: dict[tuple[str, ...], Value] = {}
        for row in rows.to_dict("records"):
            numbers = {name: row[name] for name in ("mean", "std", "seeds", "low", "high", "n")}
            if row["quantity"] == "level":
                self._levels[row["partition"], row["role"], row["site"], row["metric"]] = Value(**numbers)
            elif row["quantity"] == "gap":
                self._gaps[row["partition"]] = Value(**numbers)
            else:
                self._differences[row["condition_id"], row["inference_id"], row["role"]] = Value(**numbers)

    def __bool__(self) -> bool:
        return bool(self._levels)

    def level(self, partition: str, role: str, site: str = ALL, metric: str = "") -> Value:
        """Return what the control of a partition reaches; of the headline metric, if no other one is named."""
        return self._levels.get((partition, role, site, metric or self.findings.headline.name), Value())

    def gap(self, partition: str) -> Value:
        """Return the mean of the headline metric over internal sites minus that over external ones."""
        return self._gaps.get(partition, Value())

    def difference(self, id_: str, key: str, role: str = "external") -> Value:
        """Return what a condition, or a family of them, adds to the control. Positive is better."""
        return self.findings.better(self._differences.get((id_, key, role), Value()))
