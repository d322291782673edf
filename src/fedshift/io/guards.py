"""Checks of files that somebody else may have made: that they are plain files, and hold what they should."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.console import say
from ..core.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

KINDS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "a list": lambda value: isinstance(value, list),
    "a list of texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "a mapping": lambda value: isinstance(value, dict),
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
"""Kinds of JSON values, in the words of messages."""
COLUMNS: dict[str, Callable[[pd.Series], bool]] = {
    "text": lambda column: bool(column.map(lambda value: isinstance(value, str)).all()),
    "whole numbers": lambda column: column.dtype.kind in "iu",
    "numbers": lambda column: column.dtype.kind in "iuf",
    "anything": lambda column: True,
}
"""Kinds of table columns, in the words of messages; `text` and whole numbers allow no missing cell."""


def irregular(path: Path) -> str:
    """Return that a path is a folder, a pipe, a device or a socket; empty for a file, and where nothing is."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode):
        return ""
    return f"is {'a folder' if stat.S_ISDIR(mode) else 'a pipe, a device or a socket'}, and not a file"


def require_regular(path: Path) -> None:
    """Raise UserError for a folder, a pipe, a device or a socket: reading from these fails, waits or never ends.

    A path where nothing is passes: to open it raises an error that says so.
    """
    problem = irregular(path)
    if problem:
        raise UserError(path, problem, "put the file there, or remove it")


def require_object(
    path: Path, content: Any, needed: Mapping[str, str], optional: Mapping[str, str] | None = None, remedy: str = ""
) -> dict[str, Any]:
    """Return the content of a JSON file, a mapping whose values are of the right kinds (see KINDS).

    Keys in `optional` may be absent or null. Raises UserError for all else.
    """
    if not isinstance(content, dict):
        raise UserError(path, "does not hold a mapping of names to values", remedy)
    for key, kind in needed.items():
        if not KINDS[kind](content.get(key)):
            raise UserError(path, f"{key!r} is not there, or is not {kind}", remedy)
    for key, kind in (optional or {}).items():
        if content.get(key) is not None and not KINDS[kind](content[key]):
            raise UserError(path, f"{key!r} is not {kind}", remedy)
    return content


def require_columns(path: Path, table: pd.DataFrame, kinds: Mapping[str, str], remedy: str = "") -> None:
    """Raise UserError for a table that lacks a column, or has one that does not hold what it should (see COLUMNS)."""
    absent = [name for name in kinds if name not in table]
    if absent:
        raise UserError(path, f"no column {', '.join(map(repr, absent))}", remedy)
    for name, kind in kinds.items():
        if not COLUMNS[kind](table[name]):
            raise UserError(path, f"the column {name!r} must hold only {kind}", remedy)


def require_unique(path: Path, table: pd.DataFrame, columns: list[str], remedy: str = "") -> None:
    """Raise UserError for a table that has two rows with the same values in `columns`."""
    if not columns:
        return
    repeated = table.duplicated(columns)
    if repeated.any():
        row = ", ".join(str(value) for value in table.loc[repeated, columns].iloc[0])
        raise UserError(path, f"has two rows of {row}", remedy)


def tell_outside(table: Path, paths: Iterable[str]) -> None:
    """Say which paths of a table lead out of its folder: absolute ones elsewhere, and those that climb above it."""
    top = os.path.normpath(table.parent.absolute())
    # of a million paths most are told by their letters
    doubtful = (path for path in paths if path.startswith("/") or ".." in path)
    elsewhere = [path for path in doubtful if not Path(os.path.normpath(Path(top) / path)).is_relative_to(top)]
    if elsewhere:
        more = f", as {len(elsewhere) - 1:,} more do" if len(elsewhere) > 1 else ""
        say(f"{table}: {elsewhere[0]!r} leads out of its folder{more}; such images are read, and pages may show them")
