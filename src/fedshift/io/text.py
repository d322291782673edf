"""Text and JSON: written whole or not at all (see `disk`), and named when they are unreadable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from .disk import atomic

UTF8 = "save it as UTF-8"


@contextlib.contextmanager
def readable(path: Path, kind: str, *more: type[Exception]) -> Iterator[None]:
    """Raise UserError about `path` where a reader of that `kind` of file raises an error (or one of `more`)."""
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
    """Write text as UTF-8."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, obj: Any) -> None:
    """Write JSON with the keys in their order. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(obj, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises UserError if it cannot be read."""
    with readable(path, "JSON"):
        return json.loads(Path(path).read_bytes())
