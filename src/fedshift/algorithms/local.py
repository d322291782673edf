"""SingleSet, SingleNet: every client trains alone, a control of the FedBN and FedTAN papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Algorithm
from ._collaboration import NoCollaboration

if TYPE_CHECKING:
    from ..nn.bn_policy import BNPolicy
    from ..nn.flat_state import Layout


class SingleSet(Algorithm):
    """No federation: from the same initial weights, with the same steps, each client trains a model of its own.

    Nothing moves; every tensor stays. There is no global model, so external sites are not predicted.
    """

    paper = "control"
    policies = ("local",)
    why = "nothing is aggregated"
    collaboration = NoCollaboration()

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        return slice(0, 0)
