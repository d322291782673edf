"""q-FFL, AFL, FedDG-GA, V-REx and GroupDRO: their limit, FedAvg with equal weights, and numbers known before."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from toy import SIZES, TRAVELS, clients, gap, network

from fedshift import Federation
from fedshift.algorithms import Mean, Server
from fedshift.algorithms.afl import _on_simplex
from fedshift.core.registry import build

TRAINING = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "select": "last"}
NEUTRAL: dict[str, dict[str, float]] = {
    "qffl": {"q": 0.0},
    "afl": {"weight_lr": 0.0},
    "feddg_ga": {"step": 0.0},
    "vrex": {"beta": 0.0},
    "groupdro": {"weight_lr": 0.0},
}
"""Settings that leave nothing of the method but equal weights."""
ACTIVE: dict[str, dict[str, float]] = {
    "qffl": {"q": 1.0},
    "afl": {"weight_lr": 2.0},
    "feddg_ga": {"step": 0.8},
    "vrex": {"beta": 0.3},
    "groupdro": {"weight_lr": 3.0},
}


def trained(algorithm: Any, bn: str = "aggregated", validation: Any = None, **training: Any) -> Federation:
    options = {"algorithm": algorithm, "bn": bn, "training": TRAINING | training}
    return Federation(network(), clients(), validation=validation, **options).run()


@functools.cache
def fedavg(bn: str, weights: str) -> dict[str, torch.Tensor]:
    return trained("fedavg", bn, weights=weights).global_state()


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("bn", TRAVELS)
def test_without_its_parameter_it_is_fedavg_with_equal_weights(bn: str, name: str) -> None:
    """Clients differ in size, so that FedAvg's own weights would show."""
    uniform, by_size = fedavg(bn, "uniform"), fedavg(bn, "size")
    assert gap(trained({"name": name, **NEUTRAL[name]}, bn).global_state(), uniform) < 1e-12
    assert gap(trained({"name": name, **ACTIVE[name]}, bn).global_state(), uniform) > 1e-3
    assert gap(by_size, uniform) > 1e-3


@pytest.mark.parametrize("name", ["afl", "groupdro", "feddg_ga"])
def test_weights_are_a_mixture_in_favour_of_some_clients(name: str) -> None:
    q = trained({"name": name, **ACTIVE[name]}).server.state["q"]
    assert (q >= 0).all()
    assert float(q.sum()) == pytest.approx(1, abs=1e-12)
    assert float(q.max() - q.min()) > 0.05


# ---- printed numbers


def server(shared: list[float], clients: int, **state: list[float]) -> Server:
    vector = torch.tensor(shared, dtype=torch.float64)
    n = len(vector)
    out = Server(vector, slice(0, n), slice(n, n), clients=clients, participants=range(clients), rounds=10)
    out.state = {k: torch.tensor(v, dtype=torch.float64) for k, v in state.items()}
    return out


def test_a_step_of_qffl_with_one_client() -> None:
    """From x = (1, 2) to y = (0.8, 1.7), eta 0.1, q 2 and F 1.5: (x - y) / (1 + q |x - y|^2 / (eta F))."""
    at = server([1.0, 2.0], 1)
    path, loss, q = np.array([2.0, 3.0]), 1.5, 2
    delta, h = loss**q * path, q * loss ** (q - 1) * (path**2).sum() + loss**q / 0.1
    tensors = {"delta": torch.tensor(delta), "statistics": torch.zeros(0).double(), "h": torch.tensor([h])}
    build("algorithm", {"name": "qffl", "q": q}).update(at, Mean(tensors, at.trainable))
    np.testing.assert_allclose(np.array([1.0, 2.0]) - at.params.numpy(), [0.073171, 0.109756], rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ([2, 0.9, 0.1], [1, 0, 0]),
        ([0.5, 0.7], [0.4, 0.6]),
        ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
        ([-1, 0.5, 0.25], [0, 0.625, 0.375]),
        ([7], [1]),
    ],
)
def test_the_closest_point_of_the_simplex(point: list[float], expected: list[float]) -> None:
    got = _on_simplex(torch.tensor(point, dtype=torch.float64))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)


def test_weights_of_groupdro_after_a_round() -> None:
    at = server([0.0], 2, q=[0.5, 0.5])
    tensors = {"shared": torch.ones(1).double(), "risk": torch.tensor([[0.2], [1.2]], dtype=torch.float64)}
    build("algorithm", {"name": "groupdro", "weight_lr": 0.01}).update(at, Mean(tensors, at.trainable))
    np.testing.assert_allclose(at.state["q"], [0.4975, 0.5025], rtol=0, atol=5e-7)


def test_weights_of_feddg_ga_after_a_gap() -> None:
    """They count for the models that come with the gaps; in the second round s is whole, in the last 2 s/T."""
    at = server([0.0], 3, q=[1 / 3] * 3)
    at.round = 1
    tensors = {"shared": torch.eye(3).double()[:, :1], "gap": torch.tensor([[0.3], [-0.1], [0.1]], dtype=torch.float64)}
    algorithm = build("algorithm", "feddg_ga")
    algorithm.update(at, Mean(tensors, at.trainable))
    np.testing.assert_allclose(at.state["q"], [0.375, 0.291667, 0.333333], rtol=0, atol=5e-7)
    np.testing.assert_allclose(at.shared, [0.375], rtol=1e-12)
    last = server([0.0], 3, q=[1 / 3] * 3)
    last.round = 9
    algorithm.update(last, Mean(tensors, last.trainable))
    moved = np.array([1 / 3 + 0.04 / 3, 1 / 3 - 0.04 / 9, 1 / 3 + 0.04 / 9])
    np.testing.assert_allclose(last.state["q"], moved / moved.sum(), rtol=1e-12)


def test_opposite_gaps_of_two_clients_move_weights_symmetrically() -> None:
    at = server([0.0], 2, q=[0.5, 0.5])
    at.round = 1
    for gaps in ([0.3, -0.3], [0.0, 0.0]):  # without any gap, weights stay
        tensors = {"shared": torch.eye(2).double()[:, :1], "gap": torch.tensor(gaps, dtype=torch.float64)[:, None]}
        build("algorithm", "feddg_ga").update(at, Mean(tensors, at.trainable))
        np.testing.assert_allclose(at.state["q"], [0.6, 0.4], rtol=1e-12)


def test_feddg_ga_measures_on_validation_images_and_by_accuracy() -> None:
    x, y = clients()["a"]
    other = dict.fromkeys(SIZES, (x[:5], (y[:5] + 1) % 3))
    spec = {"name": "feddg_ga", "step": 0.8}
    weights = [
        trained(given, validation=validation).server.state
        for given, validation in ((spec, None), (spec, other), ({**spec, "metric": "accuracy"}, None))
    ]
    assert gap(weights[1], weights[0]) > 1e-3
    assert gap(weights[2], weights[0]) > 1e-3


# ---- V-REx


def test_two_clients_that_take_one_step_a_round_follow_vrexs_gradient() -> None:
    """In the second round, from x of the first: the mean of (1 + 2 beta (R_d - R)) g_d, by autograd of each loss."""
    beta, rate = 20.0, 0.1
    data = {k: v for k, v in clients().items() if k in "ab"}
    training = {"rounds": 2, "local_steps": 1, "batch_size": 32, "lr": rate, "select": "last"}
    federation = Federation(network("no norm"), data, algorithm={"name": "vrex", "beta": beta}, training=training)
    model = network("no norm")
    risks: list[float] = []
    for factors in ([1.0, 1.0], None):
        federation.round()
        losses = [torch.nn.functional.cross_entropy(model(x), y) for x, y in data.values()]
        mean = sum(risks) / 2
        weights = factors or [1 + 2 * beta * (risk - mean) for risk in risks]
        gradients = torch.autograd.grad(
            sum(w * loss for w, loss in zip(weights, losses, strict=True)) / 2, [*model.parameters()]
        )
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=rate)
        risks = [loss.item() for loss in losses]
        assert gap(federation.global_state(), model.state_dict()) < 1e-12
    assert abs(weights[0] - 1) > 0.1


def test_early_rounds_of_vrex_have_a_small_beta() -> None:
    large, one = {"name": "vrex", "beta": 3.0}, {"name": "vrex", "beta": 1.0}
    early = trained({**large, "anneal_rounds": 3}, lr=0.01).global_state()
    assert gap(early, trained(one, lr=0.01).global_state()) == 0
    assert gap(early, trained({**large, "anneal_rounds": 1}, lr=0.01).global_state()) > 1e-4


def test_a_negative_factor_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    trained({"name": "vrex", "beta": 300.0}, lr=1e-5, rounds=2)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all(line.startswith("vrex: in round 2, client ") and " by -" in line for line in lines)
