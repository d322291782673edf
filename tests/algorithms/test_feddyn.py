"""FedDyn against algorithm 1 of its paper by hand in NumPy, and against the algorithms that it equals in limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedshift import Federation

ALPHA, RATE, STEPS = 0.1, 0.5, 3
TRAINING = {"lr": RATE, "local_epochs": STEPS, "batch_size": 64, "select": "last"}  # a batch is all of a client's data
Data = dict[str, tuple[torch.Tensor, torch.Tensor]]


def clients(*sizes: int) -> Data:
    g = torch.Generator().manual_seed(0)
    return {
        f"site{i}": ((i + 1) * torch.randn(n, 3, generator=g).double(), torch.randint(2, (n,), generator=g))
        for i, n in enumerate(sizes)
    }


def network() -> torch.nn.Module:
    model = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).view(2, 3) / 10)
        model.bias.copy_(torch.tensor([0.1, -0.1]))
    return model


def flat(state: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate([state["weight"].numpy().ravel(), state["bias"].numpy().ravel()])


def trained(data: Data, algorithm: dict[str, Any] | str, rounds: int, **training: Any) -> np.ndarray:
    federation = Federation(network(), data, algorithm=algorithm, training=TRAINING | training, seed=1)
    return flat(federation.run(rounds=rounds).global_state())


def gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean cross-entropy of softmax(W x + b), where theta is (W, b) in one vector."""
    z = x @ theta[:6].reshape(2, 3).T + theta[6:]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    error = (p - np.eye(2)[y]) / len(y)
    return np.concatenate([(error.T @ x).ravel(), error.sum(0)])


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_rounds_by_hand(weights: str) -> None:
    """Three rounds in the paper's form, with q_i and h, at clients of unequal size."""
    data = clients(20, 30, 40)
    n, total = len(data), sum(len(y) for _, y in data.values())
    x, h = flat(dict(network().state_dict())), np.zeros(8)
    q = {site: np.zeros(8) for site in data}
    for round_ in range(1, 4):
        changes = []
        for site, (images, labels) in data.items():
            alpha = ALPHA / (n * len(labels) / total if weights == "size" else 1)
            theta = x.copy()
            for _ in range(STEPS):
                theta -= RATE * (gradient(theta, images.numpy(), labels.numpy()) - q[site] + alpha * (theta - x))
            q[site] -= alpha * (theta - x)
            changes.append(theta - x)
        h -= ALPHA * np.mean(changes, 0)
        x = x + np.mean(changes, 0) - h / ALPHA
        ours = trained(data, {"name": "feddyn", "alpha": ALPHA}, round_, weights=weights)
        np.testing.assert_allclose(ours, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_is_feddc_without_its_gradient_correction(participation: float) -> None:
    data = clients(20, 30, 40)
    dyn, dc = (
        trained(data, algorithm, 4, participation=participation, batch_size=8)
        for algorithm in ({"name": "feddyn", "alpha": ALPHA}, {"name": "feddc", "alpha": ALPHA, "correction": False})
    )
    np.testing.assert_allclose(dyn, dc, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("participation", "factor"), [(1.0, 2.0), (0.5, 1.5)])
def test_first_step_is_a_multiple_of_that_of_fedprox(participation: float, factor: float) -> None:
    """H is the active clients' mean change times their part of all clients, and is added to that change."""
    data, start = clients(24, 24, 24, 24), flat(dict(network().state_dict()))
    dyn = trained(data, {"name": "feddyn", "alpha": ALPHA}, 1, participation=participation)
    prox = trained(data, {"name": "fedprox", "mu": ALPHA}, 1, participation=participation)
    np.testing.assert_allclose(dyn - start, factor * (prox - start), rtol=0, atol=1e-12)


def test_all_clients_reach_the_optimum_of_all_data() -> None:
    """The fixed point minimises the loss over all samples, although clients differ and take several steps a round."""
    data = clients(20, 30, 40)
    x = trained(data, {"name": "feddyn", "alpha": 1.0}, 400, lr=0.1)
    images, labels = (np.concatenate([pair[i].numpy() for pair in data.values()]) for i in (0, 1))
    assert np.abs(gradient(x, images, labels)).max() < 1e-8
    drifted = trained(data, "fedavg", 400, lr=0.1)
    assert np.abs(gradient(drifted, images, labels)).max() > 1e-3


def test_alpha_must_be_positive() -> None:
    with pytest.raises(ValueError, match="alpha"):
        trained(clients(20, 30), {"name": "feddyn", "alpha": 0}, 1)
