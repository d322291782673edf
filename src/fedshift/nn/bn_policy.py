"""Batch-norm policies: which tensors of the normalisation layers are aggregated, and which stay.

| policy | affine (gamma, beta) | statistics (running mean, variance) | also known as |
|---|---|---|---|
| aggregated | travels | travels | FedAvg, FedProx, ... as published |
| local | stays | stays | FedBN; UniFed's client-specific BN |
| local_statistics | travels | stays | SiloBN |
| local_affine | stays | travels | its complement (Mills et al.) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .flat_state import Layout


@dataclass(frozen=True)
class BNPolicy:
    """Choice of the BN tensors that are aggregated: affine parameters and running statistics, each True or False."""

    affine: bool
    statistics: bool

    def shared(self, layout: Layout) -> slice:
        """Return the slice of a flat state `[private | affine | weights | statistics]` that travels.

        It is always one contiguous slice.
        """
        start = layout.affine.start if self.affine else layout.weights.start
        stop = layout.statistics.stop if self.statistics else layout.weights.stop
        return slice(start, stop)


POLICIES: dict[str, BNPolicy] = {
    "aggregated": BNPolicy(affine=True, statistics=True),
    "local": BNPolicy(affine=False, statistics=False),
    "local_statistics": BNPolicy(affine=True, statistics=False),
    "local_affine": BNPolicy(affine=False, statistics=True),
}
