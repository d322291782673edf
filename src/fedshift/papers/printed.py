"""The tables and figures of the papers, and the values that the tables print.

Imports neither torch nor pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..io.text import read_yaml

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
        variants = (word.strip() for word in self.variant.split(";"))
        return [self.method, *filter(None, variants)]


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
