"""The claims of the papers compared with our numbers: trends.csv, with a sentence for each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.values import NAN, listed
from ..study.plan import Plan
from ..study.published import Side, Trend
from .conditions import Cell
from .pairs import Pair, pairs
from .values import Measure, Values, finite, incomparable
from .words import Words

COLUMNS = [
    *("study", "better_ids", "than_ids", "claim", "sentence", "held", "mean_difference", "se", "sites_for", "sites"),
    *("published_difference", "published_for", "doubt", "reason"),
]
"""`better_ids` and `than_ids` name the conditions and inferences of both sides, as `condition_id/inference_id`.

`held` is yes, no or not run; `doubt` says what weakens it; `reason` says why it does not count.
"""
MEANING = (
    "The difference is the mean over sites, turned so that positive is better. Its standard error is over seeds, each "
    "compared with itself on both sides. A difference that is less than two standard errors "
    "away from the claim is within the noise of seeds."
)


@dataclass(frozen=True)
class TrendResult:
    """A trend in numbers. `away` holds the difference of each pair in each seed (pairs, seeds); positive is better.

    `places` are the positions of these pairs among all that the trend compares.
    """

    away: np.ndarray
    places: tuple[int, ...]
    by: float
    within: float | None = None

    @property
    def sites(self) -> np.ndarray:
        """The difference of each pair, mean over seeds."""
        return self.away.mean(axis=1)

    @property
    def mean(self) -> float:
        """The mean difference over pairs and seeds."""
        return float(self.away.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean over seeds; NaN with one."""
        seeds = self.away.mean(axis=0)
        return float(seeds.std(ddof=1) / math.sqrt(len(seeds))) if len(seeds) > 1 else NAN

    def above(self, difference: Any) -> Any:
        """Return whether a difference is as claimed: above 0, or at least `by`; or at most `within` either way."""
        if self.within is not None:
            return np.abs(difference) <= self.within + 1e-12
        return difference > 0 if self.by == 0 else difference >= self.by - 1e-12

    @property
    def sites_for(self) -> int:
        """The number of pairs whose mean difference is as claimed."""
        return int(self.above(self.sites).sum())

    @property
    def noisy(self) -> bool:
        """True where the mean is less than twice its standard error away from the claim."""
        away = abs(self.mean) - self.within if self.within is not None else self.mean - self.by
        return abs(away) < 2 * self.error

    def at(self, places: Iterable[int]) -> float:
        """Return the mean over some of the pairs; NaN where one of them is missing."""
        if not set(places) <= set(self.places):
            return NAN
        return float(np.mean([self.sites[self.places.index(place)] for place in places]))


def table(words: Words, values: Values) -> pd.DataFrame:
    """Return trends.csv: a row for each trend of the study."""
    printed = _printed(words)
    rows = [_row(words, values, n, trend, printed) for n, trend in enumerate(words.plan.study.trends)]
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(("sites_for", "sites", "published_for"), "Int64"))


def _row(
    words: Words, values: Values, number: int, trend: Trend, printed: Mapping[tuple[str, ...], float]
) -> dict[str, Any]:
    measure, matched = Measure.of(trend.of), pairs(words, number, trend)
    sides = [
        [_best([values.by_seed(c, trend.of) for c in side], measure) for side in (p.better, p.than)] for p in matched
    ]
    outcome, lost = _outcome(matched, sides, measure, trend, words.plan)
    ids = {f"{side}_ids": _ids(cell for pair in matched for cell in getattr(pair, side)) for side in ("better", "than")}
    row: dict[str, Any] = {
        "study": words.plan.name,
        **ids,
        "claim": trend.claim,
        "doubt": "",
        "reason": incomparable(values),
    }
    if outcome is None:
        return row | {"sentence": f"{_names(trend, measure)}: {lost}", "held": "not run"}
    wanted = len(outcome.sites) if trend.at_least == "all" else trend.at_least
    held = outcome.sites_for >= wanted if wanted else bool(outcome.above(outcome.mean))
    paper = _paper(matched, trend, measure, printed)
    return row | {
        "sentence": _sentence(trend, measure, outcome, matched, paper, wanted),
        "held": "yes" if held else "no",
        "mean_difference": outcome.mean,
        "se": outcome.error,
        "sites_for": outcome.sites_for,
        "sites": len(outcome.sites),
        "published_difference": paper.mean if paper else NAN,
        "published_for": paper.sites_for if paper else None,
        "doubt": _doubt(outcome, lost),
    }


def _ids(cells: Iterable[Cell]) -> str:
    """Return the ids of cells, each once, with spaces between them."""
    return " ".join(dict.fromkeys(cell.ids for cell in cells))


def _best(options: list[dict[int, float]], measure: Measure) -> dict[int, float] | None:
    """Return the values of the cell with the best mean.

    None if any cell has not been run, and empty if the metric is defined for no seed of one.
    """
    if not options or not all(options):
        return None
    known = [f for o in options if (f := finite(o))]
    if len(known) < len(options):
        return {}
    return (max if measure.higher else min)(known, key=lambda o: float(np.mean(list(o.values()))))


def _outcome(
    matched: list[Pair], sides: list[list[dict[int, float] | None]], measure: Measure, trend: Trend, plan: Plan
) -> tuple[TrendResult | None, str]:
    """Return the differences over the seeds that all pairs have, and a sentence about what is missing.

    Pairs at which the metric is not defined are left out; a pair that has not been run leaves no outcome.
    """
    if not matched:
        return None, "the study does not run it at this scale"
    gone = [pair.site for pair, both in zip(matched, sides, strict=True) if None in both]
    if gone:
        return None, f"not run at {listed(list(dict.fromkeys(gone)))}"
    defined = {n: (left, right) for n, (left, right) in enumerate(sides) if left and right}
    if not defined:
        return None, f"{measure.title} is defined at none of the sites"
    seeds = sorted(set.intersection(*(set(side) for both in defined.values() for side in both)))
    if not seeds:
        return None, "no seed has been run at all sites"
    sign = 1 if measure.higher else -1
    away = np.array([[sign * (left[s] - right[s]) for s in seeds] for left, right in defined.values()])
    seeds_of_cells = [{plan.runs[run].seed for run in c.condition.runs} for p in matched for c in (*p.better, *p.than)]
    wanted = len(set.intersection(*seeds_of_cells))
    outcome = TrendResult(away, tuple(defined), *_bounds(trend, measure))
    return outcome, f"{len(seeds)} of {wanted} seeds" if len(seeds) < wanted else ""


def _bounds(trend: Trend, measure: Measure) -> tuple[float, float | None]:
    """Return `by` and `within` in the unit of the metric."""
    unit = 100 if measure.percent else 1
    return trend.by / unit, None if trend.within is None else trend.within / unit


def _doubt(outcome: TrendResult, lost: str) -> str:
    if math.isnan(outcome.error):
        return ", ".join(filter(None, [lost, "one seed: its noise is not known"]))
    return ", ".join(filter(None, [lost, "within the noise of seeds" if outcome.noisy else ""]))


def _printed(words: Words) -> dict[tuple[str, ...], float]:
    """Return published values by the ids of their cell and metric. The first table that prints one counts."""
    printed: dict[tuple[str, ...], float] = {}
    for target in words.targets():
        if target.cell and not target.ledger and not target.row.misprint:
            printed.setdefault(target.cell.key(target.metric), target.row.value * target.scale)
    return printed


def _paper(
    matched: list[Pair], trend: Trend, measure: Measure, printed: Mapping[tuple[str, ...], float]
) -> TrendResult | None:
    """Return the trend in published numbers, over the pairs that have them on both sides."""
    rows = {}
    for place, pair in enumerate(matched):
        sides = [[printed.get(cell.key(trend.of), NAN) for cell in side] for side in (pair.better, pair.than)]
        if not any(math.isnan(v) for side in sides for v in side):
            left, right = (max(side) if measure.higher else min(side) for side in sides)
            rows[place] = [left - right if measure.higher else right - left]
    return TrendResult(np.array([*rows.values()]), tuple(rows), *_bounds(trend, measure)) if rows else None


def _names(trend: Trend, measure: Measure) -> str:
    """Return what is compared: `FedBN is above FedAvg in accuracy`."""
    side = "above" if measure.higher else "below"
    how = "is as good as" if trend.within is not None else f"is {side}"
    return f"{_name(trend.better)} {how} {_name(trend.than)} in {measure.title}"


def _sentence(
    trend: Trend,
    measure: Measure,
    outcome: TrendResult,
    matched: list[Pair],
    paper: TrendResult | None,
    wanted: int | None,
) -> str:
    """Return our numbers, the claim, and the numbers of the paper in a sentence."""
    role = f"{trend.at} " if trend.at in ("internal", "external") else ""
    single = len({p.site for p in matched}) == len(matched)
    places = f"{role}sites" if single else f"pairs of a condition and {'an ' + role if role else 'a '}site"
    amount = f" by at least {measure.amount(outcome.by)}" if outcome.by else ""
    amount = f" to {measure.amount(outcome.within)}" if outcome.within is not None else amount
    error = "" if math.isnan(outcome.error) else f" (standard error {measure.text(outcome.error)})"
    text = (
        f"{_names(trend, measure)}{amount} at {outcome.sites_for} of {len(outcome.sites)} {places}; on average the "
        f"difference is {measure.text(outcome.mean, sign=True)}{' points' if measure.percent else ''}{error}"
    )
    if wanted:
        text += f"; claimed is {'all' if wanted == len(outcome.sites) else f'at least {wanted}'}"
    if paper:
        average = measure.text(paper.mean, sign=True)
        text += f"; in the paper: {paper.sites_for} of {len(paper.sites)}, {average}"
        if paper.places != outcome.places:
            text += f" (ours at the same: {measure.text(outcome.at(paper.places), sign=True)})"
    return text


def _name(side: Side) -> str:
    """Return a side as the study names it."""
    if isinstance(side, dict):
        return ", ".join(f"{key} {_setting(value)}" for key, value in side.items())
    if all(isinstance(part, str) for part in side):
        return " + ".join(map(str, side))
    return f"the best of {listed([_name(part) for part in side if not isinstance(part, str)])}"


def _setting(value: Any) -> str:
    if isinstance(value, dict) and "name" in value:
        rest = {k: v for k, v in value.items() if k != "name"}
        return f"{value['name']} ({', '.join(f'{k} {v}' for k, v in rest.items())})" if rest else str(value["name"])
    return value if isinstance(value, str) else json.dumps(value)
