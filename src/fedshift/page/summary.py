"""The result tables of a study: as CSV for programs, and as text tables for the page and for papers."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis import conditions, effects, published_values, score
from ..analysis.comparisons import Entry, entry
from ..analysis.conditions import CONDITION, Condition
from ..analysis.controls import Controls
from ..analysis.effects import Estimates
from ..analysis.findings import Findings
from ..analysis.numbers import Names, Numbers, Row
from ..analysis.predictions import SITE
from ..analysis.published_values import Values
from ..analysis.published_words import Words
from ..analysis.score import PLACE
from ..analysis.study_results import PACKAGE, StudyResults
from ..analysis.values import DASH, Table, Value, between, listed, number, save, spread
from ..core.spelling import plural
from ..io.paths import IDS, INFERENCE, LEVELS, SUMMARISED, ResultTable, StudyFiles
from ..io.tables import write_table
from . import comparison_section
from .html import PageCell, PageTable
from .phrases import bounds, heading, of_seeds, resampled

COLUMNS = [
    *("study", *IDS, *CONDITION, *SITE, *INFERENCE, "metric"),
    *("n", "patients", "rarer", "mean", "std", "seeds", "published", "published_std"),
    *("low", "high", "se", "chance", "majority", "p_chance"),
]


def summarise(results: StudyResults) -> Path:
    """Write all result tables of a study and return the path of summary.csv.

    For programs these are numbers.parquet and the CSV files of SUMMARISED; for people, the files of `write`.
    """
    inputs = Inputs(results)
    files = results.files
    write_table(files.numbers, inputs.numbers.frame)
    made = {declared.name: inputs.asked(declared, "table") for declared in SUMMARISED}
    for name, table in made.items():
        write_table(files.result(name), table)
    findings = Findings(inputs.names, inputs.numbers)
    write(files, findings, Controls(findings))
    save(files, "comparison", published_values.whole(made["comparison"]))
    return files.summary


def rows(study: Estimates, words: Words, reference: pd.DataFrame) -> Iterator[Row]:
    """Yield the rows of summary.csv: for each score its mean over seeds, its interval, and published and chance values.

    `reference` has the scores of a model without knowledge by condition, role, site and metric (see `score.blind`).
    `words` describes the published values.
    """
    summary = _over_seeds(study.scores).join(published_values.published(words)).join(reference, on=PLACE)
    for level, found in zip(summary.index, summary.to_dict("records"), strict=True):
        yield effects.at_site(study, level) | {str(name): value for name, value in found.items()}


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return summary.csv: scores of each trained method, site, inference method and metric, summarised over seeds.

    Each run gives one value for a site, inference method and metric. `mean` and `std` (sample standard deviation with
    the divisor n-1) are over the values of the seeds, of which there are `seeds`. `low` and `high` bound the 95%
    interval of the mean score over `patients` and trainings (see `estimates`); `se` is the standard error over patients
    alone, and `rarer` counts the patients of the rarer class. `p_chance` is the one-sided p-value of the null
    hypothesis that the true score is at chance or above, so that a small value says worse than guessing; only metrics
    whose chance level does not depend on prevalence have it. `published` and `published_std` are the papers' values
    (see `published_values`), in the unit of the mean. `chance` and `majority` are the scores of guessing and of always
    giving the commonest class (see `score.blind`).
    """
    return names.described(numbers.view("score").assign(study=names.plan.name, p_chance=lambda t: t["p"]))[COLUMNS]


class Inputs:
    """The inputs that functions for result tables can request by the names of their parameters.

    Each attribute is computed when it is first needed.

    Attributes
    ----------
    results : the files of the study
    names : its conditions (algorithm x batch norm policy x settings) and inference methods
    predicted : the predictions of all runs
    samples : function that reads the image table of prepared data by its id
    words, values : descriptions and numbers of the published values that the study reproduces
    """

    def __init__(self, results: StudyResults) -> None:
        self.results = results
        self.names = self.results.names
        self.predicted = self.results.predictions
        self.samples = self.results.samples
        self.words = Words(results.plan)
        self.values = Values(self.results)

    @functools.cached_property
    def study(self) -> Estimates:
        """The estimates from which all intervals are computed."""
        return Estimates(self.names, self.predicted, self.results.scores, self.samples)

    @functools.cached_property
    def reference(self) -> pd.DataFrame:
        """The scores of a model without knowledge: of guessing, and of always giving the commonest class."""
        return score.blind(self.predicted, self.samples)

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The numbers of all result tables in one table."""
        return Numbers(row for declared in SUMMARISED for row in self.asked(declared, "rows") or ())

    @functools.cached_property
    def declared(self) -> list[tuple[Entry, Entry]]:
        """The pairs that the study declares as its primary comparison, without repetitions."""
        pairs = [
            [entry(self.names, side.condition.id, side.inference) for side in pair]
            for pair in conditions.primary_pairs(self.names.plan)
        ]
        return list(dict.fromkeys((first, second) for first, second in pairs))

    def asked(self, declared: ResultTable, name: str) -> Any:
        """Call the function `name` of a table's module with the inputs that its parameters name; return the result.

        `declared` describes the table. Return None if its module has no such function.
        """
        worker = getattr(importlib.import_module(f"{PACKAGE}.{declared.worker}"), name, None)
        if worker is None:
            return None
        return worker(**{parameter: getattr(self, parameter) for parameter in inspect.signature(worker).parameters})


def _over_seeds(scores: pd.DataFrame) -> pd.DataFrame:
    """Summarise scores over seeds for each condition, role, site, inference method and metric: n, mean, std and seeds.

    A condition is an algorithm with batch norm policy and settings. Mean and std are NaN if the metric is not defined
    for one of the seeds.
    """
    summary = scores.groupby([*LEVELS], sort=False).agg(
        n=("n", "first"),
        mean=("value", "mean"),
        std=("value", "std"),
        seeds=("seed", "nunique"),
        valid=("value", "count"),
    )
    summary.loc[summary["valid"] < summary["seeds"], ["mean", "std"]] = float("nan")
    return summary.drop(columns="valid")


LOSS_RECOVERED = "External loss recovered"
CONTROL_COLUMN = "Control, no network"
SURE = {1: "better", -1: "worse"}
"""Style marks of a change whose 95% interval excludes zero, by its sign."""


@dataclass(frozen=True)
class Cell:
    """A table cell with the header of its column.

    Attributes
    ----------
    column, text : header of the column, and text of the cell
    value : number behind the text, with its interval, if any
    mark : style: better, worse, worst or "" for a plain cell
    sign : whether the interval is written with plus and minus signs
    """

    column: str
    text: str
    value: Value | None = None
    mark: str = ""
    sign: bool = False


def write(files: StudyFiles, findings: Findings, controls: Controls) -> None:
    """Write the study's text tables tables/{sites,overview,conditions} as CSV, Markdown and LaTeX.

    The tables of sites and the overview have columns of 95% intervals.
    """
    save(files, "sites", sites(findings, controls))
    save(files, "overview", overview(findings, controls=controls, intervals=True))
    units = plural(findings.plan.study.resampled(known=True))
    save(files, "conditions", comparison_section.table(findings, units))


def sites(findings: Findings, controls: Controls) -> Table:
    """Return a table with a row for each condition (algorithm x batch norm policy x settings) and site.

    It shows the headline metric under each inference method, and gains over training statistics, with 95% intervals.
    `controls` has the scores of classifiers without a network.
    """
    beside = controls if any(_has_control(controls, condition) for condition in findings.conditions) else None
    rows = [
        [*_heads(findings, condition), *row]
        for condition in findings.conditions
        for row in _site_rows(findings, condition, findings.keys, findings.compared(), "patients", beside)
    ]
    return _text_table(_sites_caption(findings), rows, 3 + findings.several, findings, intervals=True)


def sites_on_page(findings: Findings, condition: Condition, unit: str, controls: Controls) -> PageTable:
    """Return the table of sites for one condition (algorithm x batch norm policy x settings).

    It marks the worst external site and significant changes, whose 95% interval excludes zero. `unit` names the
    resampled units, such as patients. `controls` has the scores of classifiers without a network.
    """
    beside = controls if _has_control(controls, condition) else None
    compared = findings.compared(condition)
    rows = list(_site_rows(findings, condition, list(condition.inferences), compared, unit, beside))
    cells = [
        [PageCell(cell.text, bounds(cell.value or Value(), findings.headline, cell.sign), cell.mark) for cell in row]
        for row in rows
    ]
    caption = f"{findings.full(condition)}. {_sites_caption(findings)}"
    if any(cell.below for row in cells for cell in row):
        caption += f"; below, the 95% interval {resampled(len(condition.seeds), unit)}"
    return PageTable(caption, tuple(cell.column for cell in rows[0]), cells, 2)


def _sites_caption(findings: Findings) -> str:
    return f"{_mean_of(findings)} on the test samples of each site"


def _text_table(caption: str, rows: list[list[Cell]], heads: int, findings: Findings, intervals: bool) -> Table:
    """Return a table of texts. With `intervals`, a column with the interval follows each column of values.

    The first `heads` columns identify a row.
    """
    if intervals:
        rows = [[wide for cell in row for wide in _widened(cell, findings)] for row in rows]
    texts = tuple(tuple(cell.text for cell in row) for row in rows)
    return Table(caption, tuple(cell.column for cell in rows[0]), texts, heads)


def _widened(cell: Cell, findings: Findings) -> Iterator[Cell]:
    yield cell
    if cell.value is not None:
        yield Cell(f"95% interval ({cell.column})", between(cell.value, findings.headline))


def _site_rows(
    findings: Findings, condition: Condition, keys: list[str], compared: list[str], unit: str, controls: Controls | None
) -> Iterator[list[Cell]]:
    """Yield the cells of each site's row: images, patients, scores, gains and published values.

    `keys` are ids of the inference methods to show, and `compared` ids of those whose gain over the baseline is shown.
    With `controls`, the score of a classifier without a network comes last. `unit` names the resampled units, such as
    patients.
    """
    published = _with_published(findings, keys)
    for role, site in condition.sites():
        values = {key: findings.value(condition, role, site, key) for key in keys}
        row = [
            Cell("Site", site),
            Cell("Role", role),
            Cell("n", str(max(value.n for value in values.values()) or DASH)),
            Cell(unit.capitalize(), patients(max(values.values(), key=lambda value: value.patients > 0))),
        ]
        several = role == "external" and len(condition.partition.external) > 1
        for key, value in values.items():
            mark = "worst" if several and site == findings.worst(condition, key) else ""
            row.append(Cell(findings.name(key), complete(value, findings, condition, key), value, mark))
        for key in compared:
            gain = findings.gain(condition, key, role, site)
            text = spread(gain, findings.headline, sign=True)
            row.append(Cell(f"Gain, {findings.name(key)}", text, gain, SURE.get(gain.sign, ""), sign=True))
        for key in published:
            printed = Value(mean=values[key].published, std=values[key].published_std)
            row.append(Cell(f"Published, {findings.name(key)}", spread(printed, findings.headline)))
        if controls is not None:
            control = controls.level(condition.run.partition_id, role, site)
            row.append(Cell(CONTROL_COLUMN, number(control.mean, findings.headline), control))
        yield row


def overview(
    findings: Findings, unit: str = "patients", controls: Controls | None = None, intervals: bool = False
) -> Table:
    """Return a table with a row for each condition (algorithm x batch norm policy x settings) and inference method.

    It shows internal and external mean, worst external site, their gap, and how much of the loss is recovered. Columns
    that need internal test samples or external sites are left out if no partition has any. With `controls`, the last
    rows are the scores of a classifier without a network. With `intervals`, a column with the 95% interval follows each
    value; `unit` names the resampled units.
    """
    inside = findings.tests_inside
    outside = any(condition.partition.external for condition in findings.conditions)
    rows = [
        _overview_row(findings, condition, key, unit, inside, outside)
        for condition in findings.conditions
        for key in condition.inferences
    ]
    if controls is not None:
        columns = [cell.column for cell in rows[0]]
        # a control belongs to a partition, which several conditions may share
        firsts = {condition.run.partition_id: condition for condition in reversed(findings.conditions)}
        controlled = [c for c in findings.conditions if c in firsts.values() and _has_control(controls, c)]
        divided = Counter(condition.held_out for condition in controlled)
        rows += [_control_row(controls, c, columns, alone=divided[c.held_out] == 1) for c in controlled]
    caption = _overview_caption(findings, inside, inside and outside)
    return _text_table(caption, rows, 2 + findings.several, findings, intervals)


def _overview_row(
    findings: Findings, condition: Condition, key: str, unit: str, inside: bool, outside: bool
) -> list[Cell]:
    """Return the overview's row for a condition (algorithm x batch norm policy x settings) and an inference method.

    `key` is the method's id; `inside` and `outside` say whether the study tests at internal and at external sites.
    `unit` names the resampled units, such as patients.
    """
    roles = [role for role, shown in (("internal", inside), ("external", outside)) if shown]
    means = {role: findings.effect("level", condition, key, role) for role in roles}
    column = unit.capitalize()
    if inside and outside:
        column += " (internal + external)"
    # a single dash where the patients are known neither inside nor outside
    people = [patients(value) for value in means.values()]
    people = people[:1] if set(people) == {DASH} else people
    row = [*_heads(findings, condition), Cell("Inference", findings.name(key)), Cell(column, " + ".join(people))]
    tested = {role for role, _ in condition.sites()}
    for role, value in means.items():
        text = complete(value, findings, condition, key) if role in tested else DASH
        row.append(Cell(f"{role.capitalize()} mean", text, value))
    if outside:
        row.append(Cell("Worst external site", _worst(findings, condition, key)))
    if inside and outside:
        gap = findings.gap(condition, key)
        row.append(Cell("Gap", spread(gap, findings.headline, sign=True), gap))
        recovered = findings.recovered(condition, key)
        text = recovered.why or spread(recovered.gain, findings.headline, sign=True)
        row.append(Cell(LOSS_RECOVERED, text, recovered.gain))
    return row


def _overview_caption(findings: Findings, inside: bool, both: bool) -> str:
    caption = f"{_mean_of(findings)}, mean over sites"
    if left_out := findings.left_out():
        caption += f" without {listed(left_out)}, where it is not defined"
    caption += _blind(findings)
    if both:
        caption += ". Gap: loss from the internal to the external mean"
    if inside and not all(condition.tests_inside for condition in findings.conditions):
        caption += ", a dash where internal sites have no test samples"
    if both and findings.baseline and findings.others():
        caption += (
            f". {LOSS_RECOVERED}: gain at external sites, where it is sure and so is the gap with "
            f"{findings.name(findings.baseline)}; gains at internal sites do not count in it, so the gap may shrink by "
            "less, or grow"
        )
    return caption


def patients(value: Value) -> str:
    """Return the number of test patients behind a value as text; a dash if the value has no interval over patients."""
    return f"{value.patients:.0f}" if value.patients > 0 else DASH


def _has_control(controls: Controls, condition: Condition) -> bool:
    return any(controls.level(condition.run.partition_id, *place).known for place in condition.sites())


def _control_row(controls: Controls, condition: Condition, columns: list[str], alone: bool) -> list[Cell]:
    """Return the overview's row of a control (classifier without a network), with a dash in columns that do not apply.

    `alone` says that its held-out sites have no other control; if they have, its name tells the method that shares its
    images.
    """
    findings = controls.findings
    key = condition.run.partition_id
    values = {
        "Internal mean": controls.level(key, "internal"),
        "External mean": controls.level(key, "external"),
        "Gap": findings.better(controls.gap(key)),
    }
    texts = {column: number(v.mean, findings.headline, sign=column == "Gap") for column, v in values.items()}
    of = "" if alone else f", on the images of {condition.title}"
    texts |= {"Condition": f"Control: {controls.about.sees} only, no network{of}", "Held out": condition.held_out}
    levels = {site: controls.level(key, "external", site) for site in condition.partition.external}
    if means := {site: findings.better(value).mean for site, value in levels.items() if value.known}:
        worst = min(means, key=means.__getitem__)
        texts["Worst external site"] = f"{worst} ({number(levels[worst].mean, findings.headline)})"
    return [Cell(column, texts.get(column, DASH), values.get(column)) for column in columns]


def _blind(findings: Findings) -> str:
    """Return a caption's clause on the scores of guessing and of always giving the commonest class; '' if undefined.

    If partitions differ in these scores, it gives their range.
    """
    chance = {}
    most = {}
    for role in ("internal", "external"):
        values = [findings.blind(c, c.level_inference, role) for c in findings.conditions]
        values = [value for value in values if not math.isnan(value.chance)]
        if values:
            chance[role] = _range({value.chance for value in values}, findings)
            most[role] = _range({value.majority for value in values}, findings)
    if not chance:
        return ""
    text = f". Chance level: {_by_role(chance)}"
    if len(set(chance.values())) == 1:
        text = f". Chance level: {next(iter(chance.values()))}"
    return text if chance == most else f"{text}; always giving the commonest class: {_by_role(most)}"


def _range(values: set[float], findings: Findings) -> str:
    texts = [number(x, findings.headline) for x in sorted(values)]
    return " to ".join(dict.fromkeys([texts[0], texts[-1]]))


def _by_role(texts: dict[str, str]) -> str:
    return listed([f"{text} at {role} sites" for role, text in texts.items()])


def complete(value: Value, findings: Findings, condition: Condition, key: str) -> str:
    """Return mean ± standard deviation over seeds as text, with the number of seeds if some are missing.

    `key` is the id of an inference method. Without a value, return "no run" if no run was scored with the method, else
    a dash.
    """
    if value.seeds == 0 and not value.known:
        return "no run" if key in condition.inferences and not findings.scored(condition, key) else DASH
    return f"{spread(value, findings.headline)}{of_seeds(value, condition)}"


def _worst(findings: Findings, condition: Condition, key: str) -> str:
    site = findings.worst(condition, key)
    if site is None:
        return DASH
    return f"{site} ({number(findings.value(condition, 'external', site, key).mean, findings.headline)})"


def _heads(findings: Findings, condition: Condition) -> list[Cell]:
    heads = [Cell("Condition", condition.title)]
    if findings.several:
        heads.append(Cell("Held out", condition.held_out))
    return heads


def _mean_of(findings: Findings) -> str:
    return f"{heading(findings.headline)}: mean ± standard deviation over seeds"


def _with_published(findings: Findings, keys: list[str]) -> list[str]:
    """Return the ids among `keys` of inference methods with a published value at any site."""
    places = [(condition, role, site) for condition in findings.conditions for role, site in condition.sites()]
    return [
        key
        for key in findings.keys
        if key in keys and any(not math.isnan(findings.value(*place, key).published) for place in places)
    ]
