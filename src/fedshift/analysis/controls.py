"""Levels of the controls that have no network, and what each condition adds to them: controls.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..data.partition import Partition
from ..io import identity
from ..io.tables import read_table
from ..io.text import readable, require_columns
from ..metrics import Metric
from ..study.run import Run
from ..tasks import Control
from . import estimates, score
from .conditions import ALL, Condition, averaged
from .effects import Estimates
from .estimates import Estimate
from .findings import Findings
from .numbers import IDS, Names, Numbers, Row, row
from .predictions import Part, Predictions, divided
from .values import Value

COLUMNS = ["quantity", "partition", "held_out", *IDS, "role", "site", "metric", "n", "mean", "std", "seeds"]
COLUMNS += ["low", "high"]
OF_CONTROL = "control "
"""What the quantities of controls begin with in the table of numbers."""
QUANTITIES = (f"{OF_CONTROL}level", f"{OF_CONTROL}gap", f"{OF_CONTROL}difference")
Site = tuple[str, str]
"""Role and site."""


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return controls.csv, over all inferences that use no labels of a site; a control that is not there has no rows.

    level : what the control of a partition reaches, at each site and as a mean over the sites of a role (site `*`)
    gap : its headline metric as the mean over internal sites minus the mean over external ones
    difference : the headline metric of a condition minus that of the control on the same images, mean over sites

    `low` and `high` are 95% intervals over patients and, of differences, trainings. Where the study averages over
    partitions, there are means over them, with the partition `*` and the condition's family as condition_id.
    """
    found = numbers.view(*QUANTITIES)
    titles = {condition.run.partition_id: condition.held_out for condition in names.conditions.values()}
    quantity = found["quantity"].str.removeprefix(OF_CONTROL)
    return found.assign(quantity=quantity, held_out=found["partition"].map({**titles, ALL: ALL}))[COLUMNS]


def rows(study: Estimates) -> Iterator[Row]:
    """Yield the numbers of controls.csv (see `table`): the quantities QUANTITIES."""
    plan = study.names.plan
    conditions = study.names.conditions.values()
    headline = study.metrics[plan.study.headline]
    levels: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    differences: dict[tuple[str, str, str], list[Estimate]] = defaultdict(list)
    for run, partitions in _wholes(plan.controls.values()):
        partition = run.partition_id
        in_folds = [_of_control(study.predicted, run, fold) for fold in partitions]
        # without the control of a fold there is none of the whole
        by_site = {site: [parts[site] for parts in in_folds] for site in in_folds[0]} if all(in_folds) else {}
        at_sites: dict[Site, Estimate] = {}
        for metric in study.metrics.values():
            people = study.clusters[run.data.id]
            sites = {site: score.estimate(metric, parts, people) for site, parts in by_site.items()}
            for site, estimate in sites.items():
                yield _row("level", partition, *site, metric, estimate, n=len(_tested(by_site[site])))
            means = dict(_means(sites, partition, metric, study))
            for role, estimate in means.items():
                levels[role, metric.name].append(estimate)
                yield _row("level", partition, role, ALL, metric, estimate)
            if metric is headline:
                at_sites = sites
                if len(means) == 2:
                    gap = estimates.minus(means["internal"], means["external"])
                    yield _row("gap", partition, "internal", ALL, metric, gap)
        for condition in conditions:
            if condition.run.partition_id != partition:
                continue
            for key in condition.inferences:
                if plan.inferences[key].uses_labels:
                    continue
                ids: dict[str, Any] = {"condition_id": condition.id, "inference_id": key}
                gains = _differences(study, condition, key, headline, by_site, at_sites)
                for role, estimate in _means(gains, partition, headline, study):
                    differences[condition.family, key, role].append(estimate)
                    yield _row("difference", partition, role, ALL, headline, estimate, **ids)
    if averaged(conditions):
        for (role, name), parts in levels.items():
            yield _row("level", ALL, role, ALL, study.metrics[name], estimates.mean(parts))
        for (family, key, role), parts in differences.items():
            ids = {"condition_id": family, "inference_id": key}
            yield _row("difference", ALL, role, ALL, headline, estimates.mean(parts), **ids)


def _wholes(runs: Iterable[Run]) -> Iterator[tuple[Run, list[str]]]:
    """Yield the first run on each partition, or on all its folds, with the ids of these."""
    found: dict[tuple[str, Partition], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.data.id, run.partition.without_fold()].append(run)
    yield from ((members[0], [run.partition_id for run in members]) for members in found.values())


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
    numbers = rows[columns].to_numpy(dtype=float)
    parts = (part._replace(probability=numbers[members]) for members, part in divided(rows, []))
    return {(part.role, part.site): part for part in parts}


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
    quantity: str, partition: str, role: str, site: str, metric: Metric, estimate: Estimate, n: int = 0, **ids: Any
) -> Row:
    about = {"partition": partition, "role": role, "site": site, "metric": metric.name, "n": n, **ids}
    return row(f"{OF_CONTROL}{quantity}", estimate, metric.ends, quantity != "level", **about)


class Controls:
    """What the controls of a study reach, and what conditions add to them."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def __bool__(self) -> bool:
        return bool(self.findings.numbers.of(QUANTITIES[0]))

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
        about = metric or self.findings.headline.name, "", "", role, site
        return self.findings.numbers.find(f"{OF_CONTROL}level", *about, partition=partition)

    def gap(self, partition: str) -> Value:
        """Return the mean of the headline metric over internal sites minus that over external ones."""
        about = self.findings.headline.name, "", "", "internal", ALL
        return self.findings.numbers.find(f"{OF_CONTROL}gap", *about, partition=partition)

    def difference(self, id_: str, key: str, role: str = "external") -> Value:
        """Return what a condition, or a family of them, adds to the control. Positive is better."""
        condition = self.findings.names.conditions.get(id_)
        about = self.findings.headline.name, id_, key, role, ALL
        partition = condition.run.partition_id if condition else ALL
        return self.findings.better(self.findings.numbers.find(f"{OF_CONTROL}difference", *about, partition=partition))
