"""FedAP: its weights and whole rounds in NumPy, what it is in limits, and what the ledger counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import clients, differing, gap, network, of_clients, softmax

from fedshift import Federation
from fedshift.algorithms.fedap import distances, mixing

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "weights": "uniform"}
State = dict[str, Tensor]


def federation(algorithm: Any, norm: str = "batch norm", **training: Any) -> Federation:
    settings = {**BASE, "select": "last", **training}
    bn = "local" if algorithm == "fedavg" else None
    return Federation(network(norm), clients(), algorithm=algorithm, bn=bn, training=settings)


def fedap(lam: float) -> dict[str, Any]:
    return {"name": "fedap", "lam": lam}


def test_the_weights_of_three_clients() -> None:
    """Clients at distances 1 (of the first and second), 2 and 4: the others' part is shared as 1/d."""
    d = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 4.0], [2.0, 4.0, 0.0]], dtype=torch.float64)
    expected = [[1 / 2, 1 / 3, 1 / 6], [2 / 5, 1 / 2, 1 / 10], [1 / 3, 1 / 6, 1 / 2]]
    np.testing.assert_allclose(mixing(d, 0.5), expected, rtol=1e-15)
    np.testing.assert_allclose(mixing(0 * d, 1 / 3), np.full((3, 3), 1 / 3), rtol=1e-15)
    assert mixing(d[:1, :1], 0.5).tolist() == [[1.0]]


def test_the_distance_of_two_clients() -> None:
    """Layers of two channels and one: means 0, 0 | 1 and 3, 4 | 1, variances 4, 9 | 1 and 4, 9 | 16."""
    one, two = [0.0, 0, 1, 4, 9, 1], [3.0, 4, 1, 4, 9, 16]
    assert distances(torch.tensor([one, two]), [2, 1]).tolist() == [[0, 8], [8, 0]], "5 of the first layer, 4 - 1"


def mixed(thetas: list[np.ndarray], statistics: list[np.ndarray], lam: float) -> list[np.ndarray]:
    """Each client's mixture, from means and variances (2,) of one channel."""
    out = []
    for i, own in enumerate(thetas):
        points = [np.array([m, np.sqrt(v)]) for m, v in statistics]
        alike = np.array([0 if i == j else 1 / np.linalg.norm(points[i] - p) for j, p in enumerate(points)])
        others = sum(a * theta for a, theta in zip(alike, thetas, strict=True)) / alike.sum()
        out.append(lam * own + (1 - lam) * others)
    return out


def test_rounds_by_hand() -> None:
    """One channel of batch norm before a linear layer, whose gamma and beta train too; a batch is a site."""
    rng, rate, lam = np.random.default_rng(0), 0.2, 0.4
    sizes = {"a": 5, "b": 7, "c": 9}
    data = {k: (n / 5 * rng.normal(size=n) + n / 5, rng.integers(0, 2, n)) for k, n in sizes.items()}
    start = np.array([0.7, -0.3, 0.2, 0.1])  # weights of both classes, then biases
    model = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.from_numpy(start[:2, None]))
        model[1].bias.copy_(torch.from_numpy(start[2:]))
    received, affine = [start] * 3, [np.array([1.0, 0.0])] * 3
    statistics = [np.array([0.0, 1.0])] * 3
    first: list[np.ndarray] = []
    for _ in range(3):
        thetas = []
        for i, (x, y) in enumerate(data.values()):
            theta, (gamma, beta) = received[i], affine[i]
            for _ in range(2):
                u = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
                h = gamma * u + beta
                z = h[:, None] * theta[:2] + theta[2:]
                error = (softmax(z) - np.eye(2)[y]) / len(y)
                d = error @ theta[:2]
                step = np.concatenate([h @ error, error.sum(0)])
                gamma, beta, theta = gamma - rate * d @ u, beta - rate * d.sum(), theta - rate * step
                statistics[i] = 0.9 * statistics[i] + 0.1 * np.array([x.mean(), x.var(ddof=1)])
            affine[i] = np.array([gamma, beta])
            thetas.append(theta)
        first = first or list(statistics)
        received = mixed(thetas, first, lam)
    tensors = {k: (torch.from_numpy(x)[:, None], torch.from_numpy(y)) for k, (x, y) in data.items()}
    training = {"lr": rate, "local_steps": 2, "batch_size": 16, "rounds": 3, "select": "last"}
    trained = Federation(model, tensors, algorithm=fedap(lam), training=training).run()
    for name, theta, (gamma, beta) in zip("abc", received, affine, strict=True):
        state = trained.client_state(name)
        ours = torch.cat([state[k].flatten() for k in ("1.weight", "1.bias", "0.weight", "0.bias")])
        np.testing.assert_allclose(ours, [*theta, gamma, beta], rtol=0, atol=1e-13)
    state = trained.global_state()
    ours = torch.cat([state["1.weight"].flatten(), state["1.bias"]])
    np.testing.assert_allclose(ours, np.mean(thetas, axis=0), rtol=0, atol=1e-13)


def test_equal_distances_and_equal_parts_are_fedbn() -> None:
    """A network without batch norm has no distances, so that all clients are alike."""
    for norm, same in (("no norm", True), ("batch norm", False)):
        apart = gap(of_clients(federation(fedap(1 / 3), norm).run()), of_clients(federation("fedavg", norm).run()))
        assert apart < 1e-12 if same else apart > 1e-4


def test_clients_that_keep_their_own_part_alone_are_local() -> None:
    ours, alone, mixture = (of_clients(federation(a).run()) for a in (fedap(1.0), "local", fedap(0.5)))
    assert gap(ours, alone) < 1e-12
    assert gap(mixture, alone) > 1e-3


@pytest.mark.parametrize("lam", [1.0, 0.5])
def test_what_a_client_has_waits_while_it_is_away(lam: float) -> None:
    """With lambda 1 the others' part is 0; with less, it gets theirs."""
    trained, known, seen = federation(fedap(lam), participation=0.67), set[str](), 0
    for number in range(1, 7):
        before = {c.name: trained.rounds.received(k).clone() for k, c in enumerate(trained.clients)}
        drawn = {row["site"] for row in trained.run(number).history if row["round"] == number}
        for k, client in enumerate(trained.clients):
            same = torch.equal(trained.rounds.received(k), before[client.name])
            if client.name in known - drawn:
                assert same is (lam == 1)
                seen += 1
            if client.name not in known | drawn:
                assert torch.equal(trained.rounds.received(k), trained.server.shared), "the plain mean"
        known |= drawn
    assert seen > 2


def test_statistics_are_sent_once_and_no_mixture_is_broadcast() -> None:
    trained = federation("fedap").run(3)
    W, S = 319, 20
    sent = {(row["round"], row["floats_down"], row["floats_up"]) for row in trained.history}
    assert sent == {(1, W, W + S), (2, W, W), (3, W, W)}
    assert trained.ledger() == {"down": 9 * W, "down_broadcast": 9 * W, "up": 9 * W + 3 * S, "messages": 3}


def test_the_selected_round_keeps_each_clients_mixture() -> None:
    options: Any = {"validation": clients(seed=1), "algorithm": fedap(0.5)}
    settings = {**BASE, "rounds": 6, "lr": 0.4, "momentum": 0.9, "select_by": "loss"}
    trained = Federation(network(), clients(), training=settings, **options).run()
    best = trained.result().round
    assert best < 6, "otherwise the last round would do"
    then = Federation(network(), clients(), training={**settings, "select": "last"}, **options).run(best)
    assert differing(of_clients(trained), of_clients(then)) == []
    assert gap(of_clients(trained), of_clients(then.run())) > 1e-3
    weights = [trained.client_state(name)["9.weight"] for name in "ab"]
    assert gap({"": weights[0]}, {"": weights[1]}) > 1e-3
