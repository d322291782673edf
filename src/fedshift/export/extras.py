"""Optional packages that only an export needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import UserError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Raise UserError where an import within the block fails: `fedshift[name]` is not installed."""
    try:
        yield
    except ImportError as error:
        what = f"needs packages that are not installed ({error.name or error})"
        raise UserError(f"export to {name}", what, f"pip install 'fedshift[{name}]'") from error
