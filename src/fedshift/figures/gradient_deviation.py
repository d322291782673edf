"""The gradient deviation in FedTAN's theorem 1, by round, for FedAvg, FedAvg with algorithm 2, and FedTAN."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ._base import Figure, Results
from ._canvas import round_axis, styles

EPS = 1e-5
Way = Literal["fedavg", "fedavg_alg2", "fedtan"]
Parameters = list[np.ndarray]
"""W (inputs, outputs), gamma and beta (outputs,) of each hidden layer, then W and b of the last layer."""
WAYS: dict[Way, str] = {"fedavg": "FedAvg", "fedavg_alg2": "FedAvg + algorithm 2", "fedtan": "FedTAN"}
CLIENTS, SAMPLES, FEATURES, HIDDEN, CLASSES = 4, 64, 10, 20, 4
RATE = 0.1


class GradientDeviation(Figure):
    """Deviation B_i of each client's gradient, over rounds of a small federation whose clients hold different classes.

    FedTAN's assumption 1 bounds by B_i the distance of client i's gradient from the gradient that the client would have
    with the statistics of all clients. Here this second gradient is computed without any exchange between clients: it
    is the part of the gradient of ordinary training on all samples that runs through the client's samples, divided by
    the client's weight.

    B_i = 0 for FedTAN follows from the chain rule. With n samples together, batch norm gives a sample's input dF/dx = u
    / std + (dF/dmu) / n + 2 (x - mu) (dF/dv) / n, where F = sum p_i F_i. If p_i = m_i / n for a batch of m_i samples,
    dividing by p_i turns u into client i's own direct path, and each 1 / n into 1 / m_i: that is FedTAN's algorithm 3.
    With other weights it does not hold.
    """

    title = "Gradient deviation of clients"
    rounds: int = Field(150, ge=1, description="number of rounds, each of one full-batch step")

    def caption(self, results: Results) -> str:
        deviation = {way: float(np.mean(federate(way, self.rounds)[0])) for way in WAYS}
        loss = {way: federate(way, self.rounds)[1][-1] for way in WAYS}
        zero = "0 to rounding" if deviation["fedtan"] < 1e-12 else f"{deviation['fedtan']:.2g}"
        return (
            f"A network with two BN layers, trained in float64 at {CLIENTS} clients with two of {CLASSES} invented "
            f"classes each; {self.rounds} rounds of one step. Left: B_i, the distance between a client's gradient and "
            "its share of the gradient of training on all samples together; the mean over clients, with the least and "
            f"the largest. Its mean over rounds is {deviation['fedavg']:.2g} with FedAvg, "
            f"{deviation['fedavg_alg2']:.2g} with algorithm 2, which shares statistics but not their gradients, and "
            f"{zero} with FedTAN. Right: loss on all samples together, {loss['fedavg']:.2g}, "
            f"{loss['fedavg_alg2']:.2g} and {loss['fedtan']:.2g} before the last step. Sharing statistics alone does "
            "not remove the deviation, and the method with the smaller deviation need not have the smaller loss. "
            "FedTAN is exact in the first step of a round; further local steps, which are not drawn, deviate."
        )

    def draw(self, results: Results) -> str:
        runs = {label: federate(way, self.rounds) for way, label in WAYS.items()}
        looks = styles(runs)

        def panel(axes: Any, place: int) -> None:
            number = np.arange(1, self.rounds + 1)
            for label, run in runs.items():
                # B_i of each client, or one loss
                values, look = run[place].reshape(len(number), -1), looks[label]
                axes.fill_between(number, values.min(1), values.max(1), color=(look["color"], 0.15), linewidth=0)
                axes.plot(number, values.mean(1), label=label, linewidth=1.6, **look)
            axes.set_ylim(0, None)
            round_axis(axes)

        titles = dict(enumerate(("Gradient deviation B_i", "Loss on all samples")))
        return self.panels(results, titles, panel, looks, size=(3.9, 2.8))


@functools.lru_cache(maxsize=16)
def federate(way: Way, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Simulate the figure's federation for some rounds with one method.

    Return the deviations B_i (rounds, clients), and the loss on all clients' samples before each round (rounds,).
    """
    return descend(way, start(), itertools.repeat(clients(), rounds), RATE)


def descend(
    way: Way, parameters: Parameters, batches: Iterable[tuple[list[np.ndarray], list[np.ndarray]]], rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Train `parameters` by one step along the mean of the clients' gradients for each element of `batches`.

    An element of `batches` holds the inputs (samples, features) and labels (samples,) of each client in one round, and
    `rate` is the step size. Return the deviations B_i (rounds, clients), and the loss on all clients' samples before
    each step (rounds,).
    """
    deviation, losses = [], []
    for xs, ys in batches:
        grads = client_gradients(parameters, xs, ys, way)
        shares, loss = union_gradients(parameters, xs, ys)
        deviation.append([distance(*pair) for pair in zip(grads, shares, strict=True)])
        losses.append(loss)
        means = [np.mean(column, axis=0) for column in zip(*grads, strict=True)]
        parameters = [p - rate * mean for p, mean in zip(parameters, means, strict=True)]
    return np.array(deviation), np.array(losses)


def distance(gradient: Parameters, share: Parameters) -> float:
    """Return the Euclidean distance between a client's gradient and its part of the joint gradient.

    Both are lists of arrays, one for each tensor of the network.
    """
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(gradient, share, strict=True))))


def clients() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the inputs (SAMPLES, FEATURES) and labels (SAMPLES,) of each client. Client i holds classes i and i + 1.

    Classes are counted modulo CLASSES, and are normal clusters. The samples are the same on each call.
    """
    rng = stream("gradient deviation", "data")
    centres = rng.standard_normal((CLASSES, FEATURES))
    ys = [(np.arange(SAMPLES) % 2 + i) % CLASSES for i in range(CLIENTS)]
    return [centres[y] + rng.standard_normal((SAMPLES, FEATURES)) for y in ys], ys


def start() -> Parameters:
    """Return the untrained network of the figure, the same on each call."""
    return network(stream("gradient deviation", "network"), [FEATURES, HIDDEN, HIDDEN], CLASSES)


def network(rng: np.random.Generator, sizes: Sequence[int], classes: int) -> Parameters:
    """Return an untrained network: `sizes[0]` inputs, hidden layers of sizes `sizes[1:]`, and `classes` outputs."""
    parameters: Parameters = []
    for before, after in itertools.pairwise(sizes):
        parameters += [rng.standard_normal((before, after)) / before**0.5, np.ones(after), np.zeros(after)]
    return [*parameters, rng.standard_normal((sizes[-1], classes)) / sizes[-1] ** 0.5, np.zeros(classes)]


class _Normalised(NamedTuple):
    """What the backward pass of a BN layer needs from its forward pass, for each client.

    Attributes
    ----------
    hat : normalised inputs (samples, channels)
    std : standard deviations by which they were divided (channels,)
    """

    hat: list[np.ndarray]
    std: list[np.ndarray]


def client_gradients(
    parameters: Parameters, xs: Sequence[np.ndarray], ys: Sequence[np.ndarray], way: Way
) -> list[Parameters]:
    """Return the gradient of each client's mean cross-entropy on its own batch, in the order of `parameters`.

    `xs` and `ys` hold each client's inputs (samples, features) and labels (samples,). Clients are weighted by their
    numbers of samples. Under `fedavg`, batch norm uses each client's own mean and variance. Under `fedavg_alg2` and
    `fedtan` it uses the mean and variance over all clients; the gradients with respect to both are then each client's
    own (`fedavg_alg2`: FedTAN's algorithm 2) or their mean over clients (`fedtan`: algorithms 2 and 3).
    """
    weights = [len(y) / sum(map(len, ys)) for y in ys]
    inputs = list(xs)
    kept = []
    for w, gamma, beta in _hidden(parameters):
        normalised = _normalise([x @ w for x in inputs], weights, way)
        out = [gamma * hat + beta for hat in normalised.hat]
        kept.append((inputs, normalised, out))
        inputs = [np.maximum(o, 0) for o in out]
    w, b = parameters[-2:]
    errors = [_error(x @ w + b, y) for x, y in zip(inputs, ys, strict=True)]
    grads = [[x.T @ e, e.sum(0)] for x, e in zip(inputs, errors, strict=True)]
    upstream = [e @ w.T for e in errors]
    for (w, gamma, _), (inputs, normalised, out) in reversed(list(zip(_hidden(parameters), kept, strict=True))):
        upstream = [u * (o > 0) for u, o in zip(upstream, out, strict=True)]
        scales = [[(u * hat).sum(0), u.sum(0)] for u, hat in zip(upstream, normalised.hat, strict=True)]
        upstream = _backward([u * gamma for u in upstream], normalised, weights, way)
        own = zip(inputs, upstream, scales, grads, strict=True)
        grads = [[x.T @ u, *scale, *grad] for x, u, scale, grad in own]
        upstream = [u @ w.T for u in upstream]
    return grads


def _normalise(inputs: list[np.ndarray], weights: Sequence[float], way: Way) -> _Normalised:
    """Return each client's inputs of a BN layer in normalised form.

    They are normalised by the client's own statistics under `fedavg`, and otherwise by those of all clients.
    """
    means = [x.mean(0) for x in inputs]
    if way != "fedavg":
        means = [_mean(means, weights)] * len(inputs)
    variances = [((x - mean) ** 2).mean(0) for x, mean in zip(inputs, means, strict=True)]
    if way != "fedavg":
        variances = [_mean(variances, weights)] * len(inputs)
    std = [np.sqrt(var + EPS) for var in variances]
    return _Normalised([(x - m) / s for x, m, s in zip(inputs, means, std, strict=True)], std)


def _backward(
    upstream: list[np.ndarray], normalised: _Normalised, weights: Sequence[float], way: Way
) -> list[np.ndarray]:
    """Return each client's gradient with respect to the inputs of a BN layer.

    `upstream` holds each client's gradient with respect to the normalised inputs `hat`. With u = dF_i/dhat: dF_i/dmu =
    -sum u / std, and dF_i/dv = -sum u hat / (2 std^2). Then dF_i/dx = u / std + dmu / m_i + 2 (x - mu) dv / m_i. Under
    `fedtan`, dmu and dv are means over clients.
    """
    places = list(zip(upstream, *normalised, strict=True))
    to_mean = [-u.sum(0) / std for u, _, std in places]
    to_var = [-(u * hat).sum(0) / (2 * std**2) for u, hat, std in places]
    if way == "fedtan":
        to_mean = [_mean(to_mean, weights)] * len(places)
        to_var = [_mean(to_var, weights)] * len(places)
    # x - mu is hat * std.
    return [
        u / std + (dmu + 2 * hat * std * dv) / len(u)
        for (u, hat, std), dmu, dv in zip(places, to_mean, to_var, strict=True)
    ]


def union_gradients(
    parameters: Parameters, xs: Sequence[np.ndarray], ys: Sequence[np.ndarray]
) -> tuple[list[Parameters], float]:
    """Return each client's share of the gradient of ordinary training on all samples together, and the mean loss.

    The share of client i is the part of this gradient that runs through the client's samples, divided by the client's
    weight n_i / n: the weighted mean of all shares is the gradient. The backward pass of batch norm is that of one
    batch of all samples, dx = (n u - sum u - hat sum(u hat)) / (n std), without any notion of clients.
    """
    x, y = np.concatenate(xs), np.concatenate(ys)
    ends = np.cumsum([len(part) for part in ys])[:-1]
    kept = []
    for w, gamma, beta in _hidden(parameters):
        before = x @ w
        std = np.sqrt(before.var(0) + EPS)
        hat = (before - before.mean(0)) / std
        kept.append((x, hat, std, gamma * hat + beta))
        x = np.maximum(kept[-1][3], 0)
    w, b = parameters[-2:]
    logits = x @ w + b
    u = _error(logits, y)
    # A pair of factors for each parameter, whose products sum over samples to the gradient.
    factors = [(x, u), (np.ones((len(y), 1)), u)]
    u = u @ w.T
    for (w, gamma, _), (x, hat, std, out) in reversed(list(zip(_hidden(parameters), kept, strict=True))):
        u = u * (out > 0)
        scales = [(np.ones((len(y), 1)), u * hat), (np.ones((len(y), 1)), u)]
        u = u * gamma
        u = (len(y) * u - u.sum(0) - hat * (u * hat).sum(0)) / (len(y) * std)
        factors = [(x, u), *scales, *factors]
        u = u @ w.T
    parts = [zip(np.split(a, ends), np.split(b, ends), strict=True) for a, b in factors]
    shares = [
        [(len(y) / len(a)) * (a.T @ b).reshape(p.shape) for (a, b), p in zip(client, parameters, strict=True)]
        for client in zip(*parts, strict=True)
    ]
    return shares, _loss(logits, y)


def _hidden(parameters: Parameters) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the weights W, scales gamma and shifts beta of each hidden layer."""
    return list(zip(parameters[:-2:3], parameters[1:-2:3], parameters[2:-2:3], strict=True))


def _mean(parts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return the weighted sum of the arrays `parts`; weights sum to 1."""
    return sum((w * part for w, part in zip(weights, parts, strict=True)), start=np.zeros_like(parts[0]))


def _error(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the gradient of the mean cross-entropy with respect to the logits (n, classes); `y` (n,) are labels."""
    # Subtracting the maximum leaves the softmax as it is, and keeps exp from overflowing.
    odds = np.exp(logits - logits.max(1, keepdims=True))
    error: np.ndarray = odds / odds.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    return error / len(y)


def _loss(logits: np.ndarray, y: np.ndarray) -> float:
    """Return the mean cross-entropy of logits (n, classes) for labels `y` (n,)."""
    top = logits.max(1)
    return float((np.log(np.exp(logits - top[:, None]).sum(1)) + top - logits[np.arange(len(y)), y]).mean())
