"""Levels of the controls that have no network, and what each condition adds to them: controls.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..data.partition import Partition
from ..io import identity
from ..io.guards import require_columns
from ..io.tables import read_table
from ..io.text import readable
from ..metrics import Metric
from ..study.run import Run
from ..tasks import Control
from . import estimates, folds
from .conditions import ALL, Condition
from .effects import Estimates
from .estimates import Estimate
from .findings import Findings
from .names import IDS
from .predictions import Part, Predictions
from .values import Value

COLUMNS = ["quantity", "partition", "held_out", *IDS, "role", "site", "metric", "n", "mean", "std", "seeds"]
COLUMNS += ["low", "high"]
Site = tuple[str, str]
"""Role and site."""


def table(findings: Findings, study: Estimates) -> pd.DataFrame:
    """Return controls.csv.

    level : what the control of a partition reaches, at each site and as a mean over the sites of a role (site `*`)
    gap : its headline metric as the mean over internal sites minus the mean over external ones
    difference : the headline metric of a condition minus that of the control on the same images, mean over sites

    Differences are there for all inferences that use no labels of a site. `low` and `high` are 95% intervals over
    patients and, of differences, trainings. Where the study averages over partitions, there are means over them too:
    with the partition `*`, and with the condition's family as condition_id. Sites at which a metric is not defined
    count in no mean. A control that is not there has no rows.
    """
    return pd.DataFrame([*_rows(findings, study)], columns=COLUMNS)


def _rows(findings: Findings, study: Estimates) -> Iterator[dict[str, Any]]:
    headline = findings.headline
    levels: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    differences: dict[tuple[str, str, str], list[Estimate]] = defaultdict(list)
    titles = {condition.run.partition_id: condition.held_out for condition in findings.conditions}
    for run, partitions in _wholes(study.names.plan.controls.values()):
        partition = run.partition_id
        by_site = _by_site([_of_control(study.predicted, run, fold) for fold in partitions])
        about = {"partition": partition, "held_out": titles[partition], "condition_id": "", "inference_id": ""}
        at_sites: dict[Site, Estimate] = {}
        for metric in findings.metrics.values():
            people = study.clusters[run.data.id]
            sites = {site: folds.estimate(metric, parts, people) for site, parts in by_site.items()}
            for site, estimate in sites.items():
                yield _row("level", about, *site, metric, estimate, len(_tested(by_site[site])))
            means = dict(_means(sites, partition, metric, study))
            for role, estimate in means.items():
                levels[role, metric.name].append(estimate)
                yield _row("level", about, role, ALL, metric, estimate)
            if metric is headline:
                at_sites = sites
                if len(means) == 2:
                    gap = estimates.minus(means["internal"], means["external"])
                    yield _row("gap", about, "internal", ALL, metric, gap)
        for condition in findings.conditions:
            if condition.run.partition_id != partition:
                continue
            for key in condition.inferences:
                if findings.plan.inferences[key].uses_labels:
                    continue
                ids = {**about, "condition_id": condition.id, "inference_id": key}
                gains = _differences(study, condition, key, headline, by_site, at_sites)
                for role, estimate in _means(gains, partition, headline, study):
                    differences[condition.family, key, role].append(estimate)
                    yield _row("difference", ids, role, ALL, headline, estimate)
    if findings.averaged:
        about = {"partition": ALL, "held_out": ALL, "condition_id": "", "inference_id": ""}
        for (role, name), parts in levels.items():
            yield _row("level", about, role, ALL, findings.metrics[name], estimates.mean(parts))
        for (family, key, role), parts in differences.items():
            ids = {**about, "condition_id": family, "inference_id": key}
            yield _row("difference", ids, role, ALL, headline, estimates.mean(parts))


def _wholes(runs: Iterable[Run]) -> Iterator[tuple[Run, list[str]]]:
    """Yield the first run on each partition, or on all its folds, with the ids of these."""
    found: dict[tuple[str, Partition], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.data.id, run.partition.without_fold()].append(run)
    yield from ((members[0], [run.partition_id for run in members]) for members in found.values())


def _by_site(folds: Sequence[dict[Site, Part]]) -> dict[Site, list[Part]]:
    """Return the predictions of the controls of all folds by role and site; empty where one is not there."""
    if not all(folds):
        return {}
    return {site: [parts[site] for parts in folds] for site in folds[0]}


def _tested(parts: Sequence[Part]) -> list[str]:
    """Return the samples that the controls of all folds predict at a site, each once."""
    return list(dict.fromkeys(sample for part in parts for sample in part.samples))


def _of_control(predicted: Predictions, run: Run, partition: str) -> dict[Site, Part]:
    """Return the predictions of a control by role and site, samples sorted; empty where they are not there.

    `run` is one whose data the control predicts. Raises UserError for a table that lacks a column or holds other
    values.
    """
    path = predicted.paths.control(partition)
    if not path.exists():
        return {}
    identity.require(path, partition=partition)
    with readable(path, "table"):
        rows = read_table(path).astype({"sample": str, "site": str, "role": str, "label": int})
    columns = predicted.columns(run)
    require_columns(path, rows, dict.fromkeys(columns, "numbers"))
    rows = predicted.by_patient(run, rows.sort_values(["site", "sample"], ignore_index=True))
    return {
        (str(role), str(site)): Part(
            str(site),
            str(role),
            pd.Index(part["sample"]),
            part["label"].to_numpy(),
            part[columns].to_numpy(dtype=float),
            {},
        )
        for (role, site), part in rows.groupby(["role", "site"], sort=False)
    }


def _means(
    sites: dict[Site, Estimate], partition: str, metric: Metric, study: Estimates
) -> Iterator[tuple[str, Estimate]]:
    """Yield the mean over the sites of each role at which the metric is defined."""
    for role in ("internal", "external"):
        parts = [
            estimate
            for (own_role, site), estimate in sites.items()
            if own_role == role and study.counts(partition, role, site, metric.name)
        ]
        if parts:
            yield role, estimates.mean(parts)


def _differences(
    study: Estimates,
    condition: Condition,
    key: str,
    metric: Metric,
    controls: dict[Site, list[Part]],
    scores: dict[Site, Estimate],
) -> dict[Site, Estimate]:
    """Return a condition's headline metric minus that of the control at each site.

    Sites whose samples are not those of the control are left out.
    """
    found: dict[Site, Estimate] = {}
    tested: dict[Site, dict[str, None]] = defaultdict(dict)
    of_one_seed = [run for run in condition.runs.values() if run.seed == condition.run.seed]
    for _, parts in study.predicted.by_site(of_one_seed, key):
        for part in parts:
            tested[part.role, part.site] |= dict.fromkeys(part.samples)
    for (role, site), samples in tested.items():
        estimate = study.level(condition.id, role, key, metric.name, site)
        place = role, site
        if estimate is not None and place in controls and _tested(controls[place]) == list(samples):
            found[place] = estimates.minus(estimate, scores[place])
    return found


def _row(
    quantity: str, about: dict[str, str], role: str, site: str, metric: Metric, estimate: Estimate, n: int = 0
) -> dict[str, Any]:
    bounds = estimate.bounded(metric.ends, difference=quantity != "level")
    numbers = {"mean": estimate.mean, "std": estimate.std, "seeds": len(estimate.values)}
    numbers |= {"low": bounds.low, "high": bounds.high}
    return {"quantity": quantity, **about, "role": role, "site": site, "metric": metric.name, "n": n, **numbers}


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

    @property
    def about(self) -> Control:
        """Which control the study's task has, in words."""
        return self.findings.plan.study.task.control

    def beside(self, condition: Condition) -> tuple[str, str]:
        """Return what names the control beside a condition: its partition, and the id of their differences.

        Where numbers are averaged over held-out sites, these are all partitions, and the condition's family.
        """
        if self.findings.averaged:
            return ALL, condition.family
        return condition.run.partition_id, condition.id

    def level(self, partition: str, role: str, site: str = ALL, metric: str = "") -> Value:
        """Return what the control of a partition reaches; of the headline metric, if no other one is named."""
        return self._levels.get((partition, role, site, metric or self.findings.headline.name), Value())

    def gap(self, partition: str) -> Value:
        """Return the mean of the headline metric over internal sites minus that over external ones."""
        return self._gaps.get(partition, Value())

    def difference(self, id_: str, key: str, role: str = "external") -> Value:
        """Return what a condition, or a family of them, adds to the control. Positive is better."""
        return self.findings.better(self._differences.get((id_, key, role), Value()))
