"""Gradient descent on FedBN's two-layer network, compared with FedBN's theorem 4.4 and corollary 4.5."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ._base import Figure, Results
from ._canvas import COLOURS, LINES, logarithmic
from .ntk import gram, within_clients

CLIENTS, SAMPLES, FEATURES = 3, 4, 10
ALPHA = 10.0
"""Standard deviation of the initial weights; above 1, as the theorem asks for."""
METHODS = ("FedAvg", "FedBN")
LOSS, EIGENVALUE = "Loss, relative to its start", "Smallest eigenvalue of Λ(t)"


class ConvergenceRates(Figure):
    """Loss of gradient descent on FedBN's two-layer network, beside the linear rate that its theorem 4.4 proves.

    The network of equations 1 and 2 is f(x) = m^(-1/2) sum_k c_k relu(gamma_k v_k.x / |v_k|_S), where S is the
    covariance of the client that x belongs to and |v|_S^2 = v.S v. The signs c_k are fixed, and |f - y|^2 / 2 is the
    loss. FedAvg has one gamma_k, and FedBN has one for each client. Both normalise by each client's own S, so that the
    theorem compares nothing but gamma. Inputs are normal with mean 0, as assumption 4.1 asks for, and with S = s^2 I
    (our decision): then the Gram matrix of an infinitely wide network has a closed form.

    The theorem follows one descent on all clients' samples (E = 1). In the algorithm, a server that averages takes 1/N
    of the sum of the clients' steps, so that FedBN's local gamma moves N times as far, relative to v, as it does here.
    """

    title = "Convergence rates of FedAvg and FedBN"
    draws: int = Field(10, ge=1, description="number of random federations")
    width: int = Field(500, ge=1, description="number of hidden units")
    steps: int = Field(300, ge=1, description="number of steps of gradient descent")

    def caption(self, results: Results) -> str:
        pairs = [self._pair(n) for n in range(self.draws)]
        slow, fast = pairs[0]
        below = sum(bool((way.loss <= way.bound * (1 + 1e-9)).all()) for pair in pairs for way in pair)
        above = sum(bool((way.least >= way.limit / 2).all()) for pair in pairs for way in pair)
        lower = sum(bn.loss[-1] < avg.loss[-1] for avg, bn in pairs)
        both = len(METHODS) * self.draws
        return (
            f"FedBN's own network with {self.width} hidden units, full-batch gradient descent, {CLIENTS} clients with "
            f"{SAMPLES} samples each. Assumption: the inputs of every client have mean 0; real images do not. Left: "
            "measured loss and the theorem's bound, of one random federation. Right: the eigenvalue that sets the "
            f"speed, and the μ/2 that the theorem asks for; μ is {slow.limit:.3f} with FedAvg and {fast.limit:.3f} "
            f"with FedBN. In {self.draws} federations, the loss stayed below its bound in {below} of {both} descents, "
            f"and the eigenvalue above μ/2 in {above}. By the theory, FedBN's bound falls at least as fast; its loss "
            f"was lower after {self.steps} steps in {lower} of {self.draws} federations. Both methods normalise by "
            "each client's own covariance here: this says nothing of deeper networks, of averaged statistics, or of "
            "accuracy on new images."
        )

    def draw(self, results: Results) -> str:
        pair = self._pair(0)
        drawn = {
            LOSS: ("bound", LINES[1], [(way.loss / way.loss[0], way.bound / way.bound[0]) for way in pair]),
            EIGENVALUE: ("μ/2", LINES[3], [(way.least, np.full(len(way.least), way.limit / 2)) for way in pair]),
        }

        def panel(axes: Any, title: str) -> None:
            name, dashes, curves = drawn[title]
            for k, (method, (measured, bound)) in enumerate(zip(METHODS, curves, strict=True)):
                look = {"color": COLOURS[k], "linewidth": 1.6}
                axes.plot(measured, label=f"{method}, measured", linestyle=LINES[0], **look)
                axes.plot(bound, label=f"{method}, {name}", linestyle=dashes, **look)
            if title == LOSS:
                logarithmic(axes.yaxis)
            else:
                axes.set_ylim(0, None)
            axes.set_xlabel("Step t")

        labels = [f"{method}, {line}" for line in ("measured", "bound", "μ/2") for method in METHODS]
        return self.panels(results, {title: title for title in drawn}, panel, labels, size=(3.9, 3.0))

    def _pair(self, n: int) -> tuple[Descent, Descent]:
        """Return the gradient descents of FedAvg and of FedBN for the n-th random federation."""
        return descents(n, self.width, self.steps)


class Problem(NamedTuple):
    """A random federation: the samples of all clients, and an untrained two-layer network.

    Attributes
    ----------
    inputs : inputs (n, FEATURES) of all clients' samples, each divided by its client's standard deviation
    client : index of each sample's client (n,)
    targets : targets (n,)
    weights : initial weights v of the hidden layer (width, FEATURES)
    signs : weights c of the output layer (width,), -1 or 1, which are not trained
    """

    inputs: np.ndarray
    client: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    signs: np.ndarray


class Descent(NamedTuple):
    """The course of gradient descent with one method, FedAvg or FedBN.

    Attributes
    ----------
    limit : mu, the smallest eigenvalue of the Gram matrix of an infinitely wide network
    rate : step size eta
    loss : squared error |f(t) - y|^2 over all samples after t = 0, ..., steps steps, (steps + 1,)
    least : smallest eigenvalue of the evolution matrix Lambda(t) after t steps, (steps + 1,)
    """

    limit: float
    rate: float
    loss: np.ndarray
    least: np.ndarray

    @property
    def bound(self) -> np.ndarray:
        """The bound that theorem 4.4 gives for `loss`: (1 - eta mu / 2)^t times the loss at the start, (steps + 1,)."""
        return self.loss[0] * (1 - self.rate * self.limit / 2) ** np.arange(len(self.loss))


@functools.lru_cache(maxsize=64)
def descents(n: int, width: int, steps: int) -> tuple[Descent, Descent]:
    """Return the gradient descents of FedAvg and of FedBN for the n-th random federation, with a common step size.

    The step size is 1 / |Lambda(0)|, for the method whose evolution matrix Lambda(0) has the larger spectral norm.
    `width` is the number of hidden units.
    """
    problem = federation(n, width)
    rate = 1 / max(np.linalg.eigvalsh(evolution(problem, *start(problem, local)))[-1] for local in (False, True))
    averaged, local = (descend(problem, local, float(rate), steps) for local in (False, True))
    return averaged, local


def federation(n: int, width: int) -> Problem:
    """Return the n-th random federation, for a network with `width` hidden units.

    Inputs, targets and hidden weights are normal; each client has its own scale of inputs; output weights are random
    signs.
    """
    rng = stream("convergence rates", n)
    client = np.repeat(np.arange(CLIENTS), SAMPLES)
    scales = rng.uniform(0.5, 2.0, CLIENTS)[client][:, None]
    inputs = scales * rng.standard_normal((len(client), FEATURES))
    targets = rng.standard_normal(len(client))
    weights = ALPHA * rng.standard_normal((width, FEATURES))
    return Problem(inputs / scales, client, targets, weights, rng.choice([-1.0, 1.0], width))


def limit(problem: Problem, local: bool) -> float:
    """Return the smallest eigenvalue of the Gram matrix G of an infinitely wide network.

    `local` chooses FedBN's G, with entries between samples of one client only, instead of FedAvg's. The direction of a
    normal v is independent of its length, and E |v|^2 = d alpha^2. So E relu(v.x_p / |v|) relu(v.x_q / |v|) is the Gram
    matrix of unnormalised v ~ N(0, I), divided by the number of features d.
    """
    whole = gram(problem.inputs) / problem.inputs.shape[1]
    return float(np.linalg.eigvalsh(within_clients(whole, problem.client) if local else whole)[0])


def start(problem: Problem, local: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the initial hidden weights v (width, features) and scales gamma = |v| / alpha of batch norm.

    Gamma is (width, clients) for FedBN (`local`), and (width, 1) for FedAvg.
    """
    gamma = np.linalg.norm(problem.weights, axis=1, keepdims=True) / ALPHA
    return problem.weights.copy(), np.repeat(gamma, len(np.unique(problem.client)) if local else 1, axis=1)


def output(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the network's outputs f (n,), normalised inputs z = v.x / |v| and each sample's gamma, both (width, n).

    `gamma` is (width, clients) with a scale for each client (FedBN), or (width, 1) with one for all (FedAvg).
    """
    z = v @ problem.inputs.T / np.linalg.norm(v, axis=1, keepdims=True)
    scale = gamma[:, problem.client] if gamma.shape[1] > 1 else np.broadcast_to(gamma, z.shape)
    return problem.signs @ np.maximum(scale * z, 0) / np.sqrt(len(v)), z, scale


def evolution(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Return the evolution matrix Lambda = V / alpha^2 + G (n, n) of FedBN's theory.

    Its entries are the inner products of the gradients of f(x_p) and f(x_q): V / alpha^2 with respect to v, and G with
    respect to gamma.
    """
    _, z, scale = output(problem, v, gamma)
    active = scale * z > 0
    by_gamma = np.where(active, z, 0)
    by_v = np.where(active, scale, 0) / np.linalg.norm(v, axis=1, keepdims=True)
    # The gradient of z by v is (x - z v / |v|) / |v|, which stands at right angles to v.
    inner = (by_v.T @ by_v) * (problem.inputs @ problem.inputs.T) - (by_v * z).T @ (by_v * z)
    g = by_gamma.T @ by_gamma
    return (inner + (within_clients(g, problem.client) if gamma.shape[1] > 1 else g)) / len(v)


def gradients(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the gradients of |f - y|^2 / 2 with respect to v and to gamma, and the squared error |f - y|^2.

    The gradients have the shapes of `v` and `gamma`.
    """
    f, z, scale = output(problem, v, gamma)
    length = np.linalg.norm(v, axis=1, keepdims=True)
    error = f - problem.targets
    upstream = np.where(scale * z > 0, problem.signs[:, None] / np.sqrt(len(v)), 0) * error
    by_sample = upstream * z
    if gamma.shape[1] > 1:
        by_gamma = by_sample @ np.eye(gamma.shape[1])[problem.client]
    else:
        by_gamma = by_sample.sum(axis=1, keepdims=True)
    inner = upstream * scale
    by_v = (inner @ problem.inputs - (inner * z).sum(axis=1, keepdims=True) * v / length) / length
    return by_v, by_gamma, float(error @ error)


def descend(problem: Problem, local: bool, rate: float, steps: int) -> Descent:
    """Return the course of `steps` steps of gradient descent on v and gamma, with step size `rate`.

    If `local`, each client has its own gamma (FedBN); otherwise all share one (FedAvg).
    """
    v, gamma = start(problem, local)
    losses, least = [], []
    for _ in range(steps + 1):
        by_v, by_gamma, loss = gradients(problem, v, gamma)
        losses.append(loss)
        least.append(np.linalg.eigvalsh(evolution(problem, v, gamma))[0])
        v = v - rate * by_v
        gamma = gamma - rate * by_gamma
    return Descent(limit(problem, local), rate, np.array(losses), np.array(least))
