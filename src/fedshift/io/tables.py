"""Tables as CSV or Parquet: written whole or not at all (see `disk`), read with errors that name the file.

Tables that users bring are read by `read_texts`: Excel, and CSV with any delimiter.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..core.errors import UserError
from .disk import atomic
from .text import UTF8, active, inert, readable

if TYPE_CHECKING:
    import pandas as pd

EXCEL = (".xlsx", ".xlsm")
"""Endings of Excel files."""
TABLES = (".csv", ".tsv", ".txt", ".parquet", *EXCEL)
"""Endings of the tables that `read_texts` reads."""
DELIMITERS = ",;\t|"
"""Characters that may separate the cells of a CSV. Spreadsheets of countries with a decimal comma write semicolons."""
STATED = re.compile(r'"?sep=(.)"?\s*$')
"""Pattern of the line above the header with which Excel states the delimiter."""
MOST_CELLS = 1 << 28
"""The most cells of a Parquet table: a column of equal values may have any number of rows in a few bytes."""


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
    """Read a CSV or Parquet table, or the named columns of it in that order.

    In a CSV only an empty cell is missing: `NA` or `None` may well be the name of a hospital. With `text`, all other
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
            head = pq.read_metadata(path)
            wanted = _wanted(path, head.schema.to_arrow_schema().names, columns)
            if head.num_rows * len(wanted) > MOST_CELLS:
                raise ValueError(f"its {head.num_rows:,} rows of {len(wanted)} columns would fill the memory")
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
    """Return the table with `changed` applied to each cell of text."""
    for name in [name for name, kind in table.dtypes.items() if kind.kind not in "iufcb"]:
        column = table[name]
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


def read_texts(path: Path, called: Callable[[str], str] = str, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a user's table whose cells stay text: `007` stays `007`, and only an empty cell is missing.

    `called` turns the head of a column into its name; columns without a name are left out. The index says where a row
    is: its `line` in a CSV, its `row` in Parquet and Excel. Of Excel the first sheet is read. A CSV is in UTF-8, in
    UTF-16 with a byte-order mark, or else in `encoding`. The delimiter of its cells is the most frequent one in the
    first line, or the one that Excel states in a line `sep=;` above. Raises UserError for a column that appears twice
    and, with the line, for a row of a CSV that has more cells than the header.
    """
    import pandas as pd

    ending = Path(path).suffix.lower()
    if ending in EXCEL:
        return _excel_texts(path, called)
    if ending in (".tsv", ".txt") or _is_csv(path):
        return _csv_texts(path, called, encoding)
    table = read_table(path)
    names = [called(str(c)) for c in table]
    texts = table.astype(str).where(table.notna(), None)
    _require_names(path, names)
    return texts.set_axis(names, axis=1).set_axis(pd.RangeIndex(1, len(table) + 1, name="row"))


def _excel_texts(path: Path, called: Callable[[str], str]) -> pd.DataFrame:
    """Read the first sheet of an Excel file as `read_texts` does. Blank rows are left out.

    Raises UserError for a damaged or empty file, and where the package that reads it is missing.
    """
    import pandas as pd

    from .excel import excel_cells  # in a module of its own, since a job that trains has no package for Excel

    cells = excel_cells(path)
    head, rows = cells.iloc[0], cells.iloc[1:]
    names = ["" if pd.isna(cell) else called(str(cell)) for cell in head]
    _require_names(f"{path}, row {cells.index[0] + 1}", names)
    texts = rows.map(str).where(rows.notna(), None).set_axis(names, axis=1)
    return texts.loc[:, [bool(name) for name in names]].set_axis(pd.Index(rows.index + 1, name="row"))


def _csv_texts(path: Path, called: Callable[[str], str], encoding: str) -> pd.DataFrame:
    """Read a CSV as `read_texts` does; pandas' own reader renames double columns and shifts or drops extra cells."""
    import pandas as pd

    with readable(path, "table"), Path(path).open(newline="", encoding=_coding(path, encoding)) as file:
        above, delimiter = _form(file.readline())
        if not above:
            file.seek(0)
        rows = _rows(file, delimiter, above)
        first, head = next(rows, (0, []))
        if not head:
            raise ValueError("it is empty")
        names = [called(name) for name in head]
        _require_names(f"{path}, line {first}", names)
        lines = list[int]()
        columns = [list[str | None]() for _ in names]
        for line, cells in rows:
            if len(cells) > len(names):
                problem = f"has {len(cells)} cells, but the header has {len(names)}"
                word = {",": "comma", ";": "semicolon", "\t": "tab"}.get(delimiter, repr(delimiter))
                remedy = f"put a cell that holds a {word} into quotes"
                if len(names) == 1:
                    remedy = f"line {first} seems to be no header: remove it"
                raise UserError(f"{path}, line {line}", problem, remedy)
            lines.append(line)
            for column, cell in itertools.zip_longest(columns, cells):
                column.append(cell or None)
    named = {name: column for name, column in zip(names, columns, strict=True) if name}
    return pd.DataFrame(named, index=pd.Index(lines, dtype="int64", name="line"))


def _coding(path: Path, encoding: str) -> str:
    """Return the encoding of a CSV: UTF-16 if its byte-order mark is there, or else `encoding`."""
    with Path(path).open("rb") as file:
        mark = file.read(2)
    if mark in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    return "utf-8-sig" if encoding == "utf-8" else encoding


def _form(line: str) -> tuple[int, str]:
    """Return, from the first line of a CSV, the number of lines above the header, 0 or 1, and the cells' delimiter."""
    stated = STATED.match(line)
    if stated:
        return 1, stated[1]
    outside = re.sub(r'"[^"]*"', "", line)
    return 0, max(DELIMITERS, key=outside.count)


def _rows(file: IO[str], delimiter: str, above: int) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV that is not blank, as the number of the line on which it begins and its cells.

    `above` lines of the file were read before. Raises ValueError, with the line, for a row that is no CSV.
    """
    reader = csv.reader(file, strict=True, delimiter=delimiter)
    line = 1 + above
    try:
        for cells in reader:
            if len(cells) > 1 or "".join(cells).strip():
                yield line, cells
            line = reader.line_num + 1 + above
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None


def _require_names(where: object, names: list[str]) -> None:
    """Raise UserError if two columns of a header have the same name, or names hold null characters, as in UTF-16."""
    if "\0" in "".join(names):
        raise UserError(where, "not a readable table file: every other byte is 0, as in UTF-16", UTF8)
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise UserError(where, f"the column {twice[0]!r} appears twice", "rename one of them")
