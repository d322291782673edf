"""What was published: the items of the papers, their tables, and their claims, as a study names them.

Imports no torch and no pandas: Snakemake reads a study before anything runs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from . import registry
from .errors import UserError
from .fields import MANY
from .files import read_yaml
from .selector import Selector, checked

KINDS = {"R": "printed numbers", "F": "figure only", "S": "setting or illustration"}
RECORDED = {"training_loss": False, "validation_accuracy": True, "traffic": False}
"""What a trend may be of beside metrics, from the record of the rounds; whether more is better."""
_COLUMNS = ("method", "site", "metric", "value")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Published(_Frozen):
    """Printed tables, and what their words stand for."""

    tables: Annotated[tuple[str, ...], Field(min_length=1), *MANY] = Field(
        description="names of files in config/published; or paths of CSVs, seen from the study's folder"
    )
    words: dict[str, Selector | None] = Field(
        {},
        description="of the columns method, variant (parts between ';') and site; null: known, and left out on "
        "purpose. A * stands for any text. A plug-in's name need not be told",
    )
    where: Selector = Field({}, description="what holds for every row")
    seeds: Annotated[int, Field(ge=1)] | dict[str, Annotated[int, Field(ge=1)]] = Field(
        5, description="trainings behind a printed value; or by table (others: 5)"
    )
    statistics: bool = Field(True, description="of traffic: whether the model's running statistics count")
    not_comparable: str = Field("", description="why no verdict is to be given, if so")

    def trainings(self, table: str) -> int:
        """How many trainings a value of a table is the mean of."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.get(table, 5)


def _side(value: Any) -> Any:
    """Words to be merged, several such lists, or a selector."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        return checked(value)
    if isinstance(value, list | tuple) and value:
        if all(isinstance(v, str) for v in value):
            return tuple(value)
        return tuple(_side(v) for v in value)
    raise UserError(registry.HERE, "is a list of words, or a mapping of settings", f"got {value!r}")


Side = Annotated[
    tuple[str, ...] | dict[str, Any] | tuple[tuple[str, ...] | dict[str, Any], ...], BeforeValidator(_side)
]


def _of(name: str) -> str:
    if name not in RECORDED:
        registry.get("metric", name, registry.HERE)
    return name


class Trend(_Frozen):
    """An ordering, or a gain, that a paper claims."""

    claim: str = Field(description="in one sentence, in your words")
    better: Side = Field(description="words of `published`, merged; or settings; of several of these, the best counts")
    than: Side = Field(description="the same")
    at: Literal["all", "internal", "external"] | tuple[str, ...] = Field("all", description="a role, or sites")
    of: Annotated[str, AfterValidator(_of)] = Field(
        "accuracy",
        description="a metric; or training_loss, validation_accuracy (mean over rounds) or traffic (floats, summed)",
    )
    by: float = Field(0.0, description="the least difference, in points of a percentage, or in the metric's own unit")
    within: float | None = Field(
        None, gt=0, description="in place of `by`: the most that both may differ in either direction, in its unit"
    )
    at_least: Annotated[int, Field(ge=1)] | Literal["all"] | None = Field(
        None, description="sites at which it must hold, or all; default: the mean over sites decides"
    )

    @model_validator(mode="after")
    def _one_bound(self) -> Trend:
        if self.within is not None and self.by:
            raise UserError(f"{registry.HERE}.within", "and by: a trend has one bound", "leave out one of them")
        return self


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


def file(name: str, folder: Path) -> Path:
    """Where a table lies, given the folder of its study: beside that folder, or in config/published."""
    if name.endswith(".csv"):
        return folder / name
    beside = folder.parent / "published" / f"{name}.csv"
    return beside if beside.exists() else Path("config", "published", beside.name)


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
