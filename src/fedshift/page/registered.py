"""Sections on what a study fixed before its results were known: registered hypotheses and hyperparameter searches."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..analysis.findings import Findings
from ..analysis.hypotheses import CANNOT_TELL, NO, NOT_RUN, YES
from ..analysis.study_results import StudyResults
from ..analysis.values import DASH, Table, Value, between, inner, listed, number
from ..core.console import duration
from ..jobs.choose import Candidate, Choice, choice
from ..study.plan import Plan
from ..study.run import Run
from .html import Block, Claim, Fold, PageTable, Section, plain
from .phrases import capital, chosen_by, joined, metric_named
from .protocol import best_by

if TYPE_CHECKING:
    import pandas as pd


MEANING = (
    "These claims and their margins stand in the file of the study, where they are to be before its results are seen. "
    "Yes: the whole interval agrees with the claim. No: the whole interval contradicts it. Cannot tell: it holds "
    "values on both sides of the margin. Each interval is a separate 95% interval: it is not widened for the number "
    "of claims."
)
_TONES = {NO: "worse", YES: "better"}
_SHOWN = {"above": "more than", "below": "less than", "within": "within ±"}


def asked(results: StudyResults) -> Iterator[Claim]:
    """Yield each registered hypothesis as a claim, with its answer and the difference that decides it."""
    rows = results.table("hypotheses")
    for row in rows[rows["without"] == 0].to_dict("records"):
        _, compared, claimed, mean, around, answer = _row(results.findings, row)
        found = answer.partition(": ")[2]
        if mean != DASH:
            found = f"{compared}: claimed {claimed}, found {mean} (95% interval {around})"
        answer = answer.partition(":")[0]
        yield Claim(answer, str(row["claim"]), found, _TONES.get(answer, ""))


def hypotheses_section(results: StudyResults, unit: str) -> Section | None:
    """Return the section on registered hypotheses; None if the study has none.

    `unit` names the resampled units, such as patients.
    """
    every = results.table("hypotheses")
    if every.empty:
        return None
    rows = every[every["without"] == 0]
    counts = {answer: int((rows["answer"] == answer).sum()) for answer in (YES, NO, CANNOT_TELL, NOT_RUN)}
    told = ", ".join(f"{answer}: {count}" for answer, count in counts.items() if count)
    lines = [f"Registered: {len(rows)}. {capital(told)}.", MEANING]
    caption = f"{results.findings.headline.title}: the differences that the claims are about; positive is better"
    folds = []
    for without, fewer in every[every["without"] > 0].groupby("without"):
        title = f"Without the {without} {unit} with most test images of each site"
        same = int((fewer["answer"].to_numpy() == rows["answer"].to_numpy()).sum())
        whether = f"Whether a few {unit} decide: {same} of {len(fewer)} answers are the same without them."
        whether = joined(whether, _largest_change(results.findings, rows, fewer))
        folds.append(Fold(title, [whether, _answers(results.findings, fewer, unit, f"{caption}. {title}")]))
    shown = _answers(results.findings, rows, unit, caption)
    return Section("hypotheses", "Registered hypotheses", [*lines, shown, *folds], short="Hypotheses")


def _largest_change(findings: Findings, rows: pd.DataFrame, fewer: pd.DataFrame) -> str:
    """Return which hypothesis' difference changes most without the patients with most images; '' if none is known.

    `rows` are the results with all patients, and `fewer` without those with most images at each site.
    """
    before, after = (table["mean"].to_numpy(dtype=float) for table in (rows, fewer))
    moved = np.abs(after - before)
    if np.isnan(moved).all():
        return ""
    k = int(np.nanargmax(moved))
    found = (number(x, findings.headline, sign=True) for x in (before[k], after[k]))
    return "The difference that moves furthest goes from {} to {}: {}".format(*found, rows["claim"].iloc[k])


def _answers(findings: Findings, rows: pd.DataFrame, unit: str, caption: str) -> PageTable:
    """Return a table with a row for each registered hypothesis in `rows`; `unit` names what the intervals resample."""
    header = ("Claim", "Of what", "Claimed difference", "Found", f"95% interval ({unit} and trainings)", "Answer")
    body = tuple(_row(findings, row) for row in rows.to_dict("records"))
    return plain(Table(caption, header, body, 1), _TONES)


def _row(findings: Findings, row: Mapping[Hashable, Any]) -> tuple[str, ...]:
    """Return the cells of one hypothesis, a row of hypotheses.csv, for the table of hypotheses."""
    metric = findings.headline
    value = Value(mean=row["mean"], low=row["low"], high=row["high"])
    claimed = f"{_SHOWN[str(row['direction'])]} {number(float(row['margin']), metric)}"
    mean = DASH if math.isnan(value.mean) else number(value.mean, metric, sign=True)
    answer = str(row["answer"])
    if answer == NOT_RUN:
        answer = f"{answer}: {row['reason']}"
    return str(row["claim"]), _compared(findings, row), claimed, mean, between(value, metric, sign=True), answer


def _compared(findings: Findings, row: Mapping[Hashable, Any]) -> str:
    """Return the two sides that a hypothesis compares, each with its inference method; one if both are the same."""
    sides = []
    for side in ("", "than_"):
        named = row[f"{side}condition_id"]
        titles = [findings.full(one) for one in findings.conditions if one.id == named]
        titles += [one.title for one in findings.conditions if one.family == named]
        inference = [findings.name(str(row[f"{side}inference_id"]))] if len(findings.keys) > 1 else []
        sides.append(", ".join([*titles[:1], *inference]) if titles else "")
    return " against ".join(filter(None, dict.fromkeys(sides)))


def searches_section(results: StudyResults) -> Section | None:
    """Return the section on the search for hyperparameters; None for a study without a search."""
    if not results.plan.searches:
        return None
    choices = {
        run: choice(results.paths.run_files(run).manifest, results.manifests[run]) for run in results.plan.searches
    }
    blocks: list[Block] = [*_lines(results.plan, choices), plain(_table(results, choices))]
    return Section("search", "Search of settings", blocks, short="Search", late=True, printed=True)


def oracle(plan: Plan) -> str:
    """Return a warning that scores at external sites are upper bounds, since they chose the settings; else ''."""
    if not plan.oracles:
        return ""
    return (
        "Settings were chosen by an oracle: by the results at external sites, which are shown here as well. Nobody has "
        "them before a model is used there. The numbers outside are upper bounds, and no results."
    )


def _lines(plan: Plan, choices: Mapping[str, Choice | None]) -> Iterator[str]:
    """Yield sentences on how many trainings a search made, and by which criterion it chose.

    `choices` maps the id of each searched run to the record of its choice, or to None if it is not made yet.
    """
    searches = list(plan.searches.values())
    made = [chosen for chosen in choices.values() if chosen]
    names = dict.fromkeys(name for run in searches if run.search for name in run.search.values)
    yield (
        f"{len(plan.candidates)} trainings were made for {len(searches)} runs, with several values of "
        f"{listed(list(names))}. One of them counts for each run. The choice is made anew for each seed, so that the "
        "spread over seeds includes that of the choice."
    )
    if plan.oracles:
        metric = inner(metric_named(plan.study.headline))
        rule = f"An oracle chose: the training with the best mean {metric} over external sites"
        if inferences := dict.fromkeys(chosen.inference for chosen in made if chosen.inference):
            rule += f" with {listed(list(inferences))}"
        yield f"{rule}."
    else:
        criteria = dict.fromkeys(best_by(run.training.select_by or "accuracy") for run in searches)
        yield f"The training with the {listed(list(criteria))} was chosen. Test images and external sites play no part."
    if at_edge := sorted({chosen.chosen_at_edge for chosen in made if chosen.chosen_at_edge}):
        yield (
            f"The chosen value of {listed(at_edge)} is the lowest or highest that was tried, in one run or more: a "
            "value beyond it may be better."
        )


def _table(results: StudyResults, choices: Mapping[str, Choice | None]) -> Table:
    """Return a table of the chosen hyperparameters of each run, and the scores of all values tried.

    `choices` maps the id of each searched run to the record of its choice, or to None if it is not made yet.
    """
    findings = results.findings
    rows = []
    for condition in findings.conditions:
        for name, run in condition.runs.items():
            if run.search:
                rows.append((findings.full(condition), str(run.seed), *_tried_row(run, choices[name])))
    header = ("Condition", "Seed", "Chosen", "Its value", "All values tried", "Trainings", "Training time of all")
    caption = (
        "Searches. Value: what the rule compares, percent for metrics in percent. Training time: the sum over clients, "
        "rounds and trainings of the search (minutes:seconds)"
    )
    return Table(caption, header, tuple(rows), 2)


def _tried_row(run: Run, made: Choice | None) -> tuple[str, str, str, str, str]:
    if made is None:
        return DASH, DASH, DASH, str(len(run.candidates)), DASH
    best = next(candidate for candidate in made.candidates if candidate.run == made.chosen)
    tried = "; ".join(f"{_values(candidate)}: {_score(candidate, made)}" for candidate in made.candidates)
    seconds = duration(sum(candidate.seconds for candidate in made.candidates))
    return _values(best), _score(best, made), tried, str(len(made.candidates)), seconds


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in candidate.values.items())


def _plain(value: Any) -> str:
    """Return the value of a setting as text: strings unchanged, floats in short form, other values as JSON."""
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _score(candidate: Candidate, made: Choice) -> str:
    return DASH if candidate.score is None else chosen_by(candidate.score, made.metric)
