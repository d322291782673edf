"""The tables of papers, the values that they print, and the cells of a study that their words mean.

Imports neither torch nor pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import UserError, did_you_mean
from ..io.text import read_yaml
from ..study.published import BASELINE, merged
from .cells import UNION, Cell, Finder, differing

if TYPE_CHECKING:
    from ..study.plan import Plan


SENT = "exchanged_MB_per_iteration"
MESSAGES = (
    SENT,
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

    `reference` is the condition that traffic is compared with, where the value is a share of traffic.
    """

    row: Row
    metric: str
    percent: bool
    cell: Cell | None
    reference: Cell | None = None

    @property
    def ledger(self) -> bool:
        """True where the value comes from the ledger."""
        return _is_counted(self.metric)

    @property
    def scale(self) -> float:
        """The factor from a printed value to the unit of our metric."""
        return 0.01 if self.percent else 1.0


def of_ledger(plan: Plan) -> bool:
    """Return whether any published value is an amount of traffic, as the ledger of a study counts it.

    Tables of published values that cannot be found are passed over.
    """
    return any(_is_counted(row.metric) for path in plan.published if path.is_file() for row in rows(path))


def _is_counted(metric: str) -> bool:
    """Return whether a published quantity comes from the ledger."""
    return metric in MESSAGES or metric.startswith(OVER)


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
        """Return the targets of one published table: for each printed number, what to compare it with in the study."""
        return [target for row in rows(path) if (target := self.target(row))]

    def target(self, row: Row) -> Target | None:
        """Return the target of a row, or None if the study leaves it out. Raises UserError, which names the row."""
        assert self.published is not None
        metric, percent = self._metric(row)
        counted = _is_counted(metric)
        parts = [self.word(word, row.where) for word in row.words]
        if not counted:
            parts.append(self._site(row))
        selectors = [part for part in parts if part is not None]
        if len(selectors) < len(parts):
            return None
        reference = None
        if metric.startswith(OVER):
            method = self.word(metric.removeprefix(OVER), row.where)
            if method is None:
                return None
            # The condition that is compared with differs in the word for the method; the words of variants are shared.
            reference = self._cell(row, [self.published.where, method, *selectors[1:]], predicted=False)
        cell = self._cell(row, [self.published.where, *selectors], predicted=not counted)
        return Target(row, metric, percent, cell, reference)

    def _metric(self, row: Row) -> tuple[str, bool]:
        """Return our name of a row's metric, and whether its values are in percent."""
        if _is_counted(row.metric):
            return row.metric, False
        name = row.metric.removesuffix("_percent")
        if not registry.find("metric", name):
            names = [*(f"{metric}_percent" for metric in registry.discover("metric")), *MESSAGES]
            raise UserError(row.where, f"unknown metric {row.metric!r}", did_you_mean(row.metric, names))
        if name not in self.metrics:
            raise UserError(row.where, f"the study does not score {name!r}", "add it to its metrics")
        return name, name != row.metric

    def _key(self, word: str) -> str | None:
        """Return the key of `published.words` that a word means: the word itself, or the first pattern that fits."""
        if word in self.selectors:
            return word
        return next((key for key in self.selectors if "*" in key and fnmatch.fnmatchcase(word, key)), None)

    def word(self, word: str, where: str) -> dict[str, Any] | None:
        """Return the selector of a word, or None if the study leaves it out. Raises UserError for an unknown word."""
        key = self._key(word)
        if key is not None:
            return self.selectors[key]
        if word.lower() in _plugins():
            kind, name = _plugins()[word.lower()]
            return {kind: {"name": name}}
        classes = [cls.__name__ for kind in _KINDS for cls in registry.discover(kind).values()]
        remedy = did_you_mean(word, [*self.selectors, *classes])
        raise UserError(where, f"unknown word {word!r}", f"add it to published.words; {remedy}")

    def _site(self, row: Row) -> dict[str, Any] | None:
        """Return the selector of a row's site. Unknown sites are allowed at mini scale, which may be cut down."""
        mini = self.plan.scale == "mini"
        key = self._key(row.site)
        if key is None:
            if row.site not in self.sites and not mini:
                remedy = did_you_mean(row.site, [*self.selectors, *self.sites])
                raise UserError(row.where, f"unknown site {row.site!r}", f"add it to published.words; {remedy}")
            return {"site": row.site}
        selector = self.selectors[key]
        if selector is not None and not mini:
            site = selector.get("site", row.site)
            if site not in (*self.sites, UNION):
                fault = f"site {site!r} of the word {row.site!r} is not in the study"
                raise UserError(row.where, fault, did_you_mean(site, self.sites))
        return selector

    def _cell(self, row: Row, selectors: Sequence[Mapping[str, Any]], *, predicted: bool) -> Cell | None:
        """Return the only cell of a row, or None if the study does not run it.

        Raises UserError where words contradict each other, or leave several cells.
        """
        words = ", ".join(map(repr, [*row.words, *[row.site] * predicted]))
        try:
            cells = self.finder.cells(merged(selectors), predicted=predicted)
        except UserError as error:
            if self.plan.scale == "mini" and "no run" in error.what:
                return None
            raise UserError(row.where, f"{words}: {error.where} {error.what}", error.remedy) from None
        if not predicted:
            # Traffic is counted for a whole condition: one of its sites stands for all.
            cells = list({id(cell.condition): cell for cell in cells}.values())
        if len(cells) > 1:
            remedy = f"say more of them in published.words: they differ in {', '.join(differing(cells))}"
            raise UserError(row.where, f"{words}: {len(cells)} conditions of the study are meant", remedy)
        return next(iter(cells), None)


@functools.cache
def _plugins() -> dict[str, tuple[str, str]]:
    """Return kind and name of each plug-in that is a word by itself, by its file's and its class's name."""
    plugins: dict[str, tuple[str, str]] = {}
    for kind in _KINDS:
        for name, cls in registry.discover(kind).items():
            if name != BASELINE:
                plugins |= {name: (kind, name), cls.__name__.lower(): (kind, name)}
    return plugins


KINDS = {"R": "printed numbers", "F": "figure only", "S": "setting or illustration"}

_COLUMNS = ("method", "site", "metric", "value")


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper. `kind` is one of KINDS."""

    id: str
    paper: str
    place: str
    kind: str
    what: str


def items(path: Path) -> dict[str, Item]:
    """Return all tables and figures by id. Raises UserError for an unknown kind, or an id that appears twice."""
    by_id: dict[str, Item] = {}
    for line, row in _read(path, tuple(Item.__dataclass_fields__)):
        item = Item(**{name: row[name] for name in Item.__dataclass_fields__})
        if item.kind not in KINDS:
            raise UserError(f"{path}, row {line}", f"unknown kind {item.kind!r}", f"known: {', '.join(KINDS)}")
        if item.id in by_id:
            raise UserError(f"{path}, row {line}", f"{item.id!r} appears twice", "remove one of the rows")
        by_id[item.id] = item
    return by_id


def said(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of the files of a folder of studies by name; empty where a file cannot be read."""
    contents: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_yaml(path)
        except UserError:
            content = None
        contents[path.stem] = content if isinstance(content, dict) else {}
    return contents


@dataclass(frozen=True)
class Row:
    """A printed value as its file has it. `precision` is one unit of its last digit."""

    table: str
    where: str
    method: str
    variant: str
    site: str
    metric: str
    value: float
    std: float
    precision: float
    misprint: str = ""

    @property
    def words(self) -> list[str]:
        """The words of method and variant, in order."""
        return [self.method, *filter(None, map(str.strip, self.variant.split(";")))]


def inputs(tables: Iterable[Path]) -> list[Path]:
    """Return the files with published values: tables, and the known misprints beside them."""
    tables = list(tables)
    misprints = dict.fromkeys(_beside(table) for table in tables)
    return [*tables, *(path for path in misprints if path.exists())]


def _beside(table: Path) -> Path:
    return table.with_name("misprints.csv")


def rows(path: Path) -> list[Row]:
    """Return the rows of a published table. Raises UserError for missing columns, or values other than numbers."""
    misprints = _misprints(_beside(path))
    values = []
    for line, row in _read(path, _COLUMNS):
        where = f"{path}, row {line}"
        variant = row.get("variant") or ""
        values.append(
            Row(
                *(path.stem, where, row["method"], variant, row["site"], row["metric"]),
                value=_number(row["value"], where, "value"),
                std=_number(row.get("std") or "nan", where, "std"),
                # Half of this unit is lost by rounding: a printed 70.1 may be 70.05 to 70.15.
                precision=10.0 ** -len(row["value"].partition(".")[2]),
                misprint=misprints.get((path.stem, row["method"], variant, row["site"], row["metric"]), ""),
            )
        )
    return values


def _misprints(path: Path) -> dict[tuple[str, ...], str]:
    """Return the known misprints by table, method, variant, site and metric."""
    if not path.exists():
        return {}
    key = ("table", "method", "variant", "site", "metric")
    return {tuple(row[k] for k in key): row["what"] for _, row in _read(path, (*key, "what"))}


def _number(text: str, where: str, column: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise UserError(where, f"{column} {text!r} is not a number")
    return number


def _read(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the lines of a CSV with their numbers, counted as an editor counts them."""
    try:
        with path.open(encoding="utf-8", newline="") as text:
            reader = csv.DictReader(text, strict=True)
            if lost := [c for c in columns if c not in (reader.fieldnames or ())]:
                raise UserError(path, f"no column {', '.join(lost)}", f"it needs {', '.join(columns)}")
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}, row {reader.line_num}", "has too many or too few cells")
                yield reader.line_num, row
    except FileNotFoundError:
        raise UserError(path, "no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(path, f"not a readable CSV file: {error}") from error
