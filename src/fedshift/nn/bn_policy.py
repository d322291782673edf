"""Batch-norm policies: which tensors of the normalisation layers are aggregated, and which stay. Imports no torch.

A policy is about batch norm, unless a study says that it is about norms of other types, too. These mostly have no
running statistics: `nn.norms` says which policies then coincide.

| policy | affine (gamma, beta) | statistics (running mean, variance) | also known as |
|---|---|---|---|
| aggregated | travels | travels | FedAvg, FedProx, ... as published |
| local | stays | stays | FedBN; UniFed's client-specific BN |
| local_statistics | travels | stays | SiloBN |
| local_affine | stays | travels | its complement (Mills et al.) |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class BNPolicy:
    """Choice of the tensors of norms that are aggregated: affine parameters and running statistics, True or False.

    `norms` are the types of layers that the choice is about. All others travel.
    """

    affine: bool
    statistics: bool
    norms: tuple[str, ...] = BATCH


POLICIES: dict[str, BNPolicy] = {
    "aggregated": BNPolicy(affine=True, statistics=True),
    "local": BNPolicy(affine=False, statistics=False),
    "local_statistics": BNPolicy(affine=True, statistics=False),
    "local_affine": BNPolicy(affine=False, statistics=True),
}


def policy(bn: str, norms: Iterable[str] = BATCH) -> BNPolicy:
    """Return the policy with that name over layers of these types."""
    return replace(POLICIES[bn], norms=tuple(norms))
