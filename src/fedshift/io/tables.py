"""Tables as CSV or Parquet: written whole or not at all (see `disk`), and named when they are unreadable."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..core.errors import UserError
from .disk import atomic
from .text import UTF8, active, inert, readable

if TYPE_CHECKING:
    import pandas as pd


def _is_csv(path: Path) -> bool:
    """Return whether a table is a CSV, and not Parquet. Raises UserError for other suffixes."""
    if Path(path).suffix not in (".csv", ".parquet"):
        raise UserError(path, "a table in an unknown format", "use .csv or .parquet")
    return Path(path).suffix == ".csv"


def write_table(path: Path, df: pd.DataFrame) -> None:
    """Write a table without its index, as CSV or Parquet by its suffix. Floats keep all their digits.

    In a CSV, a text that a spreadsheet would run as a formula gets an apostrophe in front, which `read_table` takes
    away: names of sites, classes and files come from the data.
    """
    is_csv = _is_csv(path)
    with atomic(path) as temporary:
        if is_csv:
            _replaced(df, inert).to_csv(temporary, index=False, lineterminator="\n")
        else:
            df.to_parquet(temporary, engine="pyarrow", index=False)


def read_table(path: Path, columns: Sequence[str] | None = None, *, text: bool = False) -> pd.DataFrame:
    """Read a table, or the named columns of it in that order.

    In a CSV only an empty cell is missing: `NA` or `None` may well be the name of a hospital. With `text`, the other
    cells of a CSV stay text, as in `read_texts`. Raises UserError for a file that is unreadable or lacks a column.
    """
    import pandas as pd
    import pyarrow.parquet as pq

    is_csv = _is_csv(path)
    if is_csv and text:
        texts = read_texts(path).reset_index(drop=True)
        return restored(texts[_wanted(path, [*texts.columns], columns)])
    with readable(path, "table"):
        if not is_csv:
            wanted = _wanted(path, pq.read_schema(path).names, columns)
            table = pd.read_parquet(path, engine="pyarrow", columns=wanted)
            for column in table.select_dtypes(exclude="number"):
                # texts are decoded when they are asked for: damage shows here
                table[column].to_numpy(dtype=object)
            return table
        wanted = _wanted(path, list(pd.read_csv(path, nrows=0).columns), columns)
        options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
        if tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1):
            # later versions read all digits by themselves
            options["float_precision"] = "round_trip"
        return restored(pd.read_csv(path, usecols=wanted, **options)[wanted])


def restored(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that was read from a CSV without the apostrophes that `write_table` has added."""
    return _replaced(table, active)


def _replaced(table: pd.DataFrame, changed: Callable[[str], str]) -> pd.DataFrame:
    """Return a table in which each text is that which `changed` makes of it."""
    for name, column in table.select_dtypes(exclude=["number", "bool"]).items():
        texts = {text: changed(text) for text in column.unique() if isinstance(text, str)}
        if any(text != new for text, new in texts.items()):
            table = table.assign(**{str(name): column.map(lambda cell, texts=texts: texts.get(cell, cell))})
    return table


def _wanted(path: Path, present: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """Return the columns to read: all if none are named. Raises UserError for one that the table does not have."""
    if columns is None:
        return list(present)
    missing = [name for name in columns if name not in present]
    if missing:
        raise UserError(path, f"no column {', '.join(map(repr, missing))}", f"it has {', '.join(present)}")
    return list(columns)


def read_texts(path: Path, called: Callable[[str], str] = str) -> pd.DataFrame:
    """Read a table whose cells stay text: `007` stays `007`, and only an empty cell is missing.

    `called` turns the head of a column into its name; columns without a name are left out. The index says where a row
    is: its `line` in a CSV, its `row` in Parquet. Raises UserError for a column that appears twice and, with the line,
    for a row of a CSV that has more cells than the header.
    """
    import pandas as pd

    if _is_csv(path):
        return _csv_texts(path, called)
    table = read_table(path)
    names = [called(str(c)) for c in table]
    texts = table.astype(str).where(table.notna(), None)
    _require_names(path, names)
    return texts.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(table) + 1, name="row"))


def _csv_texts(path: Path, called: Callable[[str], str]) -> pd.DataFrame:
    """Read a CSV as `read_texts` does; pandas' own reader renames double columns and shifts or drops extra cells."""
    import pandas as pd

    with readable(path, "table"), Path(path).open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(file)
        first, head = next(rows, (0, []))
        if not head:
            raise ValueError("it is empty")
        if head[0].lower().startswith("sep=") or (len(head) == 1 and head[0].startswith("#")):
            raise UserError(f"{path}, line {first}", f"is {','.join(head)!r} and no header", "remove this line")
        names = [called(name) for name in head]
        _require_names(f"{path}, line {first}", names)
        lines = list[int]()
        columns = [list[str | None]() for _ in names]
        for line, cells in rows:
            if len(cells) > len(names):
                problem = f"has {len(cells)} cells, but the header has {len(names)}"
                raise UserError(f"{path}, line {line}", problem, "put a cell that holds a comma into quotes")
            lines.append(line)
            for column, cell in itertools.zip_longest(columns, cells):
                column.append(cell or None)
    named = {name: column for name, column in zip(names, columns, strict=True) if name}
    return pd.DataFrame(named, index=pd.Index(lines, dtype="int64", name="line"))


def _rows(file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV, each with the line on which it begins. Blank lines are left out."""
    reader = csv.reader(file, strict=True)
    line = 1
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None


def _require_names(where: object, names: list[str]) -> None:
    """Raise UserError for a header that does not name each column once."""
    if "\0" in "".join(names):
        raise UserError(where, "not a readable table file: every other byte is 0, as in UTF-16", UTF8)
    for mark, word in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise UserError(where, f"has {word} between its columns", "separate them with commas")
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UserError(where, f"the column {twice[0]!r} appears twice", "rename one of them")
