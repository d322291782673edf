"""The gradients behind the deviation of FedTAN's theorem 1: against numerical ones, the engine's, and algebra."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from invented import made
from torch import nn

from fedshift import Federation
from fedshift.figures import gradient_deviation as figure
from fedshift.figures.gradient_deviation import EPS, Parameters, Way, client_gradients, union_gradients

WAYS: list[Way] = ["fedavg", "fedavg_alg2", "fedtan"]
SIZES = (5, 9, 7)


def problem(sizes: tuple[int, ...] = SIZES) -> tuple[Parameters, list[np.ndarray], list[np.ndarray]]:
    """A network of two BN layers with gamma and beta of their own, and clients that differ in mean and scale."""
    rng = np.random.default_rng(0)
    widths = [4, 6, 5]
    parameters: Parameters = []
    for before, after in itertools.pairwise(widths):
        parameters += [rng.normal(size=(before, after)), rng.uniform(0.5, 1.5, after), rng.normal(size=after)]
    parameters += [rng.normal(size=(5, 3)), rng.normal(size=3)]
    xs = [(1 + k) * rng.normal(size=(n, 4)) + k for k, n in enumerate(sizes)]
    return parameters, xs, [rng.integers(0, 3, n) for n in sizes]


def loss(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> float:
    return union_gradients(parameters, [x], [y])[1]


def numerical(parameters: Parameters, x: np.ndarray, y: np.ndarray) -> Parameters:
    grads = [np.zeros_like(p) for p in parameters]
    for p, grad in zip(parameters, grads, strict=True):
        for place in np.ndindex(p.shape):
            kept = p[place]
            ends = []
            for step in (1e-6, -1e-6):
                p[place] = kept + step
                ends.append(loss(parameters, x, y))
            p[place] = kept
            grad[place] = (ends[0] - ends[1]) / 2e-6
    return grads


def flat(grads: Parameters) -> np.ndarray:
    return np.concatenate([g.ravel() for g in grads])


def mean(grads: list[Parameters], sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    return np.average([flat(g) for g in grads], axis=0, weights=sizes)


def test_the_loss_is_that_of_torch() -> None:
    parameters, xs, ys = problem()
    x, y = np.concatenate(xs), np.concatenate(ys)
    model = network(parameters)
    logits = model(torch.from_numpy(x))
    wanted = nn.functional.cross_entropy(logits, torch.from_numpy(y)).item()
    assert union_gradients(parameters, xs, ys)[1] == pytest.approx(wanted, rel=1e-12)


def test_the_mean_of_the_shares_is_the_numerical_gradient_of_the_union() -> None:
    parameters, xs, ys = problem()
    wanted = numerical(parameters, np.concatenate(xs), np.concatenate(ys))
    assert mean(union_gradients(parameters, xs, ys)[0]) == pytest.approx(flat(wanted), abs=1e-8)


def test_fedavg_has_the_numerical_gradient_of_each_client_alone() -> None:
    parameters, xs, ys = problem()
    for x, y, grad in zip(xs, ys, client_gradients(parameters, xs, ys, "fedavg"), strict=True):
        assert flat(grad) == pytest.approx(flat(numerical(parameters, x, y)), abs=1e-8)


def test_with_fedtan_every_client_has_its_share_of_the_union() -> None:
    """The chain rule, for batches of unequal size with weights in proportion; the others deviate."""
    parameters, xs, ys = problem()
    shares, _ = union_gradients(parameters, xs, ys)
    for way in WAYS:
        grads = client_gradients(parameters, xs, ys, way)
        far = [figure.distance(*pair) for pair in zip(grads, shares, strict=True)]
        if way == "fedtan":
            assert max(far) < 1e-12
        else:
            assert min(far) > 1e-2


@pytest.mark.parametrize("way", WAYS)
def test_no_deviation_where_clients_hold_the_same_samples(way: Way) -> None:
    """Then statistics and their gradients agree, and every way is training on the union."""
    parameters, xs, ys = problem()
    xs, ys = [xs[1]] * 3, [ys[1]] * 3
    shares, _ = union_gradients(parameters, xs, ys)
    for grad, share in zip(client_gradients(parameters, xs, ys, way), shares, strict=True):
        assert figure.distance(grad, share) < 1e-12


def test_the_last_layers_deviation_by_hand() -> None:
    """One feature, W = 1, gamma = 1, beta = 0, last weights (1, 0): clients hold x = 0, 2 and 10, 12, all of class 0.

    Each alone, the second sample is normalised to 1 / sqrt(1 + eps), the first to less than 0. Together (mean 6,
    variance 26) client 2 has 4 and 6 over sqrt(26 + eps), and client 1 nothing above 0. An error is p - 1 = -p(1) with
    p(1) = 1 / (1 + exp(h)), so that db_0 is minus the mean of p(1) over a client's samples.
    """
    parameters = [np.ones((1, 1)), np.ones(1), np.zeros(1), np.array([[1.0, 0.0]]), np.zeros(2)]
    xs = [np.array([[0.0], [2.0]]), np.array([[10.0], [12.0]])]
    ys = [np.zeros(2, dtype=int)] * 2

    def second(*h: float) -> float:
        return float(np.mean([1 / (1 + np.exp(v)) for v in h]))

    alone = 1 / np.sqrt(1 + EPS)
    std = np.sqrt(26 + EPS)
    for grad in client_gradients(parameters, xs, ys, "fedavg"):
        assert grad[-1] == pytest.approx([-second(0, alone), second(0, alone)])
    shares, _ = union_gradients(parameters, xs, ys)
    assert shares[0][-1] == pytest.approx([-0.5, 0.5])
    assert shares[1][-1] == pytest.approx([-second(4 / std, 6 / std), second(4 / std, 6 / std)])


def network(parameters: Parameters) -> nn.Sequential:
    """The same network in torch, in training mode."""
    layers: list[nn.Module] = []
    tensors: list[np.ndarray] = []
    for w, gamma, beta in zip(parameters[:-2:3], parameters[1:-2:3], parameters[2:-2:3], strict=True):
        layers += [nn.Linear(*w.shape, bias=False), nn.BatchNorm1d(w.shape[1], eps=EPS), nn.ReLU()]
        tensors += [w.T, gamma, beta]
    model = nn.Sequential(*layers, nn.Linear(*parameters[-2].shape)).double()
    tensors += [parameters[-2].T, parameters[-1]]
    with torch.no_grad():
        for parameter, tensor in zip(model.parameters(), tensors, strict=True):
            parameter.copy_(torch.from_numpy(tensor))
    return model


@pytest.mark.parametrize("way", WAYS)
def test_the_mean_gradient_is_that_of_the_engine(way: Way) -> None:
    """One step at rate 1 on whole clients: the start minus the end is the mean gradient."""
    parameters, xs, ys = problem()
    data = {str(k): (torch.from_numpy(x), torch.from_numpy(y)) for k, (x, y) in enumerate(zip(xs, ys, strict=True))}
    training: Any = {"rounds": 1, "local_steps": 1, "batch_size": 64, "lr": 1.0, "weights": "size", "select": "last"}
    model = network(parameters)
    after = Federation(model, data, algorithm=way, training=training).run().global_state()
    moved = [(p.detach() - after[name]).numpy().T for name, p in model.named_parameters()]
    assert mean(client_gradients(parameters, xs, ys, way)) == pytest.approx(flat(moved), abs=1e-12)


def test_the_figure_says_what_it_draws() -> None:
    drawn = figure.GradientDeviation(rounds=60)
    deviation, losses = zip(*(figure.federate(way, 60) for way in WAYS), strict=True)
    words = drawn.caption(made())
    for way, b, values in zip(WAYS, deviation, losses, strict=True):
        assert b.shape == (60, figure.CLIENTS)
        assert f"{values[-1]:.2g}" in words
        if way != "fedtan":
            assert f"{b.mean():.2g} with" in words
    assert deviation[2].max() < 1e-12
    assert "0 to rounding with FedTAN" in words
    assert len({values[0] for values in losses}) == 1, "all start as the same network"
    # The caption's last claim: algorithm 2 deviates more than FedAvg, and its loss is lower.
    assert deviation[1].mean() > deviation[0].mean()
    assert losses[1][-1] < losses[0][-1]
