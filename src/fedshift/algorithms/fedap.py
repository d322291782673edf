"""FedAP: Lu et al., Personalized Federated Learning with Adaptive Batchnorm for Healthcare (2022), f-FedAP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local, Mean, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class FedAP(Algorithm):
    """FedBN in which each client receives a mixture of the clients' weights, by the similarity of their batch norm.

    With means m and variances v of batch norm, the distance d_ij of clients i and j is the sum over layers of sqrt(|m_i
    - m_j|^2 + |sqrt v_i - sqrt v_j|^2). Client i receives sum_j w_ij theta_j, where theta_j are client j's weights,
    w_ii is lambda, and the other w_ij share 1 - lambda in proportion to 1 / d_ij. The number of samples plays no part.
    Batch norm stays at its client, as in FedBN. This is the paper's variant f-FedAP: the statistics are the running
    ones of the clients' own networks after their first round (our decision), where the authors' code asks for a network
    that is trained before on a part of all data in one place. A client without running variances of its own, or a
    network without batch norm, has distance 0 to all others.

    Where some clients do not take part in a round, the weights of the participants are divided by their sum; a client
    keeps its mixture if this sum is 0, and a client that has never taken part gets the plain mean of the participants
    (our decisions).

    In each round server and clients exchange all weights except those of batch norm: each client receives its own
    mixture, which cannot be broadcast, and sends its weights; in its first round it adds its running means and
    variances. The server keeps these statistics and each client's mixture between rounds. An internal site is predicted
    with its own mixture and batch norm, an external one with the plain means of weights and of batch norm. Default:
    lambda 0.5, as in the authors' code, whose scripts also have 0.3. With lambda 1 this is `local`; with equal
    distances and lambda 1 / N it is FedBN with equal weights.
    """

    paper = "Lu et al. 2022"
    policies = ("local",)
    why = "clients are compared by batch norm that stays with them"
    needs_body = "clients are compared by their batch norm, which would not be trained"
    external = "external sites get the plain means of the clients' weights and of their batch norm"
    per_client = frozenset({"shared", "statistics"})
    lam: float = Field(0.5, ge=0, le=1, description="weight of a client's own tensors in its mixture (lambda)")

    def server_state(self, server: Server) -> dict[str, Tensor]:
        trained_before = server.shared.new_zeros(server.clients)
        return {
            "known": trained_before,
            "statistics": trained_before.new_zeros(server.clients, 2 * sum(server.channels)),
            "mixtures": server.shared.repeat(server.clients, 1),
        }

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"sent": server.shared.new_zeros(1)}

    def download(self, server: Server, client: int) -> Tensor:
        return server.state["mixtures"][client]

    def report(self, local: Local) -> dict[str, Tensor]:
        if local.state["sent"].item():
            return super().report(local)
        local.state["sent"].fill_(1)
        return {**super().report(local), "statistics": _statistics(local)}

    def update(self, server: Server, mean: Mean) -> None:
        import torch

        trained_before, statistics, mixtures = (server.state[name] for name in ("known", "statistics", "mixtures"))
        here = list(server.participants)
        tensors = mean.shared
        for row, client in enumerate(here):
            if not trained_before[client].item():
                trained_before[client] = 1
                statistics[client] = mean["statistics"][row]
        server.shared.copy_(tensors.mean(0))
        # Clients that were never there receive the plain mean.
        mixtures[trained_before == 0] = server.shared
        there = trained_before.nonzero().flatten()
        # In float64: distances are differences of statistics that can be close to each other.
        weights = statistics.new_zeros(server.clients, server.clients, dtype=torch.float64)
        weights[there[:, None], there] = mixing(distances(statistics[there], server.channels), self.lam)
        for client in there.tolist():
            parts = weights[client, here]
            if total := parts.sum().item():
                mixtures[client] = (parts / total).to(tensors.dtype) @ tensors


def _statistics(local: Local) -> Tensor:
    """Return the running means, then the running variances, of all batch-norm layers of a client, as one vector."""
    import torch

    from ..nn.batchnorm import batch_norms

    layers = [layer for layer in batch_norms(local.model).values() if layer.running_mean is not None]
    means, variances = [layer.running_mean for layer in layers], [layer.running_var for layer in layers]
    return torch.cat([local.state_vector[:0], *means, *variances])  # type: ignore[list-item]


def distances(statistics: Tensor, channels: Sequence[int]) -> Tensor:
    """Return the distances (n, n), float64, between n clients, given their batch-norm `statistics`.

    `statistics` (n, 2 * sum of channels) has means, then variances; `channels` are the channels of each layer.
    """
    import torch

    means, variances = statistics.double().chunk(2, dim=1)
    out = means.new_zeros(len(means), len(means))
    for mean, deviation in zip(means.split(list(channels), 1), variances.sqrt().split(list(channels), 1), strict=True):
        both = torch.cat([mean, deviation], 1)
        out += (both[:, None] - both).square().sum(2).sqrt()
    return out


def mixing(distance: Tensor, lam: float) -> Tensor:
    """Return the weight (n, n) of each client (column) in each client's mixture (row).

    `distance` (n, n) holds the distances between clients, and `lam` is the weight of a client in its own mixture.
    """
    import torch

    # Clients with equal statistics have distance 0: the clamp keeps their weights finite.
    alike = 1 / distance.clamp(min=1e-12)
    alike.fill_diagonal_(0)
    itself = torch.eye(len(distance), dtype=distance.dtype, device=distance.device)
    if len(distance) == 1:
        return itself
    return lam * itself + (1 - lam) * alike / alike.sum(1, keepdim=True)
