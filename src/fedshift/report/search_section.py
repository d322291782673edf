"""The section on searches: which settings were tried, which were chosen, by which rule, and what the search cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, inner, listed
from ..core.console import duration
from ..jobs.choose import Candidate, Choice, choice
from ..study.plan import Plan
from ..study.run import Run
from .html import Block, Section, plain
from .phrases import chosen_by, metric_named
from .protocol import best_by


def section(results: StudyResults) -> Section | None:
    """Return the page's section on searched settings; None for a study without a search."""
    if not results.plan.searches:
        return None
    choices = {
        run: choice(results.paths.run_files(run).manifest, results.manifests[run]) for run in results.plan.searches
    }
    lines = list(_lines(results.plan, choices))
    blocks: list[Block] = [*lines, plain(_table(results, choices))]
    return Section("search", "Search of settings", blocks, short="Search", late=True, printed=True)


def oracle(plan: Plan) -> str:
    """Return the warning that numbers outside are upper bounds; empty where no oracle chooses."""
    if not plan.oracles:
        return ""
    return (
        "Settings were chosen by an oracle: by the results at external sites, which are shown here as well. Nobody has "
        "them before a model is used there. The numbers outside are upper bounds, and no results."
    )


def _lines(plan: Plan, choices: Mapping[str, Choice | None]) -> Iterator[str]:
    """Yield how many trainings were tried, and by what one of them was chosen."""
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
        inferences = dict.fromkeys(chosen.inference for chosen in made if chosen.inference)
        if inferences:
            rule += f" with {listed(list(inferences))}"
        yield f"{rule}."
    else:
        criteria = dict.fromkeys(best_by(run.training.select_by or "accuracy") for run in searches)
        yield f"The training with the {listed(list(criteria))} was chosen. Test images and external sites play no part."
    at_edge = sorted({chosen.chosen_at_edge for chosen in made if chosen.chosen_at_edge})
    if at_edge:
        yield (
            f"The chosen value of {listed(at_edge)} is the lowest or highest that was tried, in one run or more: a "
            "value beyond it may be better."
        )


def _table(results: StudyResults, choices: Mapping[str, Choice | None]) -> Table:
    """Return what was chosen for each run, and what the other trainings reached."""
    findings = results.findings
    rows = []
    for condition in findings.conditions:
        for name, run in condition.runs.items():
            if run.search:
                rows.append((findings.full(condition), str(run.seed), *_row(run, choices[name])))
    header = ("Condition", "Seed", "Chosen", "Its value", "All values tried", "Trainings", "Training time of all")
    caption = (
        "Searches. Value: what the rule compares, percent for metrics in percent. Training time: the sum over clients, "
        "rounds and trainings of the search (minutes:seconds)"
    )
    return Table(caption, header, tuple(rows), 2)


def _row(run: Run, made: Choice | None) -> tuple[str, str, str, str, str]:
    if made is None:
        return DASH, DASH, DASH, str(len(run.candidates)), DASH
    best = next(candidate for candidate in made.candidates if candidate.run == made.chosen)
    tried = "; ".join(f"{_values(candidate)}: {_score(candidate, made)}" for candidate in made.candidates)
    seconds = duration(sum(candidate.seconds for candidate in made.candidates))
    return _values(best), _score(best, made), tried, str(len(made.candidates)), seconds


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in candidate.values.items())


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def _score(candidate: Candidate, made: Choice) -> str:
    if candidate.score is None:
        return DASH
    return chosen_by(candidate.score, made.metric)
