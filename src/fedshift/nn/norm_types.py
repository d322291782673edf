"""Names of the types of normalisation layers. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.errors import UserError, did_you_mean

NORMS = ("batch", "group", "layer", "instance")
"""Types of normalisation layers that a policy may be about."""
BATCH = ("batch",)


def norm_types(norms: str | Iterable[str], where: str = "norms") -> tuple[str, ...]:
    """Return types of norms in one order, without repetitions: of `all`, of one type or of a list of types.

    Raises UserError, at the place `where`, for an unknown type and for an empty list.
    """
    given = NORMS if norms == "all" else (norms,) if isinstance(norms, str) else tuple(norms)
    for name in given:
        if name not in NORMS:
            raise UserError(where, f"unknown type of norm {name!r}", did_you_mean(str(name), ("all", *NORMS)))
    if not given:
        raise UserError(where, "is an empty list", "name a type of norm, or say bn: aggregated")
    return tuple(name for name in NORMS if name in given)
