"""SingleSet, SingleNet: every client trains alone. A control of the FedBN and FedTAN papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Algorithm
from ._collaboration import NoCollaboration

if TYPE_CHECKING:
    from ..nn.flat_state import Layout
    from ..nn.policies import BNPolicy


class SingleSet(Algorithm):
    """No federation: each client trains its own model, from the same initial weights and with the same steps.

    Clients exchange nothing; every tensor stays at its client. Without a global model, external sites are not
    predicted.
    """

    paper = "control"
    policies = ("local",)
    why = "nothing is aggregated"
    collaboration = NoCollaboration()

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        return slice(0, 0)
