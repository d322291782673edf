"""Text, JSON and YAML: written whole or not at all (see `disk`), read with errors that name the file, and checked.

The checks are for files that somebody else may have made: that they are plain files, and hold what they should.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.console import say
from ..core.errors import UserError
from .disk import atomic

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
"""Tests of values in JSON, by the kind of value as messages call it."""
COLUMNS: dict[str, Callable[[pd.Series], bool]] = {
    "text": lambda column: bool(column.map(lambda value: isinstance(value, str)).all()),
    "whole numbers": lambda column: column.dtype.kind in "iu",
    "numbers": lambda column: column.dtype.kind in "iuf",
    "anything": lambda column: True,
}
"""Tests of the columns of tables, by the kind of values as messages call it; `text` and whole numbers allow no missing
cell."""


def irregular(path: Path) -> str:
    """Return words that say that a path is a folder, a pipe, a device or a socket; "" for a file or a missing path."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    if stat.S_ISREG(mode):
        return ""
    return f"is {'a folder' if stat.S_ISDIR(mode) else 'a pipe, a device or a socket'}, and not a file"


def require_regular(path: Path) -> None:
    """Raise UserError for a folder, a pipe, a device or a socket: reading from these fails, waits or never ends.

    A missing path passes: to open it raises an error that says so.
    """
    problem = irregular(path)
    if problem:
        raise UserError(path, problem, "put the file there, or remove it")


def require_object(
    path: Path, content: Any, needed: Mapping[str, str], optional: Mapping[str, str] | None = None, remedy: str = ""
) -> dict[str, Any]:
    """Return `content`, read from the JSON file `path`, if it is a mapping with values of the right kinds (see KINDS).

    `needed` and `optional` map keys to kinds; a key in `optional` may be absent or null. Raises UserError, with
    `remedy` as its advice, for all other content.
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
    """Raise UserError if the table in the file `path` lacks a column, or a column holds values of another kind.

    `kinds` maps columns to the kinds of their values (see COLUMNS).
    """
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
    """Print a warning if `paths` in a table lead out of the table's folder: absolute paths, or those with `..`."""
    top = os.path.normpath(table.parent.absolute())
    # of a million paths most are told by their letters
    doubtful = (path for path in paths if path.startswith("/") or ".." in path)
    elsewhere = [path for path in doubtful if not Path(os.path.normpath(Path(top) / path)).is_relative_to(top)]
    if elsewhere:
        more = f", as {len(elsewhere) - 1:,} more do" if len(elsewhere) > 1 else ""
        say(f"{table}: {elsewhere[0]!r} leads out of its folder{more}; such images are read, and pages may show them")


UTF8 = "save it as UTF-8"
JSON_LIMIT = 1 << 28
"""Bytes that a JSON file may have."""
LARGEST = 2**63
"""All whole numbers in a JSON or YAML file must be smaller than this."""
FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""Pattern of the beginning of a cell that a spreadsheet may run as a formula, or that `inert` has kept from it."""


@contextlib.contextmanager
def readable(path: Path, kind: str, remedy: str = "") -> Iterator[None]:
    """Turn any error of the block, which reads the file `path` and does nothing else, into UserError.

    `kind` is what messages call such a file, for example JSON, and `remedy` their advice. Readers raise any error for a
    damaged file, from KeyError to Arrow's own. Raises UserError before the block for a folder, a pipe or a device.
    """
    require_regular(path)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, "no such file", remedy) from None
    except MemoryError as error:
        raise UserError(path, f"this {kind} file does not fit into the memory", "is it the right one?") from error
    except Exception as error:
        if isinstance(error, UnicodeDecodeError) and kind == "table":
            remedy = UTF8
        # their words say what is wrong; a KeyError holds a key alone
        words = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise UserError(path, f"not a readable {kind} file: {words[:500]}", remedy) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, obj: Any) -> None:
    """Write JSON with the keys in their order. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises UserError if it cannot be read, is larger than JSON_LIMIT, or holds half of a surrogate pair, which
    could not be written again.
    """
    with readable(path, "JSON"):
        size = Path(path).stat().st_size
        if size > JSON_LIMIT:
            raise ValueError(f"{size} bytes are too many (limit {JSON_LIMIT})")
        content = Path(path).read_bytes()
        loaded = json.loads(content, parse_int=_whole)
        if b"\\ud" in content.lower():
            json.dumps(loaded, ensure_ascii=False).encode()
        return loaded


def _whole(digits: str) -> int:
    number = int(digits)
    if not abs(number) < LARGEST:
        raise ValueError(f"a number of {len(digits)} digits")
    return number


def inert(cell: str) -> str:
    """Return the text of a cell, with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{cell}" if FORMULA.match(cell) else cell


def active(cell: str) -> str:
    """Return the text of a cell without the apostrophe that `inert` may have put in front."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


YAML_LIMIT = 1_000_000
"""Bytes that a YAML file may have."""
DEEPEST = 100
"""The most lists and mappings inside each other in YAML. libyaml itself has no limit, and would end the process."""


def parsed(text: str, where: str) -> Any:
    """Return the value of a short text in YAML, such as a number or a list: plain data, as in JSON.

    Raises UserError, which names `where` the text comes from, for text that has no such value.
    """
    import yaml

    try:
        value = yaml.safe_load(text)
        json.dumps(value, allow_nan=False)
    except (yaml.YAMLError, TypeError, ValueError):
        remedy = "put text with special characters into quotes"
        raise UserError(where, f"{text!r} is no value in YAML", remedy) from None
    return value


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file: plain data, as in JSON.

    Raises UserError, with the line, for anchors, aliases, a key that appears twice, numbers that are not finite, values
    too deep inside each other, and for a file of more than 1 MB.
    """
    import yaml

    def refuse(node: Any, what: str) -> UserError:
        return UserError(f"{path}, line {node.start_mark.line + 1}", what)

    # four times as fast as yaml.SafeLoader
    class Loader(yaml.CSafeLoader):
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if isinstance(node, yaml.MappingNode):
                keys: set[str] = set()
                for key, _ in node.value:
                    if str(key.value) in keys:
                        raise refuse(key, f"the key {key.value!r} appears twice; remove one")
                    keys.add(str(key.value))
            value = super().construct_object(node, deep)
            if not isinstance(value, dict | list | str | int | float | None):
                raise refuse(node, f"a {type(value).__name__} is not allowed; put text in quotes")
            if isinstance(value, str) and yaml.reader.Reader.NON_PRINTABLE.search(value):
                raise refuse(node, "a character that cannot be printed; remove it")
            if isinstance(value, int | float) and not abs(value) < LARGEST:
                raise refuse(node, "not a finite number, or one that is too large")
            return value

    with readable(path, "YAML"):
        size = Path(path).stat().st_size
        if size > YAML_LIMIT:
            raise UserError(path, f"{size} bytes are too many for a YAML file (limit {YAML_LIMIT})")
        try:
            content = Path(path).read_bytes()
            depth = 0
            for event in yaml.parse(content, Loader):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > DEEPEST:
                    raise refuse(event, f"more than {DEEPEST} lists or mappings inside each other")
                if getattr(event, "anchor", None) is not None:
                    raise refuse(event, "anchors and aliases (& and *) are not allowed; write the value out")
            return yaml.load(content, Loader)
        except yaml.MarkedYAMLError as error:
            if error.problem_mark is None:
                raise
            where = f"{path}, line {error.problem_mark.line + 1}"
            remedy = ""
            if str(error.problem).startswith("mapping values are not allowed"):
                remedy = 'a text with a colon and a space needs quotes: title: "Base: no trap"'
            raise UserError(where, f"not valid YAML: {error.problem}", remedy) from error
