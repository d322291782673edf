"""Local steps with the server's momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Local, Mean, Server

from ._geometry import squared

if TYPE_CHECKING:
    from torch import Tensor


class MimeLite(Algorithm):
    """Local steps along (1 - beta) g + beta m; the server renews m by the clients' full gradients at its model.

    Down: the model and m. Up: the model, the full gradient and its squared norm, which is logged.
    """

    paper = "Karimireddy et al. 2020"
    needs_sgd = "m stands for the momentum of SGD"
    beta: float = Field(0.5, ge=0, lt=1, description="weight of the server's momentum")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"m": server.zeros()}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"m": server.state["m"]}

    def begin(self, local: Local) -> None:
        local.scratch["gradient"] = local.full_gradient()
        local.logged["norm"] = float(squared(local.scratch["gradient"])) ** 0.5

    def correct(self, local: Local) -> None:
        local.grad.lerp_(local.broadcast["m"], self.beta)

    def report(self, local: Local) -> dict[str, Tensor]:
        return super().report(local) | {"gradient": local.scratch["gradient"]}

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        server.state["m"].lerp_(mean["gradient"], 1 - self.beta)
