"""The pairs of cells that each trend of a study compares. Imports neither torch nor pandas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, UserErrors, did_you_mean
from ..study.published import RECORDED, Side, Trend
from ..study.selector import CHOICES, merged, resolved
from . import primary
from .conditions import Cell, differing
from .tables import rows
from .words import Words

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
        primary.pairs(plan)
        return
    faults: dict[tuple[str, str], UserError] = {}
    words = Words(plan)

    def gather(call: Callable[[], object]) -> None:
        try:
            call()
        except UserError as error:
            for one in getattr(error, "errors", [error]):  # a word that is unknown in all rows is one error
                faults.setdefault((one.where.partition(", row ")[0], one.what), one)

    for path in plan.published:
        for row in rows(path):
            gather(lambda row=row: words.target(row))  # type: ignore[misc]
    for number, trend in enumerate(plan.study.trends):
        gather(lambda n=number, t=trend: pairs(words, n, t))  # type: ignore[misc]
    gather(lambda: primary.pairs(plan))
    if faults:
        raise UserErrors(faults.values())


def of_rounds(plan: Plan) -> bool:
    """Return whether any trend is about a quantity that is recorded in rounds.parquet."""
    return any(trend.of in RECORDED for trend in plan.study.trends)


def pairs(words: Words, number: int, trend: Trend) -> list[Pair]:
    """Return the pairs that a trend compares; none at mini scale where a side matches nothing.

    Two cells of a site are a pair if they agree in all settings that neither side names. Where no two do, the only cell
    of one side is paired with each cell of the other. Raises UserError, about the trend, for unknown words or sites,
    and where nothing matches.
    """
    plan, where = words.plan, f"{words.plan.path}.trends.{number}"
    if trend.of not in RECORDED and trend.of not in words.metrics:
        raise UserError(f"{where}.of", f"the study does not score {trend.of!r}", "add it to its metrics")
    if trend.of == "training_loss" and not all(run.training.training_loss_every for run in plan.runs.values()):
        what = "training_loss is not evaluated in every run"
        raise UserError(f"{where}.of", what, "set training.training_loss_every, or compare step_loss")
    lost = [s for s in trend.at if s not in words.sites] if isinstance(trend.at, tuple) else []
    if lost and plan.scale != "mini":
        raise UserError(f"{where}.at", f"unknown site {lost[0]!r}", did_you_mean(lost[0], words.sites))
    sides = {key: _options(words, getattr(trend, key), f"{where}.{key}") for key in ("better", "than")}
    named = {k for options in sides.values() for option in options for k in resolved(option)}
    matched = [
        (key, _by_site(_cells(words, option, trend, f"{where}.{key}"), named, f"{where}.{key}"))
        for key, options in sides.items()
        for option in options
    ]
    first = matched[0][1]
    made = []
    for at in (place for place in first if all(place in cells for _, cells in matched)):
        beside = [(key, _like(first[at], cells[at], where)) for key, cells in matched]
        made += [
            Pair(*(tuple(cells[rest] for key, cells in beside if key == side) for side in sides))
            for rest in first[at]
            if all(rest in cells for _, cells in beside)
        ]
    if not made and plan.scale != "mini":
        raise UserError(where, "better and than have no site in common", "check at, role and held_out")
    return made


def _options(words: Words, side: Side, where: str) -> list[dict[str, Any]]:
    """Return the merged selectors of a side: one, or several of which the best counts."""
    nested = isinstance(side, tuple) and not all(isinstance(part, str) for part in side)
    out = []
    for part in side if nested else (side,):
        selectors = [part] if isinstance(part, dict) else [words.word(str(w), where) for w in part]
        if None in selectors:
            raise UserError(where, f"{', '.join(map(str, part))}: left out on purpose", "name what the study runs")
        try:
            out.append(merged(s for s in selectors if s is not None))
            resolved(out[-1])
        except UserError as error:
            raise UserError(where, f"{error.where} {error.what}", error.remedy) from None
    return out


def _cells(words: Words, selector: dict[str, Any], trend: Trend, where: str) -> list[Cell]:
    """Return the cells that a selector matches at the sites of a trend."""
    recorded, mini = trend.of in RECORDED, words.plan.scale == "mini"
    if recorded and "inference" in selector:
        raise UserError(where, f"names an inference, and {trend.of} is recorded in training", "leave it out")
    try:
        cells = words.finder.cells(selector, predicted=not recorded)
    except UserError as error:
        if mini:
            return []
        raise UserError(where, f"{error.where}: {error.what}", error.remedy) from None
    if trend.at in CHOICES["role"]:
        cells = [c for c in cells if c.role == trend.at]
    elif isinstance(trend.at, tuple):
        cells = [c for c in cells if c.site in trend.at]
    if not cells and not mini:
        raise UserError(where, f"matches nothing that the study runs: {json.dumps(selector)}", "see its runs")
    return cells


def _by_site(cells: list[Cell], named: set[str], where: str) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return cells by role and site, and then by all settings but the named ones."""
    hidden = {*named, *(["partition"] if "held_out" in named else [])}
    out: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        settings = cell.condition.settings.items()
        rest = {k: v for k, v in settings if not any(k == name or k.startswith(f"{name}.") for name in hidden)}
        key = json.dumps([rest, "" if "inference" in named else cell.inference], sort_keys=True)
        at = out.setdefault((cell.role, cell.site), {})
        if key in at:
            remedy = f"say which: they differ in {', '.join(differing([at[key], cell]))}"
            raise UserError(where, f"matches several conditions at {cell.site!r}", remedy)
        at[key] = cell
    return out


def _like(first: dict[str, Cell], other: dict[str, Cell], where: str) -> dict[str, Cell]:
    """Return, for the cells of `first`, those of `other` that agree in the rest; the only one for all if none does."""
    if set(first) & set(other):
        return {rest: other[rest] for rest in first if rest in other}
    if len(other) == 1:
        return dict.fromkeys(first, next(iter(other.values())))
    site = next(iter(first.values())).site
    remedy = f"say which: they differ in {', '.join(differing(other.values()))}"
    raise UserError(where, f"has nothing like the one condition among {len(other)} at {site!r}", remedy)
