"""FedTAN: Wang, Shi and Chang, Why Batch Normalization Damage Federated Learning on Non-IID Data? (2023)."""

from __future__ import annotations

from pydantic import Field

from ._base import Algorithm, Bessel, Joint


class FedTAN(Algorithm):
    """The first local step of a round is done by all clients together, layer by layer; then FedAvg goes on.

    In that step every BN layer normalises with the mean and variance of all clients' batches, and clients exchange the
    gradients with respect to both on the way back. The weighted mean of the clients' gradients is then that of the
    union of their batches, where weights match batch sizes: equal batches and `weights: uniform`, or weights in
    proportion. Running statistics move towards the shared ones in the joint step (equation 6), towards each client's
    own in later steps, and are averaged at the round's end (equation 7).

    Down and up each round: all tensors, and 4 floats a BN channel each way: means, variances, the gradients of both.
    3 L + 1 messages with L layers. No extra state. The joint step has an optimiser of its own, so that momentum begins
    after it, as in the reference code. Defaults: Bessel's correction with the number of elements of all batches, as
    PyTorch counts (our decision; equation 6 has none, the code counts one client's images).
    """

    paper = "Wang et al. 2023"
    policies = ("aggregated",)
    why = "the joint step needs the same batch norm at all clients"
    running_var_bessel: Bessel = Field("torch", description="correction of the joint variance that is kept")

    def joint(self, number: int) -> Joint | None:
        return Joint(gradients=True, bessel=self.running_var_bessel)
