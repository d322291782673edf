"""The pairs of cells that each trend of a study compares. Imports neither torch nor pandas."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, UserErrors, did_you_mean
from ..study.published import CHOICES, RECORDED, Side, Trend, merged, resolved
from . import cells, hypotheses
from .cells import UNION, Cell, differing
from .published_words import Words, rows

if TYPE_CHECKING:
    from ..study.plan import Plan


@dataclass(frozen=True)
class Pair:
    """The cells of one site on both sides of a trend. Where a side has several, the best counts."""

    better: tuple[Cell, ...]
    than: tuple[Cell, ...]

    @property
    def site(self) -> str:
        """The site of all cells of the pair."""
        return self.better[0].site


def require(plan: Plan) -> None:
    """Raise UserErrors for every published row, trend and comparison that the study's words do not explain."""
    if not plan.published and not plan.study.trends:
        cells.primary_pairs(plan)
        hypotheses.require(plan)
        return
    words = Words(plan)
    checks: list[Callable[[], object]] = []
    for path in plan.published:
        checks += [functools.partial(words.target, row) for row in rows(path)]
    checks += [functools.partial(pairs, words, n, trend) for n, trend in enumerate(plan.study.trends)]
    checks += [functools.partial(cells.primary_pairs, plan), functools.partial(hypotheses.require, plan)]
    faults: dict[tuple[str, str], UserError] = {}
    for check in checks:
        try:
            check()
        except UserError as error:
            for fault in getattr(error, "errors", [error]):
                # A word that is unknown in all rows of a table is told once.
                faults.setdefault((fault.where.partition(", row ")[0], fault.what), fault)
    if faults:
        raise UserErrors(faults.values())


def pairs(words: Words, number: int, trend: Trend) -> list[Pair]:
    """Return the pairs that a trend compares; none at mini scale where a side matches nothing.

    Two cells of a site are a pair if they agree in all settings that neither side names. Where no two do, the only cell
    of one side is paired with each cell of the other. Raises UserError, about the trend, for unknown words or sites,
    and where nothing matches.
    """
    where = f"{words.plan.path}.trends.{number}"
    mini = words.plan.scale == "mini"
    _require_quantity(words, trend, where)
    if isinstance(trend.at, tuple) and not mini:
        for site in trend.at:
            if site not in words.sites and trend.at != (UNION,):
                raise UserError(f"{where}.at", f"unknown site {site!r}", did_you_mean(site, words.sites))
    better = _options(words, trend.better, f"{where}.better")
    than = _options(words, trend.than, f"{where}.than")
    named = {key for selector in (*better, *than) for key in resolved(selector)}
    sides = [(selector, f"{where}.better") for selector in better] + [(selector, f"{where}.than") for selector in than]
    matched = [_by_site(_cells(words, selector, trend, at), named, at) for selector, at in sides]
    made = []
    for place in matched[0]:
        if all(place in cells for cells in matched):
            alike = [_like(matched[0][place], cells[place], where) for cells in matched]
            for key in alike[0]:
                if all(key in cells for cells in alike):
                    chosen = tuple(cells[key] for cells in alike)
                    made.append(Pair(chosen[: len(better)], chosen[len(better) :]))
    if not made and not mini:
        raise UserError(where, "better and than have no site in common", "check at, role and held_out")
    return made


def _require_quantity(words: Words, trend: Trend, where: str) -> None:
    """Raise UserError where no run measures the quantity of a trend."""
    if trend.of not in RECORDED and trend.of not in words.metrics:
        raise UserError(f"{where}.of", f"the study does not score {trend.of!r}", "add it to its metrics")
    if trend.of == "training_loss" and not all(run.training.training_loss_every for run in words.plan.runs.values()):
        fault = "training_loss is not evaluated in every run"
        raise UserError(f"{where}.of", fault, "set training.training_loss_every, or compare step_loss")


def _options(words: Words, side: Side, where: str) -> list[dict[str, Any]]:
    """Return the merged selectors of a side: one, or several of which the best counts."""
    nested = isinstance(side, tuple) and not all(isinstance(part, str) for part in side)
    options = []
    for part in side if nested else (side,):
        selectors = [part] if isinstance(part, dict) else [words.word(str(word), where) for word in part]
        if None in selectors:
            raise UserError(where, f"{', '.join(map(str, part))}: left out on purpose", "name what the study runs")
        try:
            option = merged(selector for selector in selectors if selector is not None)
            resolved(option)
        except UserError as error:
            raise UserError(where, f"{error.where} {error.what}", error.remedy) from None
        options.append(option)
    return options


def _cells(words: Words, selector: dict[str, Any], trend: Trend, where: str) -> list[Cell]:
    """Return the cells that a selector matches at the sites of a trend."""
    recorded = trend.of in RECORDED
    if trend.at == (UNION,):
        if recorded:
            raise UserError(where, f"{trend.of} is recorded at single sites, and has no union", "leave out at")
        selector = {**selector, "site": UNION}
    mini = words.plan.scale == "mini"
    if recorded and "inference" in selector:
        raise UserError(where, f"names an inference, and {trend.of} is recorded in training", "leave it out")
    try:
        cells = words.finder.cells(selector, predicted=not recorded)
    except UserError as error:
        if mini:
            return []
        raise UserError(where, f"{error.where}: {error.what}", error.remedy) from None
    if trend.at in CHOICES["role"]:
        cells = [cell for cell in cells if cell.role == trend.at]
    elif isinstance(trend.at, tuple):
        cells = [cell for cell in cells if cell.site in trend.at]
    if not cells and not mini:
        raise UserError(where, f"matches nothing that the study runs: {json.dumps(selector)}", "see its runs")
    return cells


def _by_site(cells: list[Cell], named: set[str], where: str) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return cells by role and site, and then by all settings that no side names.

    Cells that agree in these are a pair. Raises UserError where two cells of one side and site agree.
    """
    hidden = set(named)
    if "held_out" in named:  # another partition has other sites and splits, too
        hidden.add("partition")
    by_site: dict[tuple[str, str], dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        settings = {
            path: value
            for path, value in cell.condition.settings.items()
            if not any(path == name or path.startswith(f"{name}.") for name in hidden)
        }
        if "inference" not in named:
            settings["inference"] = cell.inference
        key = json.dumps(settings, sort_keys=True)
        at = by_site[cell.role, cell.site]
        if key in at:
            remedy = f"say which: they differ in {', '.join(differing([at[key], cell]))}"
            raise UserError(where, f"matches several conditions at {cell.site!r}", remedy)
        at[key] = cell
    return by_site


def _like(first: dict[str, Cell], second: dict[str, Cell], where: str) -> dict[str, Cell]:
    """Return, for the keys of `first`, the cells of `second`: those of equal keys, or its only cell for all of them."""
    if first.keys() & second.keys():
        return {key: second[key] for key in first if key in second}
    if len(second) == 1:
        return dict.fromkeys(first, next(iter(second.values())))
    site = next(iter(first.values())).site
    remedy = f"say which: they differ in {', '.join(differing(second.values()))}"
    raise UserError(where, f"has nothing like the one condition among {len(second)} at {site!r}", remedy)
