"""The tables and trends of papers, and the cells of a study (condition, inference, site) that their words stand for.

The module imports neither torch nor pandas, since Snakemake reads a study before anything runs.
"""

from __future__ import annotations

import csv
import fnmatch
import functools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import registry
from ..core.errors import UserError, UserErrors, did_you_mean
from ..io.text import read_yaml
from ..study.published import BASELINE, CHOICES, RECORDED, Side, Trend, merged, resolved
from . import hypotheses
from .conditions import UNION, Cell, Finder, differing, primary_pairs

if TYPE_CHECKING:
    from ..study.plan import Plan


SENT = "exchanged_MB_per_iteration"
"""Name of the traffic of a round in published tables, in MB."""
MESSAGES = (
    SENT,
    "exchanged_GB_total",
    "exchanged_total_as_printed_GB",
    "extra_rounds_percent",
    "extra_bits_percent",
)
"""Published quantities that are compared with the ledger (traffic), not with scores."""
OVER = "percent_over_"
"""Prefix of a further published quantity: the traffic in percent beyond a condition, whose word follows the prefix."""
_KINDS = ("algorithm", "addon", "inference")


@dataclass(frozen=True)
class Target:
    """A published value with our metric and the cell of the study that it is compared with.

    Attributes
    ----------
    row : the published value
    metric : our name of its metric or quantity
    percent : True if the paper prints the metric in percent
    cell : the cell (condition under an inference at a site); None if the study does not run it
    reference : the cell whose traffic is 100 %, for a quantity that begins with `percent_over_` (OVER)
    """

    row: Row
    metric: str
    percent: bool
    cell: Cell | None
    reference: Cell | None = None

    @property
    def ledger(self) -> bool:
        """True if the value is an amount of traffic, which the ledger has."""
        return _is_counted(self.metric)

    @property
    def scale(self) -> float:
        """The factor from the printed value to the unit of our metric."""
        return 0.01 if self.percent else 1.0


def of_ledger(plan: Plan) -> bool:
    """Return whether any published value of a study is an amount of traffic, which the ledger has.

    Tables that cannot be found are skipped.
    """
    return any(_is_counted(row.metric) for path in plan.published if path.is_file() for row in rows(path))


def _is_counted(metric: str) -> bool:
    """Return whether a published quantity is an amount of traffic, which the ledger has."""
    return metric in MESSAGES or metric.startswith(OVER)


class Words:
    """The words in published tables (methods, variants, sites), and the cells of a study that they stand for.

    A cell is a condition under an inference at a site.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.finder = Finder(plan)
        self.published = plan.study.published
        self.selectors: Mapping[str, dict[str, Any] | None] = self.published.words if self.published else {}
        self.sites = list(dict.fromkeys(s for p in plan.partitions for s in (*p.internal, *p.external)))
        self.metrics = dict.fromkeys([*plan.study.metrics, plan.study.headline])

    def targets(self) -> Iterator[Target]:
        """Yield every published value with our metric and our cell for it (a condition under an inference at a site).

        Values that the study leaves out on purpose are skipped.
        """
        for path in self.plan.published:
            yield from self.of(path)

    def of(self, path: Path) -> list[Target]:
        """Return the values of one published table, each with our metric and our cell for it.

        A cell is a condition under an inference at a site. Values that the study leaves out on purpose are skipped.
        """
        return [target for row in rows(path) if (target := self.target(row))]

    def target(self, row: Row) -> Target | None:
        """Return the target of a printed value: our metric, and the cell of the study that it is compared with.

        Return None if the study leaves the value out on purpose. Raises UserError, which names the row of the table.
        """
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
        """Return our name of the metric of a row, and whether its values are in percent.

        Raises UserError for an unknown one.
        """
        if _is_counted(row.metric):
            return row.metric, False
        name = row.metric.removesuffix("_percent")
        if not registry.find("metric", name):
            names = [*(f"{metric}_percent" for metric in registry.discover("metric")), *MESSAGES]
            raise UserError(row.where, f"unknown metric {row.metric!r}", did_you_mean(row.metric, names))
        if name not in self.metrics:
            raise UserError(row.where, f"the study does not score {name!r}", "add it to the metrics of the study")
        return name, name != row.metric

    def _key(self, word: str) -> str | None:
        """Return the key of `published.words` that fits a word: the word itself, else the first pattern.

        Return None if none fits.
        """
        if word in self.selectors:
            return word
        return next((key for key in self.selectors if "*" in key and fnmatch.fnmatchcase(word, key)), None)

    def word(self, word: str, where: str) -> dict[str, Any] | None:
        """Return the selector (settings) that a word stands for, or None if the study leaves the word out on purpose.

        A word is a key of `published.words`, or the name of a plug-in. Raises UserError, at `where`, for an unknown
        word.
        """
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
        """Return the selector that the site of a row stands for, or None if the study leaves it out on purpose.

        Raises UserError for an unknown site, except at mini scale, at which studies may have fewer sites.
        """
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
        """Return the one cell (condition under an inference at a site) that fits all `selectors` of a row.

        Return None if the study does not run it. If not `predicted`, a condition without inference is meant. Raises
        UserError if the words contradict each other, or fit several cells.
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
            remedy = f"add a setting in which they differ to published.words: {', '.join(differing(cells))}"
            raise UserError(row.where, f"{words}: {len(cells)} conditions of the study fit, not one", remedy)
        return next(iter(cells), None)


@functools.cache
def _plugins() -> dict[str, tuple[str, str]]:
    """Return kind and name of the plug-ins that tables may name, by the lower-case names of file and class."""
    plugins: dict[str, tuple[str, str]] = {}
    for kind in _KINDS:
        for name, cls in registry.discover(kind).items():
            if name != BASELINE:
                plugins |= {name: (kind, name), cls.__name__.lower(): (kind, name)}
    return plugins


KINDS = {"R": "printed numbers", "F": "figure only", "S": "setting or illustration"}
"""Kinds of tables and figures in papers, by their letter in the CSV file that lists them."""

_COLUMNS = ("method", "site", "metric", "value")


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper. `kind` is R (printed numbers), F (figure only) or S (setting or illustration)."""

    id: str
    paper: str
    place: str
    kind: str
    what: str


def items(path: Path) -> dict[str, Item]:
    """Return all tables and figures of papers by id, from the CSV file `path`.

    Raises UserError for an unknown kind, or an id that appears twice.
    """
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
    """Return the content of the study files (YAML) in a folder by name; {} for a file that cannot be read."""
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
    """A printed value, as the file of its published table has it.

    Attributes
    ----------
    table, where : name of the table, and path and row number for messages
    method, variant, site, metric : words of the paper
    value, std : printed mean and standard deviation; NaN without one
    precision : one unit of the last printed digit
    misprint : why the printed value cannot be right; empty if nothing is known
    """

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
    """Return the files with published values: the tables, and the lists of known misprints beside them."""
    tables = list(tables)
    misprints = dict.fromkeys(_beside(table) for table in tables)
    return [*tables, *(path for path in misprints if path.exists())]


def _beside(table: Path) -> Path:
    """Return the path of the list of known misprints beside a table."""
    return table.with_name("misprints.csv")


def rows(path: Path) -> list[Row]:
    """Return the printed values in the file of a published table.

    Raises UserError for missing columns, or text in place of numbers.
    """
    beside, names = _beside(path), ("table", "method", "variant", "site", "metric")
    noted = _read(beside, (*names, "what")) if beside.exists() else ()
    misprints = {tuple(row[name] for name in names): row["what"] for _, row in noted}
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


def _number(text: str, where: str, column: str) -> float:
    """Return a cell as a finite number, or NaN. Raises UserError, at `where`, for anything else."""
    try:
        number = float(text)
    except ValueError:
        number = math.inf
    if math.isinf(number):
        raise UserError(where, f"{column} {text!r} is not a number")
    return number


def _read(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file with their line numbers, as an editor counts them.

    Raises UserError if one of `columns` is missing, or the file cannot be read.
    """
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


@dataclass(frozen=True)
class Pair:
    """The cells of both sides of a trend (a claim of a paper) at one site: `better` is claimed to beat `than`.

    If a side has several cells, the best of them counts.
    """

    better: tuple[Cell, ...]
    than: tuple[Cell, ...]

    @property
    def site(self) -> str:
        """The site of the pair."""
        return self.better[0].site


def require(plan: Plan) -> None:
    """Raise UserErrors for every published value, trend, primary comparison and hypothesis that does not fit.

    They do not fit if they name a condition, site, metric or word that the study does not have.
    """
    if not plan.published and not plan.study.trends:
        primary_pairs(plan)
        hypotheses.require(plan)
        return
    words = Words(plan)
    checks: list[Callable[[], object]] = []
    for path in plan.published:
        checks += [functools.partial(words.target, row) for row in rows(path)]
    checks += [functools.partial(pairs, words, n, trend) for n, trend in enumerate(plan.study.trends)]
    checks += [functools.partial(primary_pairs, plan), functools.partial(hypotheses.require, plan)]
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
    """Return the pairs of cells that a trend (a claim of a paper) compares; [] at mini scale if a side matches nothing.

    A cell is a condition under an inference at a site. Two cells at a site are a pair if they agree in all settings
    that neither side names. If no two do, the only cell of one side is paired with each cell of the other. `number` is
    the position of the trend in the study. Raises UserError for unknown words or sites, and if nothing matches.
    """
    where = f"{words.plan.path}.trends.{number}"
    mini = words.plan.scale == "mini"
    if trend.of not in RECORDED and trend.of not in words.metrics:
        raise UserError(f"{where}.of", f"the study does not score {trend.of!r}", "add it to the metrics of the study")
    if trend.of == "training_loss" and not all(run.training.training_loss_every for run in words.plan.runs.values()):
        fault = "training_loss is not evaluated in every run"
        raise UserError(f"{where}.of", fault, "set training.training_loss_every, or compare step_loss")
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
        raise UserError(
            where,
            "`better` and `than` have no site in common",
            "change `at`, or `role` and `held_out` of the two sides",
        )
    return made


def _options(words: Words, side: Side, where: str) -> list[dict[str, Any]]:
    """Return the selectors (settings) of a side of a trend: one, or several of which the best counts.

    Raises UserError, at `where`, for a word that the study leaves out on purpose, or words that contradict each other.
    """
    nested = isinstance(side, tuple) and not all(isinstance(part, str) for part in side)
    options = []
    for part in side if nested else (side,):
        selectors = [part] if isinstance(part, dict) else [words.word(str(word), where) for word in part]
        if None in selectors:
            raise UserError(
                where,
                f"{', '.join(map(str, part))}: published.words leaves it out (null)",
                "use words of what the study runs",
            )
        try:
            option = merged(selector for selector in selectors if selector is not None)
            resolved(option)
        except UserError as error:
            raise UserError(where, f"{error.where} {error.what}", error.remedy) from None
        options.append(option)
    return options


def _cells(words: Words, selector: dict[str, Any], trend: Trend, where: str) -> list[Cell]:
    """Return the cells (conditions under an inference at a site) that a selector matches at the sites of a trend.

    A selector holds wanted values of settings. Raises UserError, at `where`, if there are none, except at mini scale.
    """
    recorded = trend.of in RECORDED
    if trend.at == (UNION,):
        if recorded:
            raise UserError(
                where, f"{trend.of} is recorded at single sites, not at their union", "remove at from the trend"
            )
        selector = {**selector, "site": UNION}
    mini = words.plan.scale == "mini"
    if recorded and "inference" in selector:
        raise UserError(where, f"names an inference, but {trend.of} is recorded in training", "leave out the inference")
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
        raise UserError(
            where, f"matches nothing that the study runs: {json.dumps(selector)}", "name settings of its runs"
        )
    return cells


def _by_site(cells: list[Cell], named: set[str], where: str) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return the scores (`cells`) of one side of a trend by role and site, and then by all settings but `named`.

    `named` are the settings by which the two sides of the trend are told apart; the others are a key, as JSON text.
    Raises UserError, at `where`, if two scores of one site have the same key.
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
            remedy = f"name one by a setting in which they differ: {', '.join(differing([at[key], cell]))}"
            raise UserError(where, f"matches several conditions at {cell.site!r}", remedy)
        at[key] = cell
    return by_site


def _like(first: dict[str, Cell], second: dict[str, Cell], where: str) -> dict[str, Cell]:
    """Return, by the keys of `first`, the cells of `second` that stand opposite to the cells of `first` in a trend.

    Both map settings to cells. An opposite cell has equal settings or, if none has, is the only cell of `second`.
    Raises UserError, at `where`, if there are several candidates.
    """
    if first.keys() & second.keys():
        return {key: second[key] for key in first if key in second}
    if len(second) == 1:
        return dict.fromkeys(first, next(iter(second.values())))
    site = next(iter(first.values())).site
    remedy = f"name one by a setting in which they differ: {', '.join(differing(second.values()))}"
    raise UserError(where, f"the settings of the other side fit none of {len(second)} conditions at {site!r}", remedy)
