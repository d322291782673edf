"""What was published: the items of the papers, their tables, and their claims, as a study names them.

Imports no torch and no pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..io.yaml import read_yaml

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
    """The list of all tables and figures, by id. Raises UserError for an unknown kind, or an id that stands twice."""
    found: dict[str, Item] = {}
    for line, row in _read(path, tuple(Item.__dataclass_fields__)):
        item = Item(**{name: row[name] for name in Item.__dataclass_fields__})
        if item.kind not in KINDS:
            raise UserError(f"{path}, row {line}", f"unknown kind {item.kind!r}", f"known: {', '.join(KINDS)}")
        if item.id in found:
            raise UserError(f"{path}, row {line}", f"{item.id!r} stands twice")
        found[item.id] = item
    return found


def said(folder: Path) -> dict[str, dict[str, Any]]:
    """What the files of a folder of studies say, by the study's name; empty where one cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            content = read_yaml(path)
        except UserError:
            content = None
        found[path.stem] = content if isinstance(content, dict) else {}
    return found


@dataclass(frozen=True)
class Row:
    """A printed value, as it stands in its file. `precision` is one unit of its last digit."""

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
        """Those of method and variant."""
        return [self.method, *(w for part in self.variant.split(";") if (w := part.strip()))]


def inputs(tables: Iterable[Path]) -> list[Path]:
    """The files that say what was published: tables, and the misprints that are known beside them."""
    tables = list(tables)
    beside = dict.fromkeys(_beside(table) for table in tables)
    return [*tables, *(path for path in beside if path.exists())]


def _beside(table: Path) -> Path:
    return table.with_name("misprints.csv")


def rows(path: Path) -> list[Row]:
    """A published table. Raises UserError for a lost column, and for a value that is no number."""
    wrong = _misprints(_beside(path))
    found = []
    for line, row in _read(path, _COLUMNS):
        where = f"{path}, row {line}"
        variant, std = row.get("variant") or "", row.get("std") or "nan"
        about = (path.stem, row["method"], variant, row["site"], row["metric"])
        found.append(
            Row(
                *(path.stem, where, row["method"], variant, row["site"], row["metric"]),
                _number(row["value"], where, "value"),
                _number(std, where, "std"),
                10.0 ** -len(row["value"].partition(".")[2]),
                wrong.get(about, ""),
            )
        )
    return found


def _misprints(path: Path) -> dict[tuple[str, ...], str]:
    """What is wrong with a printed value, by table, method, variant, site and metric."""
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
    """The lines of a CSV, counted as an editor does."""
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
