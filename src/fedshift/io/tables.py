"""Readers and writers. What is written is there whole or not at all (see `disk`); what is unreadable is named."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..core.errors import UserError
from .disk import atomic

if TYPE_CHECKING:
    import pandas as pd
from .text import UTF8, readable


def _is_csv(path: Path) -> bool:
    if Path(path).suffix not in (".csv", ".parquet"):
        raise UserError(path, "a table in an unknown format", "use .csv or .parquet")
    return Path(path).suffix == ".csv"


def write_table(path: Path, df: pd.DataFrame) -> None:
    """Writes a table, without its index, as CSV or Parquet by suffix. Floats keep all their digits."""
    is_csv = _is_csv(path)
    with atomic(path) as temporary:
        if is_csv:
            df.to_csv(temporary, index=False, lineterminator="\n")
        else:
            df.to_parquet(temporary, engine="pyarrow", index=False)


def read_table(path: Path, columns: Sequence[str] | None = None, *, text: bool = False) -> pd.DataFrame:
    """Reads a table, or the named columns of it in that order.

    In a CSV only an empty cell is missing: `NA` or `None` may well be the name of a hospital. With `text`, a CSV's
    other cells are taken as they stand, as by `read_texts`.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    is_csv = _is_csv(path)
    if is_csv and text:
        found = read_texts(path).reset_index(drop=True)
        return found[_wanted(path, [*found.columns], columns)]
    with readable(path, "table"):
        known = list(pd.read_csv(path, nrows=0).columns) if is_csv else pq.read_schema(path).names
        wanted = _wanted(path, known, columns)
        if not is_csv:
            return pd.read_parquet(path, engine="pyarrow", columns=wanted)
        options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
            options["float_precision"] = "round_trip"  # later versions read all digits by themselves
        return pd.read_csv(path, usecols=wanted, **options)[wanted]


def _wanted(path: Path, known: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    wanted = list(known if columns is None else columns)
    if missing := [c for c in wanted if c not in known]:
        raise UserError(path, f"no column {', '.join(map(repr, missing))}", f"it has {', '.join(known)}")
    return wanted


def read_texts(path: Path, called: Callable[[str], str] = str) -> pd.DataFrame:
    """A table whose cells are text as it stands: `007` stays `007`, and only an empty cell is missing.

    `called` makes the name of a column of what its head says; columns without a name are left out. The index tells
    where a row stands: its `line` in a CSV, its `row` in Parquet. Raises UserError where a column stands twice, and,
    with the line, where a row of a CSV has more cells than the header.
    """
    import pandas as pd

    if _is_csv(path):
        return _csv_texts(path, called)
    table = read_table(path)
    names, texts = [called(str(c)) for c in table], table.astype(str).where(table.notna(), None)
    _require_names(path, names)
    return texts.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(table) + 1, name="row"))


def _csv_texts(path: Path, called: Callable[[str], str]) -> pd.DataFrame:
    """`read_texts` of a CSV; pandas' own reader renames what stands twice, and shifts or drops what is too many."""
    import pandas as pd

    with readable(path, "table"), Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(file)
        first, head = next(rows, (0, []))
        if not head:
            raise ValueError("it is empty")
        _require_names(f"{path}, line {first}", names := [called(name) for name in head])
        lines, columns = list[int](), [list[str | None]() for _ in names]
        for line, cells in rows:
            if len(cells) > len(names):
                what = f"has {len(cells)} cells, but the header has {len(names)}"
                raise UserError(f"{path}, line {line}", what, "put a cell that holds a comma into quotes")
            lines.append(line)
            for column, cell in itertools.zip_longest(columns, cells):
                column.append(cell or None)
    named = {name: column for name, column in zip(names, columns, strict=True) if name}
    return pd.DataFrame(named, index=pd.Index(lines, dtype="int64", name="line"))


def _rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV, each with the line that it begins on. Blank lines are passed over."""
    reader, line = csv.reader(file, strict=True), 1
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None


def _require_names(where: object, names: list[str]) -> None:
    """Raise UserError for a header that does not name columns, each once."""
    if "\0" in "".join(names):
        raise UserError(where, "not a readable table file: every other byte is 0, as in UTF-16", UTF8)
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise UserError(where, f"has {word} between its columns", "separate them with commas")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(where, f"the column {twice[0]!r} stands twice", "rename one of them")
