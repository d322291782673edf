"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks (2020), algorithm 2."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ._base import Algorithm, Local


class FedProx(Algorithm):
    """FedAvg with a proximal term: each client minimises f_i(y) + mu/2 ||y - x||^2 around the server's x.

    f_i is the client's loss and y its model. The term covers parameters that are trained and exchanged; with local
    batch norm it leaves out gamma and beta. Server and clients exchange and keep the same tensors as in FedAvg.
    Defaults: mu 0.01, the value of the FedBN paper for digits, Office-Caltech10 and DomainNet (it uses 0.2 for ABIDE);
    the values of UniFed and TsmoBN are not known. The reference code of FedBN differs from the paper: `form: norm`
    takes mu/2 ||y - x||, and `skip_first_round` leaves the term out of round 1. That code leaves it out of the first
    step of every local epoch: the two agree for one local epoch only.
    """

    paper = "Li et al. 2020"
    mu: float = Field(0.01, ge=0, description="weight of the proximal term")
    form: Literal["squared", "norm"] = Field(
        "squared", description="penalty: mu/2 times the squared distance, or times the distance"
    )
    skip_first_round: bool = Field(False, description="leave the proximal term out of round 1")

    def correct(self, local: Local) -> None:
        if self.skip_first_round and local.round == 1:
            return
        if self.form == "squared":
            local.grad.add_(local.params, alpha=self.mu).sub_(local.received_params, alpha=self.mu)
            return
        import torch

        moved = local.params - local.received_params
        distance = moved.norm().double()
        # The distance has no gradient at zero. There, adding -0.0 times the difference changes no bit of the gradient.
        factor = torch.where(distance > 0, self.mu / (2 * distance), -0.0)
        local.grad.addcmul_(moved, factor.to(moved.dtype))
