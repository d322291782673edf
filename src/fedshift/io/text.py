"""Text, JSON and YAML: written whole or not at all (see `disk`), and named when they are unreadable."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .disk import atomic
from .guards import require_regular

UTF8 = "save it as UTF-8"
JSON_LIMIT = 1 << 28
"""Bytes that a JSON file may have."""
LARGEST = 2**63
"""All whole numbers in a JSON or YAML file must be smaller than this."""
FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""The beginning of a cell that a spreadsheet runs as a formula, or passes over to find one; or of one made inert."""


@contextlib.contextmanager
def readable(path: Path, kind: str, remedy: str = "") -> Iterator[None]:
    """Raise UserError about `path` where the block, which reads that `kind` of file and does nothing else, fails.

    Readers raise any error for a damaged file, from KeyError to Arrow's own. Raises UserError, too, before the block
    for a folder, a pipe or a device.
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
    """Write text as UTF-8."""
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
    """Return the text of a cell; one that a spreadsheet would run as a formula gets an apostrophe in front."""
    return f"'{cell}" if FORMULA.match(cell) else cell


def active(cell: str) -> str:
    """Return the text of which `inert` made a cell."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


YAML_LIMIT = 1_000_000
"""Bytes that a YAML file may have."""
DEEPEST = 100
"""Most lists and mappings inside each other. libyaml itself has no limit, and would end the process."""


def parsed(text: str, where: str) -> Any:
    """Return the value that a short text is in YAML: plain data, as in JSON. Raises UserError for other text."""
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
                raise refuse(node, "a character that cannot be printed")
            if isinstance(value, int | float) and not abs(value) < LARGEST:
                raise refuse(node, "not a number, or too large a one")
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
