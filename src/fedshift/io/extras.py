"""Optional packages: `make exports` and `make flower` bring them into a clone, `pip install` into other places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.errors import UserError
from .shipped import INSIDE, SHIPPED


@contextmanager
def extra(name: str, what_for: str = "") -> Iterator[None]:
    """Raise UserError where an import within the block fails: the packages of `fedshift[name]` are not installed.

    `what_for` is what the error calls the work that needs it; without it, that is an export to `name`.
    """
    try:
        yield
    except ImportError as error:
        problem = f"needs packages that are not installed ({error.name or error})"
        raise UserError(what_for or f"export to {name}", problem, _remedy(name)) from error


def _remedy(name: str) -> str:
    """Return how the packages are installed: those of a clone lie in their own environment."""
    if SHIPPED == INSIDE:
        return f"pip install 'fedshift[{name}]'"
    target = "flower" if name == "flower" else "exports"
    return f"call make {target} in the clone, and .venv-{target}/bin/python -m fedshift in place of fedshift"
