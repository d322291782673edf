"""The section on searches: which settings were tried, which were chosen, by which rule, and what the search cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.results import StudyResults
from ..analysis.table import Table
from ..analysis.values import DASH, inner, listed
from ..core import registry
from ..core.console import duration
from ..jobs.choose import Candidate, Choice, choice
from ..metrics import Metric
from ..study.plan import Plan
from ..study.run import Run
from .protocol import best_by


@dataclass(frozen=True)
class Section:
    """The sentences of the section, and its table."""

    lines: list[str]
    table: Table


def section(results: StudyResults) -> Section | None:
    """Return the section of the page; None for a study that searches nothing."""
    if not results.plan.searches:
        return None
    choices = {run: _choice(results, run) for run in results.plan.searches}
    return Section(list(_lines(results.plan, choices)), _table(results, choices))


def oracle(plan: Plan) -> str:
    """Return the warning that numbers outside are upper bounds; empty where no oracle chooses."""
    if not plan.oracles:
        return ""
    return (
        "Settings were chosen by an oracle: by the results at external sites, which are shown here as well. Nobody has "
        "them before a model is used there. The numbers outside are upper bounds, and no results."
    )


def _choice(results: StudyResults, run: str) -> Choice | None:
    return choice(results.paths.run_files(run).manifest, results.manifests[run])


def _lines(plan: Plan, choices: Mapping[str, Choice | None]) -> Iterator[str]:
    """Yield how many trainings were tried, and by what one of them was chosen."""
    searches = list(plan.searches.values())
    names = dict.fromkeys(name for run in searches for name in (run.search.values if run.search else ()))
    yield (
        f"{len(plan.candidates)} trainings were made for {len(searches)} runs, with several values of "
        f"{listed(list(names))}. One of them counts for each run. The choice is made anew for each seed, so that the "
        "spread over seeds includes that of the choice."
    )
    if plan.oracles:
        looks = dict.fromkeys(one.inference for one in choices.values() if one and one.inference)
        by = f" with {listed(list(looks))}" if looks else ""
        yield f"An oracle chose: the training with the best mean {inner(_metric(plan))} over external sites{by}."
    else:
        criteria = dict.fromkeys(best_by(run.training.select_by or "accuracy") for run in searches)
        yield f"The training with the {listed(list(criteria))} was chosen. Test images and external sites play no part."
    same = sorted({one.chosen_at_edge for one in choices.values() if one and one.chosen_at_edge})
    if same:
        yield (
            f"The chosen value of {listed(same)} is the lowest or highest that was tried, in one run or more: a value "
            "beyond it may be better."
        )


def _metric(plan: Plan) -> Metric:
    metric: Metric = registry.build("metric", plan.study.headline)
    return metric


def _table(results: StudyResults, choices: Mapping[str, Choice | None]) -> Table:
    """Return what was chosen for each run, and what the other trainings reached."""
    findings, rows = results.findings, []
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
    best = next(one for one in made.candidates if one.run == made.chosen)
    tried = "; ".join(f"{_values(one)}: {_score(one, made)}" for one in made.candidates)
    seconds = duration(sum(one.seconds for one in made.candidates))
    return _values(best), _score(best, made), tried, str(len(made.candidates)), seconds


def _values(candidate: Candidate) -> str:
    return ", ".join(f"{key} {_plain(value)}" for key, value in candidate.values.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _score(candidate: Candidate, made: Choice) -> str:
    if candidate.score is None:
        return DASH
    percent = made.metric != "loss" and registry.build("metric", made.metric).percent
    return f"{100 * candidate.score:.1f}" if percent else f"{candidate.score:.3f}"
