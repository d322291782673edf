"""YAML as people write it: plain data, and an error with its line for all else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .text import LARGEST, readable

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
        raise UserError(
            where, f"{text!r} is no value in YAML", "put text with special characters into quotes"
        ) from None
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
