"""Scores of the control (a simple classifier without a network), and differences of conditions to it: controls.csv."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from ..data.partition import Partition
from ..io import identity
from ..io.paths import IDS
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
from .numbers import Names, Numbers, Row, row
from .predictions import Part, Predictions, divided
from .values import Value

COLUMNS = ["quantity", "partition", "held_out", *IDS, "role", "site", "metric", "n", "mean", "std", "seeds"]
COLUMNS += ["low", "high"]
OF_CONTROL = "control "
"""Prefix of the quantities of controls in numbers.parquet."""
QUANTITIES = (f"{OF_CONTROL}level", f"{OF_CONTROL}gap", f"{OF_CONTROL}difference")
Site = tuple[str, str]
"""Role and site."""


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return controls.csv from the numbers of a study; a partition without a control has no rows.

    level : the score of the control of a partition, at each site and as a mean over the sites of a role (site `*`)
    gap : its headline metric as mean over internal sites minus mean over external sites
    difference : the headline metric of a condition minus the control's on the same images, as mean over sites, for each
        inference that uses no labels of a site

    `low` and `high` are 95% intervals over patients and, for differences, trainings. If the study averages over
    partitions, there are rows for the means, with the partition `*` and the condition's family as condition_id.
    """
    found = numbers.view(*QUANTITIES)
    titles = {condition.run.partition_id: condition.held_out for condition in names.conditions.values()}
    quantity = found["quantity"].str.removeprefix(OF_CONTROL)
    return found.assign(quantity=quantity, held_out=found["partition"].map({**titles, ALL: ALL}))[COLUMNS]


def rows(study: Estimates) -> Iterator[Row]:
    """Yield the numbers of controls.csv (see `table`) as rows of numbers.parquet: the quantities QUANTITIES."""
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
    """Yield one run for each partition, with the ids of the partitions of all folds of cross-validation."""
    found: dict[tuple[str, Partition], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.data.id, run.partition.without_fold()].append(run)
    yield from ((members[0], [run.partition_id for run in members]) for members in found.values())


def _tested(parts: Sequence[Part]) -> list[str]:
    """Return the names of the samples of some predictions, each once, in their order."""
    return list(dict.fromkeys(sample for part in parts for sample in part.samples))


def _of_control(predicted: Predictions, run: Run, partition: str) -> dict[Site, Part]:
    """Return the predictions of the control of a partition by role and site; {} if the control has not been run.

    The control is a classifier without a network. `partition` is the id of the partition, and `run` a run on the same
    data. Samples are sorted by name. Raises UserError for a table that lacks a column or holds text in a column of
    numbers.
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
    """Yield each role with the mean of a metric over its sites.

    `sites` maps role and site to the score. Sites that count in no mean of this metric are left out.
    """
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
    """Return the headline metric of a condition minus the control's, by role and site, under the inference `key`.

    Sites at which the condition was tested on other samples than the control are left out. `controls` are the
    predictions of the control (one for each fold), and `scores` its estimates.
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
    """Return a row of numbers.parquet for a quantity of a control."""
    about = {"partition": partition, "role": role, "site": site, "metric": metric.name, "n": n, **ids}
    return row(f"{OF_CONTROL}{quantity}", estimate, metric.ends, quantity != "level", **about)


class Controls:
    """The scores of a study's controls (classifiers without a network), looked up in its numbers.

    It is false in a condition if no control has been run.
    """

    def __init__(self, findings: Findings) -> None:
        self.findings = findings

    def __bool__(self) -> bool:
        return bool(self.findings.numbers.of(QUANTITIES[0]))

    @property
    def about(self) -> Control:
        """The control (classifier without a network) of the study's task, with its description in words."""
        return self.findings.plan.study.task.control

    def beside(self, condition: Condition) -> tuple[str, str]:
        """Return the partition of the control that is compared with a condition, and the id of their differences.

        If the study averages over held-out sites, that is `*` (all partitions) and the condition's family.
        """
        if self.findings.averaged:
            return ALL, condition.family
        return condition.run.partition_id, condition.id

    def level(self, partition: str, role: str, site: str = ALL, metric: str = "") -> Value:
        """Return the score of the control of a partition at a site.

        By default, the mean of the headline metric over sites.
        """
        about = metric or self.findings.headline.name, "", "", role, site
        return self.findings.numbers.find(f"{OF_CONTROL}level", *about, partition=partition)

    def gap(self, partition: str) -> Value:
        """Return the control's loss in the headline metric: mean over internal sites minus mean over external ones."""
        about = self.findings.headline.name, "", "", "internal", ALL
        return self.findings.numbers.find(f"{OF_CONTROL}gap", *about, partition=partition)

    def difference(self, id_: str, key: str, role: str = "external") -> Value:
        """Return a condition's headline metric minus the control's, as mean over sites; positive is better.

        `id_` is the id of a condition or of a family, and `key` the id of the inference.
        """
        condition = self.findings.names.conditions.get(id_)
        about = self.findings.headline.name, id_, key, role, ALL
        partition = condition.run.partition_id if condition else ALL
        return self.findings.better(self.findings.numbers.find(f"{OF_CONTROL}difference", *about, partition=partition))
