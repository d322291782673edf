"""Optional packages, which `pip install 'fedshift[NAME]'` brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import UserError


@contextmanager
def extra(name: str, what_for: str = "") -> Iterator[None]:
    """Raise UserError where an import within the block fails: `fedshift[name]` is not installed.

    `what_for` is what the error calls the work that needs it; without it, that is an export to `name`.
    """
    try:
        yield
    except ImportError as error:
        problem = f"needs packages that are not installed ({error.name or error})"
        raise UserError(what_for or f"export to {name}", problem, f"pip install 'fedshift[{name}]'") from error
