"""Centralised training on all clients' data together. A control of the FedBN and FedTAN papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Algorithm
from ._collaboration import PooledData

if TYPE_CHECKING:
    from ..nn.flat_state import Layout
    from ..nn.policies import BNPolicy


class Centralised(Algorithm):
    """No federation: one model is trained on the union of all clients' data, in mixed batches.

    Clients exchange no floats, but their data are pooled. A round is `local_epochs` passes over the union. Each round
    has its own optimiser, as in the federated runs. FedTAN's comparison has five times the batch and five steps a round
    (our decision; the paper does not say).
    """

    paper = "control"
    policies = ("aggregated",)
    why = "there is one client"
    collaboration = PooledData()

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        return slice(0, 0)
