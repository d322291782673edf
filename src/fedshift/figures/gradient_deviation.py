"""The gradient deviation of FedTAN's theorem 1, for FedAvg, algorithm 2 and FedTAN over rounds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ._base import Figure, Results
from ._canvas import COLOURS, LINES, WIDTH, round_axis
from ._client_gradients import Parameters, Way, client_gradients, union_gradients

WAYS: dict[Way, str] = {"fedavg": "FedAvg", "fedavg_alg2": "FedAvg + algorithm 2", "fedtan": "FedTAN"}
CLIENTS, SAMPLES, FEATURES, HIDDEN, CLASSES = 4, 64, 10, 20, 4
RATE = 0.1


class GradientDeviation(Figure):
    """Deviation B_i of each client's gradient, over rounds of small federations without iid labels.

    FedTAN's assumption 1 bounds by B_i the distance of client i's gradient from the one that it would have with the
    statistics of all clients. Here the latter is computed without any exchange: it is the part of the gradient of
    ordinary training on all samples that runs through the client's samples, divided by the client's weight.

    B_i = 0 for FedTAN follows from the chain rule. With n samples together, batch norm gives a sample's input
    dF/dx = u / std + (dF/dmu) / n + 2 (x - mu) (dF/dv) / n, where F = sum p_i F_i. If p_i = m_i / n for a batch of m_i
    samples, dividing by p_i turns u into client i's own direct path, and each 1 / n into 1 / m_i: that is FedTAN's
    algorithm 3. With other weights it does not hold.
    """

    title = "Gradient deviation of clients"
    rounds: int = Field(150, ge=1, description="rounds of one full-batch step")

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
            f"{loss['fedavg_alg2']:.2g} and {loss['fedtan']:.2g} at the end. Sharing statistics alone does not remove "
            "the deviation, and the method with the smaller deviation need not have the smaller loss. FedTAN is exact "
            "in the first step of a round; further local steps, which are not drawn, deviate."
        )

    def draw(self, results: Results) -> str:
        runs = {label: federate(way, self.rounds) for way, label in WAYS.items()}

        def paint(figure: Any) -> None:
            left, right = figure.subplots(1, 2)
            for k, (label, (deviation, loss)) in enumerate(runs.items()):
                look = {"color": COLOURS[k], "linestyle": LINES[k], "linewidth": 1.6}
                number = np.arange(1, len(loss) + 1)
                left.fill_between(number, deviation.min(1), deviation.max(1), color=(COLOURS[k], 0.15), linewidth=0)
                left.plot(number, deviation.mean(1), label=label, **look)
                right.plot(number, loss, label=label, **look)
            left.set_title("Gradient deviation B_i")
            right.set_title("Loss on all samples")
            for axes in (left, right):
                axes.set_ylim(0, None)
                round_axis(axes)

        return self.picture(results, (WIDTH, 3.2), paint, runs)


@functools.lru_cache(maxsize=16)
def federate(way: Way, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return B_i of each round and client (rounds, clients), and the loss on all samples together (rounds,)."""
    return descend(way, start(), itertools.repeat(clients(), rounds), RATE)


def descend(
    way: Way, parameters: Parameters, batches: Iterable[tuple[list[np.ndarray], list[np.ndarray]]], rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Take a step along the mean of the clients' gradients for each of some rounds.

    A round has inputs (samples, features) and labels (samples,) of each client. Returns B_i of each round and client
    (rounds, clients), and the loss on the samples of all clients together (rounds,).
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
    """Return the Euclidean distance of two gradients."""
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(gradient, share, strict=True))))


def clients() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return inputs (SAMPLES, FEATURES) and labels (SAMPLES,) of each client, which holds classes i and i + 1."""
    rng = stream("gradient deviation", "data")
    centres = rng.standard_normal((CLASSES, FEATURES))
    ys = [(np.arange(SAMPLES) % 2 + i) % CLASSES for i in range(CLIENTS)]
    return [centres[y] + rng.standard_normal((SAMPLES, FEATURES)) for y in ys], ys


def start() -> Parameters:
    """Return the untrained network of the figure."""
    return network(stream("gradient deviation", "network"), [FEATURES, HIDDEN, HIDDEN], CLASSES)


def network(rng: np.random.Generator, sizes: Sequence[int], classes: int) -> Parameters:
    """Return an untrained network for inputs of `sizes[0]` features, with a hidden layer of each further size."""
    parameters: Parameters = []
    for before, after in itertools.pairwise(sizes):
        parameters += [rng.standard_normal((before, after)) / before**0.5, np.ones(after), np.zeros(after)]
    return [*parameters, rng.standard_normal((sizes[-1], classes)) / sizes[-1] ** 0.5, np.zeros(classes)]
