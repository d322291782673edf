"""Packages that only an export needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import UserError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports of an optional dependency `fedshift[name]`: UserError where it is not installed."""
    try:
        yield
    except ImportError as error:
        what = f"needs packages that are not installed ({error.name or error})"
        raise UserError(f"export to {name}", what, f"pip install 'fedshift[{name}]'") from error
