"""Readers and writers. What is written is there whole or not at all (see `disk`); what is unreadable is named."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from .disk import atomic

if TYPE_CHECKING:
    pass


UTF8 = "save it as UTF-8"


@contextlib.contextmanager
def readable(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Turns the errors of a reader into a UserError about `path`."""
    errors: tuple[type[Exception], ...] = (OSError, ValueError, RecursionError, *more)
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(path, "no such file") from None
    except errors as error:
        remedy = UTF8 if isinstance(error, UnicodeDecodeError) and kind == "table" else ""
        raise UserError(path, f"not a readable {kind} file: {error}", remedy) from error


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, obj: Any) -> None:
    """Writes JSON, keys in the order given. NaN and infinity, which JSON lacks, are a ValueError."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    with readable(path, "JSON"):
        return json.loads(Path(path).read_bytes())
