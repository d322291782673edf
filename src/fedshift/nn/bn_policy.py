"""Batch-norm policies: which tensors of the normalisation layers are aggregated, and which stay.

A policy is about batch norm, unless a study says that it is about norms of other types, too. These mostly have no
running statistics: `nn.at_home` says which policies then coincide.

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
from typing import TYPE_CHECKING

from .norm_types import BATCH

if TYPE_CHECKING:
    from .flat_state import Layout


@dataclass(frozen=True)
class BNPolicy:
    """Choice of the tensors of norms that are aggregated: affine parameters and running statistics, True or False.

    `norms` are the types of layers that the choice is about. All others travel.
    """

    affine: bool
    statistics: bool
    norms: tuple[str, ...] = BATCH

    def shared(self, layout: Layout) -> slice:
        """Return the slice of a flat state `[private | affine | weights | statistics]` that travels.

        It is always one contiguous slice.
        """
        start = layout.affine.start if self.affine else layout.weights.start
        stop = layout.statistics.stop if self.statistics else layout.governed.start
        return slice(start, stop)


POLICIES: dict[str, BNPolicy] = {
    "aggregated": BNPolicy(affine=True, statistics=True),
    "local": BNPolicy(affine=False, statistics=False),
    "local_statistics": BNPolicy(affine=True, statistics=False),
    "local_affine": BNPolicy(affine=False, statistics=True),
}


def policy(bn: str, norms: Iterable[str] = BATCH) -> BNPolicy:
    """Return the policy with that name over layers of these types."""
    return replace(POLICIES[bn], norms=tuple(norms))
