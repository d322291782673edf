"""The words of a study's published tables, and the cells that they mean. Imports neither torch nor pandas."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..study.selector import BASELINE, merged
from .conditions import Cell, Finder, differing
from .tables import Row, rows

if TYPE_CHECKING:
    from pathlib import Path

    from ..study.plan import Plan

MESSAGES = (
    "exchanged_MB_per_iteration",
    "exchanged_GB_total",
    "exchanged_total_as_printed_GB",
    "extra_rounds_percent",
    "extra_bits_percent",
)
"""Published quantities that come from the ledger, not from scores."""
OVER = "percent_over_"
"""Begins the name of another such quantity: the traffic beyond that of a condition, whose word follows."""
_KINDS = ("algorithm", "addon", "inference")


@dataclass(frozen=True)
class Target:
    """A published value with our metric and our cell for it. `cell` is None where the study does not run it.

    `other` is the condition that traffic is compared with, where the value is a share of traffic.
    """

    row: Row
    metric: str
    percent: bool
    cell: Cell | None
    other: Cell | None = None

    @property
    def ledger(self) -> bool:
        """True where the value comes from the ledger."""
        return self.metric in MESSAGES or self.metric.startswith(OVER)

    @property
    def scale(self) -> float:
        """The factor from a printed value to the unit of our metric."""
        return 0.01 if self.percent else 1.0


def of_ledger(plan: Plan) -> bool:
    """Return whether any published value comes from the ledger. Tables that cannot be found are passed over."""
    tables = [path for path in plan.published if path.is_file()]
    return any(row.metric in MESSAGES or row.metric.startswith(OVER) for path in tables for row in rows(path))


class Words:
    """The words of a study's published tables, and the cells of its plan that they stand for."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.finder = Finder(plan)
        self.published = plan.study.published
        self.selectors: Mapping[str, dict[str, Any] | None] = self.published.words if self.published else {}
        self.sites = list(dict.fromkeys(s for p in plan.partitions for s in (*p.internal, *p.external)))
        self.metrics = dict.fromkeys([*plan.study.metrics, plan.study.headline])

    def targets(self) -> Iterator[Target]:
        """Yield the target of every published row that the study does not leave out, tables in the order given."""
        for path in self.plan.published:
            yield from self.of(path)

    def of(self, path: Path) -> list[Target]:
        """Return the targets of one table."""
        return [target for row in rows(path) if (target := self.target(row))]

    def target(self, row: Row) -> Target | None:
        """Return the target of a row, or None if the study leaves it out. Raises UserError, which names the row."""
        assert self.published is not None
        metric, percent = self._metric(row)
        ledger = metric in MESSAGES or metric.startswith(OVER)
        parts = [self.word(w, row.where) for w in row.words]
        if not ledger:
            parts.append(self._site(row))
        if any(part is None for part in parts):
            return None
        known = [self.published.where, *(part for part in parts if part is not None)]
        other = None
        if metric.startswith(OVER):
            reference = self.word(metric.removeprefix(OVER), row.where)
            if reference is None:
                return None
            other = self._one(row, [self.published.where, reference, *known[2:]], predicted=False)
        return Target(row, metric, percent, self._one(row, known, predicted=not ledger), other)

    def _metric(self, row: Row) -> tuple[str, bool]:
        """Return our name of a row's metric, and whether its values are in percent."""
        if row.metric in MESSAGES or row.metric.startswith(OVER):
            return row.metric, False
        name, percent = row.metric.removesuffix("_percent"), row.metric.endswith("_percent")
        if name not in registry.discover("metric"):
            known = [*(f"{m}_percent" for m in registry.discover("metric")), *MESSAGES]
            raise UserError(row.where, f"unknown metric {row.metric!r}", did_you_mean(row.metric, known))
        if name not in self.metrics:
            raise UserError(row.where, f"the study does not score {name!r}", "add it to its metrics")
        return name, percent

    def word(self, word: str, where: str) -> dict[str, Any] | None:
        """Return the selector of a word, or None if the study leaves it out. Raises UserError for an unknown word."""
        if word in self.selectors:
            return self.selectors[word]
        for pattern in (w for w in self.selectors if "*" in w):
            if fnmatch.fnmatchcase(word, pattern):
                return self.selectors[pattern]
        if word.lower() in _plugins():
            kind, name = _plugins()[word.lower()]
            return {kind: {"name": name}}
        raise UserError(
            where,
            f"unknown word {word!r}",
            f"add it to published.words; {did_you_mean(word, [*self.selectors, *_named()])}",
        )

    def _site(self, row: Row) -> dict[str, Any] | None:
        """Return the selector of a row's site. Unknown sites are allowed at mini scale, which may be cut down."""
        known = row.site in self.selectors or any("*" in w and fnmatch.fnmatchcase(row.site, w) for w in self.selectors)
        if known:
            selector = self.word(row.site, row.where)
            site = selector.get("site", row.site) if selector else row.site
            if selector is None or site in self.sites or self.plan.scale == "mini":
                return selector
            what = f"site {site!r} of the word {row.site!r} is not in the study"
            raise UserError(row.where, what, did_you_mean(site, self.sites))
        if row.site not in self.sites and self.plan.scale != "mini":
            remedy = did_you_mean(row.site, [*self.selectors, *self.sites])
            raise UserError(row.where, f"unknown site {row.site!r}", f"add it to published.words; {remedy}")
        return {"site": row.site}

    def _one(self, row: Row, selectors: Sequence[Mapping[str, Any]], *, predicted: bool) -> Cell | None:
        """Return the only cell of a row. Raises UserError where words contradict each other, or leave several cells."""
        words = ", ".join(map(repr, [*row.words, *([row.site] if predicted else [])]))
        try:
            cells = self.finder.cells(merged(selectors), predicted=predicted)
        except UserError as error:
            if self.plan.scale == "mini" and "no run" in error.what:
                return None
            raise UserError(row.where, f"{words}: {error.where} {error.what}", error.remedy) from None
        if not predicted:
            cells = list({id(c.condition): c for c in cells}.values())
        if len(cells) > 1:
            remedy = f"say more of them in published.words: they differ in {', '.join(differing(cells))}"
            raise UserError(row.where, f"{words}: {len(cells)} conditions of the study are meant", remedy)
        return cells[0] if cells else None


@functools.cache
def _plugins() -> dict[str, tuple[str, str]]:
    """Return kind and name of each plug-in that is a word by itself, by its file's and its class's name."""
    plugins: dict[str, tuple[str, str]] = {}
    for kind in _KINDS:
        for name, cls in registry.discover(kind).items():
            if name != BASELINE:
                plugins |= {name: (kind, name), cls.__name__.lower(): (kind, name)}
    return plugins


def _named() -> list[str]:
    return [cls.__name__ for kind in _KINDS for cls in registry.discover(kind).values()]
