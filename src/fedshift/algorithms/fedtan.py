"""FedTAN: Wang, Shi and Chang, Why Batch Normalization Damage Federated Learning on Non-IID Data? (2023)."""

from __future__ import annotations

from pydantic import Field

from ._base import Algorithm, Bessel, Joint


class FedTAN(Algorithm):
    """All clients take the first local step of a round together, layer by layer; then each goes on as in FedAvg.

    In the joint step every BN layer normalises with the mean and variance of all clients' batches. In the backward
    pass, clients exchange the gradients with respect to both. The weighted mean of the clients' gradients is then the
    gradient of the union of their batches, provided that weights match batch sizes: equal batches and `weights:
    uniform`, or weights in proportion to batches. Running statistics move towards the shared mean and variance in the
    joint step (equation 6) and towards each client's own in later steps. They are averaged at the end of the round
    (equation 7).

    In each round server and clients exchange all tensors, and 4 floats for each BN channel: its mean, its variance, and
    the gradients of both. A round takes 3 L + 1 messages, with L the number of BN layers. No state is kept. The joint
    step has its own optimiser, so momentum begins after it, as in the reference code. Defaults: Bessel's correction
    with the number of elements of all batches, as PyTorch counts (our decision; equation 6 has no correction, and the
    reference code counts one client's images).
    """

    paper = "Wang et al. 2023"
    policies = ("aggregated",)
    why = "the joint step needs the same batch norm at all clients"
    needs_sgd = "the mean of the clients' first steps must be the step along their mean gradient"
    needs_body = "clients exchange statistics and gradients of batch norm, which would not be trained"
    running_var_bessel: Bessel = Field(
        "torch",
        description="Bessel's correction of the shared variance before it enters the running variance: none, torch (by "
        "the number of elements of all batches) or fedtan_code (by one client's number of images)",
    )

    def joint(self, number: int) -> Joint | None:
        return Joint(gradients=True, bessel=self.running_var_bessel)
