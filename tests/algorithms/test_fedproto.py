"""FedProto and FedExP in whole rounds by hand in NumPy, in what they send, and in their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import server_by_hand
import torch
from by_hand import Federated, Site
from torch import Tensor, nn
from toy import Noted, softmax

from fedshift import Federation

RATE, WEIGHT, ROUNDS = 0.05, 1.5, 4
SIZES = {"a": 5, "b": 9, "c": 4}
CLASSES = {"a": [0, 1], "b": [0, 1, 2], "c": [1, 1]}
"""No client has class 3, and class 2 lies at one client alone."""


def clients() -> dict[str, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(3)
    out = {}
    for k, (name, n) in enumerate(SIZES.items()):
        labels = torch.tensor([CLASSES[name][i % len(CLASSES[name])] for i in range(n)])
        out[name] = (1 + k) * torch.randn(n, 3, generator=g, dtype=torch.float64), labels
    return out


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4)).double()


def trained(until: int = ROUNDS, weight: float = WEIGHT, **training: Any) -> Federation:
    settings = {"lr": RATE, "local_epochs": 2, "batch_size": 64, "select": "last", **training}
    spec = {"name": "fedproto", "weight": weight}
    return Federation(network(), clients(), algorithm=spec, training=settings).run(until)


def step(theta: list[np.ndarray], x: np.ndarray, y: np.ndarray, prototypes: np.ndarray, has: np.ndarray) -> list[Any]:
    """Return the gradients of cross-entropy + WEIGHT mean((f - c)^2): on f, 2 WEIGHT (f - c) / (B F)."""
    a, alpha, b, beta = theta
    f = x @ a.T + alpha
    z = f @ b.T + beta
    dz = (softmax(z) - np.eye(4)[y]) / len(y)
    df = dz @ b + 2 * WEIGHT * (f - prototypes[y]) * has[y][:, None] / f.size
    return [df.T @ x, df.sum(0), dz.T @ f, dz.sum(0)]


@pytest.mark.parametrize("rounds", range(1, ROUNDS + 1))
def test_rounds_by_hand(rounds: int) -> None:
    data = {k: (x.numpy(), y.numpy()) for k, (x, y) in clients().items()}
    start = [p.detach().numpy() for p in network().parameters()]
    theta = {k: [p.copy() for p in start] for k in data}
    prototypes, has = np.zeros((4, 2)), np.zeros(4)
    for _ in range(rounds):
        sums, owners = np.zeros((4, 2)), np.zeros(4)
        for k, (x, y) in data.items():
            for _ in range(2):
                gradient = step(theta[k], x, y, prototypes, has)
                theta[k] = [p - RATE * g for p, g in zip(theta[k], gradient, strict=True)]
            f = x @ theta[k][0].T + theta[k][1]
            for c in set(y):
                sums[c] += f[y == c].mean(0)
                owners[c] += 1
        prototypes[owners > 0] = sums[owners > 0] / owners[owners > 0][:, None]
        has = (owners > 0).astype(float)
    ours = trained(rounds)
    for k in data:
        for mine, theirs in zip(ours.client_state(k).values(), theta[k], strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(ours.server.state["prototypes"].numpy(), prototypes, rtol=1e-12, atol=1e-13)
    assert ours.server.state["has"].tolist() == [1, 1, 1, 0]


def test_a_class_keeps_its_prototype_while_its_clients_are_away() -> None:
    federation = trained(0, participation=0.34, rounds=12)
    last: dict[int, Tensor] = {}
    seen: set[int] = set()
    for _ in range(12):
        federation.round()
        (site,) = {row["site"] for row in federation.history if row["round"] == federation.server.round}
        for c in range(4):
            prototype = federation.server.state["prototypes"][c].clone()
            if c in seen and c not in CLASSES[site]:
                assert torch.equal(prototype, last[c])
            last[c] = prototype
        seen |= set(CLASSES[site])
    assert seen == {0, 1, 2}, "each of the clients was drawn"


def test_prototypes_and_flags_travel_from_the_second_round_on() -> None:
    """Up 4 prototypes of 2 features and 4 flags, 12 floats; down nothing in round 1, and then the same."""
    rows = [row for row in trained(2).history if row["split"] == "train"]
    assert [(row["round"], row["floats_down"], row["floats_up"]) for row in rows] == [(1, 0, 12)] * 3 + [
        (2, 12, 12)
    ] * 3


def test_without_weight_each_client_trains_alone() -> None:
    alone = Federation(
        network(),
        clients(),
        algorithm="local",
        training={"lr": RATE, "local_epochs": 2, "batch_size": 64, "select": "last"},
    ).run(ROUNDS)
    ours = trained(weight=0)
    for name in SIZES:
        mine, theirs = ours.client_state(name), alone.client_state(name)
        assert all(torch.equal(mine[k], theirs[k]) for k in theirs)


def test_fedexp_goes_further_and_logs_by_how_much() -> None:
    """One step from zero at two sites whose changes differ in direction: eta_g is above 1, and is in the history."""
    x = {"a": np.array([1.0, 3.0]), "b": np.array([2.0, 2.0, 4.0, 4.0])}
    y = {"a": np.array([1.0, 1.0]), "b": np.array([0.0, 1.0, 0.0, 0.0])}
    noted = {k: Noted(torch.from_numpy(x[k])[:, None], torch.from_numpy(y[k]).long()) for k in x}
    net = nn.Sequential(nn.Linear(1, 1), _TwoLogits()).double()
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    settings = {"lr": 0.5, "batch_size": 8, "select": "last", "weights": "uniform"}
    ours = Federation(net, noted, algorithm={"name": "fedexp", "eps": 0.0}, training=settings).run(1)
    stats = np.array([0.0, 1.0])
    sites = {k: Site(x[k], y[k], 0.5, 1, iter([t.numpy() for t in noted[k].taken]), np.zeros(0), stats) for k in x}
    f = Federated(np.zeros(2), stats, sites, True).play(server_by_hand.fedexp(0.0), [["a", "b"]], lambda _: 0.5)
    (eta,) = f.kept["eta_g"]
    # Changes 0.5 (1, 1/2) and -0.5 (1, 1/4): the mean square is 0.5 (5/16 + 17/64), that of the mean 1/16^2.
    assert eta == pytest.approx(0.5 * (5 / 16 + 17 / 64) / (2 / 256))
    assert [row["log_eta_g"] for row in ours.history] == pytest.approx([eta, eta], rel=1e-12)
    np.testing.assert_allclose(ours.global_state()["0.weight"].item(), f.x[0], atol=1e-14)
    np.testing.assert_allclose(ours.global_state()["0.bias"].item(), f.x[1], rtol=1e-12)


class _TwoLogits(nn.Module):
    """[0, z]."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], 1)
