"""FedDyn: Acar et al. 2021, Federated Learning Based on Dynamic Regularization, algorithm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from fedshift.algorithms import Algorithm, Local, Server

if TYPE_CHECKING:
    from torch import Tensor

    from fedshift.algorithms import Mean


class FedDyn(Algorithm):
    """FedAvg with dynamic regularisation: each client learns a linear term, so that all local optima come to agree.

    Client i starts from the server's model x and minimises, over its model y (algorithm 1 of the paper),

        f_i(y) - <q_i, y> + alpha_i/2 ||y - x||^2,    so a step follows g_i(y) - q_i + alpha_i (y - x).

    f_i is the client's loss and g_i its gradient. Then it sets q_i <- q_i - alpha_i (y_i - x). This is the gradient of
    f_i at y_i if the minimum is exact. The server sets h <- h - alpha/N sum_i (y_i - x) over the clients of this round,
    where N counts all clients, and then x <- mean_i y_i - h / alpha.

    All means give every client the same weight, as in the paper. Numbers of samples enter as in the authors' code:
    alpha_i is alpha / w_i with w_i = N p_i, where p_i is the client's share of samples. For clients of equal size, and
    with the training setting `weights: uniform`, w_i is 1, and this is the printed algorithm.

    Both states are kept as sums of changes, as in the authors' code, so that nothing is divided by alpha: H_i = -q_i /
    alpha_i is the sum of client i's changes y_i - x, and H = -h / alpha is the mean of all H_i.

    Server and clients exchange the tensors of FedAvg: H_i stays at its client, since the server adds up the changes
    that it receives. A client keeps H_i, also through rounds without it; the server keeps H. Both are zero at first.
    They cover the parameters that are trained and exchanged. Running statistics are averaged.

    The default alpha 0.01 is the value of the authors' code for CIFAR-10; they tried 0.1, 0.01 and 0.001. Further
    settings of their code are settings of training here: rate 0.1, weight decay 0.001, batches of 50, 5 local epochs,
    `clip_norm` 10. Without clipping FedDyn can diverge, above all with batch norm and a large alpha.

    If all clients take part with equal weights, the server's first step is twice that of FedProx with mu = alpha. FedDC
    without its gradient correction takes the same steps as FedDyn, but sends and keeps more. The model that is
    evaluated is x, which clients receive. The authors' code also evaluates means of the clients' models, and their
    curves show these.
    """

    paper = "Acar et al. 2021"
    weighs_equally = True
    alpha: float = Field(0.01, gt=0, description="weight of the quadratic term around the server's model")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"H": server.zeros()}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"H": server.zeros()}

    def correct(self, local: Local) -> None:
        alpha = self.alpha / (local.clients * local.share)
        local.grad.add_(local.params - local.received_params + local.state["H"], alpha=alpha)

    def report(self, local: Local) -> dict[str, Tensor]:
        local.state["H"].add_(local.params - local.received_params)
        return super().report(local)

    def update(self, server: Server, mean: Mean) -> None:
        server.average_statistics(mean)
        drift = server.state["H"].add_(mean.params - server.params, alpha=server.participation)
        server.params.copy_(mean.params + drift)
