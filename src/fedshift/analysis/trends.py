"""Test claims of papers (trends) on our numbers, and make the table trends.csv with a sentence for each claim."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from ..study.plan import Plan
from ..study.published import RECORDED, Side, Trend
from .conditions import UNION, Cell
from .published_values import Measure, Values, finite, incomparable
from .published_words import Pair, Words, pairs
from .values import NAN, listed

COLUMNS = [
    *("study", "better_ids", "than_ids", "claim", "sentence", "held", "mean_difference", "se", "seeds", "by", "within"),
    *("sites_for", "sites", "published_difference", "published_for", "doubt", "reason"),
]
"""Columns of trends.csv.

`better_ids` and `than_ids` name the conditions and inferences of both sides, as `condition_id/inference_id`. `held` is
yes, no, cannot tell or not run; `doubt` says what weakens it; `reason` says why it does not count. The claimed
difference is at least `by` or, if `within` has a value, at most `within` in either direction.
"""
WHOLE = ("seeds", "sites_for", "sites", "published_for")
"""The columns of whole numbers, which are empty for a trend that was not run."""
CANNOT_TELL = "cannot tell"
"""Outcome of a claim that would hold, while neither side has learnt anything."""
MEANING = (
    "The difference is the mean over sites, turned so that positive is better. Its standard error is over seeds, each "
    "compared with itself on both sides. A difference whose 95% interval over seeds, by the t quantile, holds the "
    "claim's margin is within the noise of seeds; so is a number of sites, if the intervals of single sites leave open "
    "whether so many are as claimed. Where the interval of neither side is above chance, a claim cannot hold: networks "
    "that have learned nothing are alike."
)


@dataclass(frozen=True)
class TrendResult:
    """The result of a trend (a claim of a paper that one condition is better than another) in our numbers.

    Attributes
    ----------
    differences : the difference of each pair of cells and seed (pairs, seeds); positive is better
    places : the positions of these pairs among all pairs that the trend compares
    by : the claimed difference is at least this
    within : the claimed difference is at most this in either direction; None for a claim of `by`
    """

    differences: np.ndarray
    places: tuple[int, ...]
    by: float
    within: float | None = None

    @property
    def sites(self) -> np.ndarray:
        """The difference of each pair of the trend, as mean over seeds (pairs,)."""
        return self.differences.mean(axis=1)

    @property
    def mean(self) -> float:
        """The mean difference over all seeds and all pairs of conditions that the trend compares."""
        return float(self.differences.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean difference over seeds; NaN for a single seed."""
        return float(_error(self.differences.mean(axis=0)))

    def above(self, difference: Any) -> Any:
        """Return whether a difference, or each of an array, is as claimed.

        It is as claimed if it is above 0, or at least `by` if that is set, or at most `within` in either direction.
        """
        return self._distance(difference) > 0

    @property
    def sites_for(self) -> int:
        """The number of pairs (mostly sites) whose mean difference is as claimed."""
        return int(self.above(self.sites).sum())

    def holds(self, wanted: int | None) -> bool:
        """Return whether at least `wanted` pairs are as claimed or, if it is None, the mean difference is."""
        return bool(self.above(self.mean)) if wanted is None else self.sites_for >= wanted

    def noisy(self, wanted: int | None) -> bool:
        """Return whether other seeds could change the outcome of a claim about the mean, or about `wanted` pairs.

        A mean is in doubt if its 95% interval over seeds includes the limit of the claim. A number of pairs is in doubt
        if it depends on pairs whose intervals include the limit. The answer is False for a single seed.
        """
        seeds = self.differences.shape[1]
        if seeds == 1:
            return False
        if wanted is None:
            return abs(self._distance(self.mean)) < quantile(seeds) * self.error
        noise = quantile(seeds) * _error(self.differences)
        distances = self._distance(self.sites)
        if self.holds(wanted):
            return int((distances > noise).sum()) < wanted
        return int((distances > -noise).sum()) >= wanted

    def _distance(self, difference: Any) -> Any:
        """Return how far a difference, or each of an array, lies from the claim's limit: negative if not as claimed."""
        # The limit allows for rounding: 0.9 - 0.8 is a little less than 0.1.
        if self.within is not None:
            return self.within + 1e-12 - np.abs(difference)
        return difference - (self.by - 1e-12 if self.by else 0)

    def at(self, places: Iterable[int]) -> float:
        """Return the mean difference over the pairs at the positions `places`; NaN if one of them is missing."""
        if not set(places) <= set(self.places):
            return NAN
        return float(np.mean([self.sites[self.places.index(place)] for place in places]))


def _error(values: np.ndarray) -> Any:
    """Return the standard error of the mean over seeds, which are the last axis; NaN for a single seed."""
    seeds = values.shape[-1]
    return np.full(values.shape[:-1], NAN) if seeds == 1 else values.std(axis=-1, ddof=1) / math.sqrt(seeds)


def quantile(seeds: int) -> float:
    """Return half the width of a 95% interval over `seeds` trainings, in standard errors: a t quantile."""
    return float(stdtrit(max(seeds - 1, 1), 0.975))


def table(words: Words, values: Values, reference: pd.DataFrame) -> pd.DataFrame:
    """Return trends.csv: a row for each claim of a paper, such as A beats B, that the study tests.

    `words` has the study's published words, and `values` its scores by seed. `reference` has the column `chance`, the
    score of a guess, by condition, role, site and metric (see `score.blind`).
    """
    levels: dict[Any, float] = reference["chance"].to_dict()
    printed, chance = _printed(words), Chance(words.plan, values, levels)
    rows = [_row(words, values, n, trend, printed, chance) for n, trend in enumerate(words.plan.study.trends)]
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(WHOLE, "Int64"))


class Chance:
    """A test whether the conditions of a trend have learnt anything, by comparing their scores with a guess.

    Parameters
    ----------
    levels : the score of a guess by the id of a condition, role, site and metric, for metrics that have one
    """

    def __init__(self, plan: Plan, values: Values, levels: Mapping[tuple[str, str, str, str], float]) -> None:
        self.plan = plan
        self.values = values
        self.levels = levels

    def reigns(self, matched: list[Pair], trend: Trend) -> bool:
        """Return whether neither side of a trend is above chance, by its 95% interval over seeds.

        `matched` are the pairs of the trend. Quantities that are recorded during training are judged by the headline
        metric wherever the conditions are tested. False for traffic, which does not depend on what is learnt, and if
        the score of a guess is not known.
        """
        if trend.of == "traffic":
            return False
        metric = self.plan.study.headline if trend.of in RECORDED else trend.of
        sides: dict[int, list[Cell]] = defaultdict(list)
        for pair in matched:
            for n, cell in enumerate((*pair.better, *pair.than)):
                one = cell.condition
                tested = [Cell(one, one.level_inference, role, site) for role, site in one.sites()]
                sides[n] += tested if trend.of in RECORDED else [cell]
        excess = [self._excess(cells, metric) for cells in sides.values()]
        return bool(excess) and all(_at_most_noise(levels) for levels in excess)

    def _excess(self, cells: list[Cell], metric: str) -> np.ndarray:
        """Return by how much the mean score over cells is above chance, for each seed that all cells have (seeds,).

        A cell is a condition under an inference at a site. Positive is better, whatever the metric.
        """
        measure = Measure.of(metric)
        over = []
        for cell in cells:
            sites = [cell.site]
            if cell.site == UNION:  # the mean over the sites of its role
                sites = [site for role, site in cell.condition.sites() if role == cell.role]
            levels = [self.levels.get((cell.condition.id, cell.role, site, metric), NAN) for site in sites]
            chance = float(np.mean(levels))
            scores = finite(self.values.by_seed(cell, metric))
            over.append({seed: measure.gain(score, chance) for seed, score in scores.items()})
        seeds = set.intersection(*map(set, over)) if over else set()
        return np.array([np.mean([gains[seed] for gains in over]) for seed in sorted(seeds)])


def _at_most_noise(levels: np.ndarray) -> bool:
    """Return whether the mean of values over seeds (seeds,) is not significantly above 0; False if one is unknown."""
    if not len(levels) or np.isnan(levels).any():
        return False
    error = float(levels.std(ddof=1) / math.sqrt(len(levels))) if len(levels) > 1 else 0.0
    return bool(levels.mean() <= quantile(len(levels)) * error)


def _row(
    words: Words,
    values: Values,
    number: int,
    trend: Trend,
    printed: Mapping[tuple[str, ...], float],
    chance: Chance,
) -> dict[str, Any]:
    """Return the row of trends.csv for a trend, which is the study's trend number `number`, counted from 0.

    `printed` maps the ids of a cell and metric to a published value.
    """
    measure = Measure.of(trend.of)
    matched = pairs(words, number, trend)
    outcome, lost = _outcome(matched, values, measure, trend)
    row: dict[str, Any] = {
        "study": words.plan.name,
        "better_ids": " ".join(dict.fromkeys(cell.ids for pair in matched for cell in pair.better)),
        "than_ids": " ".join(dict.fromkeys(cell.ids for pair in matched for cell in pair.than)),
        "claim": trend.claim,
        "doubt": "",
        "reason": incomparable(values),
    }
    if outcome is None:
        return row | {"sentence": f"{_names(trend, measure)}: {lost}", "held": "not run"}
    wanted = len(outcome.sites) if trend.at_least == "all" else trend.at_least
    held = outcome.holds(wanted)
    reigns = chance.reigns(matched, trend)
    doubts = {
        lost: bool(lost),
        "one seed: its noise is not known": math.isnan(outcome.error),
        "within the noise of seeds": outcome.noisy(wanted),
        "neither side is above chance": reigns,
    }
    row |= {
        "held": CANNOT_TELL if held and reigns else "yes" if held else "no",
        "mean_difference": outcome.mean,
        "se": outcome.error,
        "seeds": outcome.differences.shape[1],
        "by": outcome.by,
        "within": outcome.within,
        "sites_for": outcome.sites_for,
        "sites": len(outcome.sites),
        "doubt": ", ".join(words for words, holds in doubts.items() if holds),
    }
    paper = _paper(matched, trend, measure, printed)
    if paper:
        row |= {"published_difference": paper.mean, "published_for": paper.sites_for}
    return row | {"sentence": _sentence(trend, measure, outcome, matched, paper, wanted)}


def _best(options: list[dict[int, float]], measure: Measure) -> dict[int, float] | None:
    """Return the values by seed of the cell with the best mean, among the cells of one side of a trend.

    `options` holds the values by seed of each cell. Return None if any cell has not been run, and {} if the metric of
    any cell is defined for no seed.
    """
    if not options or not all(options):
        return None
    # The best of several would be another one in some seeds if each seed chose anew: one cell is taken for all.
    defined = [finite(values) for values in options]
    if not all(defined):
        return {}
    return measure.best(defined, key=lambda values: float(np.mean(list(values.values()))))


def _outcome(matched: list[Pair], values: Values, measure: Measure, trend: Trend) -> tuple[TrendResult | None, str]:
    """Return the result of a trend over the seeds that all pairs have, and a text about what is missing.

    `matched` are its pairs of cells. Pairs at which the metric is not defined are left out. The result is None if a
    pair has not been run, or no seed or defined metric is left.
    """
    if not matched:
        return None, "the study does not run it at this scale"
    sides = [
        [_best([values.by_seed(cell, trend.of) for cell in side], measure) for side in (pair.better, pair.than)]
        for pair in matched
    ]
    if lost := [pair.site for pair, both in zip(matched, sides, strict=True) if None in both]:
        return None, f"not run at {listed(list(dict.fromkeys(lost)))}"
    defined = {n: (better, than) for n, (better, than) in enumerate(sides) if better and than}
    if not defined:
        return None, f"{measure.title} is defined at none of the sites"
    # Each seed is compared with itself: what its data and initial weights do to both sides cancels out.
    seeds = sorted(set.intersection(*(set(side) for both in defined.values() for side in both)))
    if not seeds:
        return None, "no seed has been run at all sites"
    differences = np.array(
        [[measure.gain(better[seed], than[seed]) for seed in seeds] for better, than in defined.values()]
    )
    outcome = TrendResult(differences, tuple(defined), *_bounds(trend, measure))
    cells = [cell for pair in matched for cell in (*pair.better, *pair.than)]
    asked = set.intersection(*({run.seed for run in cell.condition.runs.values()} for cell in cells))
    return outcome, "" if len(seeds) == len(asked) else f"{len(seeds)} of {len(asked)} seeds"


def _bounds(trend: Trend, measure: Measure) -> tuple[float, float | None]:
    """Return the limits `by` and `within` of a trend's difference in the unit of the metric.

    Studies give them in percent for a metric in percent.
    """
    if not measure.percent:
        return trend.by, trend.within
    return trend.by / 100, None if trend.within is None else trend.within / 100


def _printed(words: Words) -> dict[tuple[str, ...], float]:
    """Return the published values by the ids of their cell and metric, without misprints.

    If several tables print a value, the first one counts.
    """
    printed: dict[tuple[str, ...], float] = {}
    for target in words.targets():
        if target.cell and not target.ledger and not target.row.misprint:
            printed.setdefault(target.cell.key(target.metric), target.row.value * target.scale)
    return printed


def _paper(
    matched: list[Pair], trend: Trend, measure: Measure, printed: Mapping[tuple[str, ...], float]
) -> TrendResult | None:
    """Return the result of a trend in published numbers, over the pairs with published values on both sides.

    Return None if there is no such pair. `matched` are the pairs of the trend, and `printed` maps the ids of a cell and
    metric to a published value.
    """
    rows = {}
    for place, pair in enumerate(matched):
        better, than = ([printed.get(cell.key(trend.of), NAN) for cell in side] for side in (pair.better, pair.than))
        if not any(map(math.isnan, [*better, *than])):
            rows[place] = [measure.gain(measure.best(better), measure.best(than))]
    return TrendResult(np.array([*rows.values()]), tuple(rows), *_bounds(trend, measure)) if rows else None


def _names(trend: Trend, measure: Measure) -> str:
    """Return the claim of a trend in words: `FedBN is above FedAvg in accuracy`."""
    relation = "as good as"
    if trend.within is None:
        relation = "above" if measure.higher else "below"
    return f"{_name(trend.better)} is {relation} {_name(trend.than)} in {measure.title}"


def _sentence(
    trend: Trend,
    measure: Measure,
    outcome: TrendResult,
    matched: list[Pair],
    paper: TrendResult | None,
    wanted: int | None,
) -> str:
    """Return a sentence with the claim of a trend, our numbers and the paper's.

    `outcome` and `paper` are the trend in our numbers and in published ones, if any, `matched` its pairs, and `wanted`
    the number of sites at which it is claimed to hold.
    """
    several = len({pair.site for pair in matched}) < len(matched)
    places = "pairs of a condition and a site" if several else "sites"
    if trend.at in ("internal", "external"):
        places = f"pairs of a condition and an {trend.at} site" if several else f"{trend.at} sites"
    amount = ""
    if outcome.within is not None:
        amount = f" to {measure.amount(outcome.within)}"
    elif outcome.by:
        amount = f" by at least {measure.amount(outcome.by)}"
    text = (
        f"{_names(trend, measure)}{amount} at {outcome.sites_for} of {len(outcome.sites)} {places}; on average the "
        f"difference is {measure.amount(outcome.mean, sign=True)}"
    )
    if not math.isnan(outcome.error):
        text += f" (standard error {measure.text(outcome.error)})"
    if wanted:
        claimed = "all" if wanted == len(outcome.sites) else f"at least {wanted}"
        text += f"; claimed is {claimed}"
    if paper:
        average = measure.text(paper.mean, sign=True)
        text += f"; in the paper: {paper.sites_for} of {len(paper.sites)}, {average}"
        if paper.places != outcome.places:
            text += f" (ours at the same: {measure.text(outcome.at(paper.places), sign=True)})"
    return text


def _name(side: Side) -> str:
    """Return a side of a trend in the words of the study: `FedAvg + TsmoBN`, or `the best of A and B`."""
    if isinstance(side, dict):
        return ", ".join(f"{key} {_setting(value)}" for key, value in side.items())
    if all(isinstance(part, str) for part in side):
        return " + ".join(map(str, side))
    return f"the best of {listed([_name(part) for part in side if not isinstance(part, str)])}"


def _setting(value: Any) -> str:
    """Return the value of a setting in a selector as text: `tsmobn (momentum 0.5)`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or "name" not in value:
        return json.dumps(value)
    settings = ", ".join(f"{key} {setting}" for key, setting in value.items() if key != "name")
    return f"{value['name']} ({settings})" if settings else str(value["name"])
