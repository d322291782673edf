"""Gradient descent on the two-layer network of FedBN's theorem 4.4, and the matrices that set its speed."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ..core.rng import stream
from .ntk import gram, within_clients

CLIENTS, SAMPLES, FEATURES = 3, 4, 10
ALPHA = 10.0
"""Standard deviation of the initial weights; above 1, as the theorem asks for."""


class Problem(NamedTuple):
    """The samples of all clients, and an untrained network.

    Attributes
    ----------
    inputs : inputs (n, FEATURES), each divided by its client's standard deviation
    client : the client of each sample (n,)
    targets : targets (n,)
    weights, signs : v (width, FEATURES), and c, which is not trained, (width,)
    """

    inputs: np.ndarray
    client: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    signs: np.ndarray


class Descent(NamedTuple):
    """Gradient descent of one method.

    Attributes
    ----------
    limit : smallest eigenvalue mu of the Gram matrix of an infinitely wide network
    rate : step size eta
    loss : squared distance |f(t) - y|^2 after each number of steps t, (steps + 1,)
    least : smallest eigenvalue of the evolution matrix Lambda(t), (steps + 1,)
    """

    limit: float
    rate: float
    loss: np.ndarray
    least: np.ndarray

    @property
    def bound(self) -> np.ndarray:
        """The theorem's bound of the loss: (1 - eta mu / 2)^t times the loss at the start, (steps + 1,)."""
        return self.loss[0] * (1 - self.rate * self.limit / 2) ** np.arange(len(self.loss))


@functools.lru_cache(maxsize=64)
def descents(n: int, width: int, steps: int) -> tuple[Descent, Descent]:
    """Return the descents of FedAvg and FedBN for the n-th random federation, with one step size for both.

    The step size is 1 / |Lambda(0)|, with the larger one of the two matrices.
    """
    problem = federation(n, width)
    rate = 1 / max(np.linalg.eigvalsh(evolution(problem, *start(problem, local)))[-1] for local in (False, True))
    averaged, local = (descend(problem, local, float(rate), steps) for local in (False, True))
    return averaged, local


def federation(n: int, width: int) -> Problem:
    """Return the n-th random federation: inputs from N(0, s^2 I) at a client, targets and weights normal, c = +-1."""
    rng = stream("convergence rates", n)
    client = np.repeat(np.arange(CLIENTS), SAMPLES)
    scales = rng.uniform(0.5, 2.0, CLIENTS)[client][:, None]
    inputs = scales * rng.standard_normal((len(client), FEATURES))
    targets = rng.standard_normal(len(client))
    weights = ALPHA * rng.standard_normal((width, FEATURES))
    return Problem(inputs / scales, client, targets, weights, rng.choice([-1.0, 1.0], width))


def limit(problem: Problem, local: bool) -> float:
    """Return the smallest eigenvalue of the limit of G for an infinitely wide network.

    The direction of a normal v is independent of its length, and E |v|^2 = d alpha^2. So E relu(v.x_p / |v|)
    relu(v.x_q / |v|) is the Gram matrix of unnormalised v ~ N(0, I), divided by the number of features d.
    """
    whole = gram(problem.inputs) / problem.inputs.shape[1]
    return float(np.linalg.eigvalsh(within_clients(whole, problem.client) if local else whole)[0])


def start(problem: Problem, local: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights v (width, features), and gamma (width, 1 or clients) = |v| / alpha, before training."""
    gamma = np.linalg.norm(problem.weights, axis=1, keepdims=True) / ALPHA
    return problem.weights.copy(), np.repeat(gamma, len(np.unique(problem.client)) if local else 1, axis=1)


def output(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return f (n,), the normalised inputs z = v.x / |v| and the gamma of each sample, both (width, n)."""
    z = v @ problem.inputs.T / np.linalg.norm(v, axis=1, keepdims=True)
    scale = gamma[:, problem.client] if gamma.shape[1] > 1 else np.broadcast_to(gamma, z.shape)
    return problem.signs @ np.maximum(scale * z, 0) / np.sqrt(len(v)), z, scale


def evolution(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Return Lambda = V / alpha^2 + G (n, n): the products of the gradients of f(x_p) and f(x_q), by v and by gamma."""
    _, z, scale = output(problem, v, gamma)
    active = scale * z > 0
    by_gamma = np.where(active, z, 0)
    by_v = np.where(active, scale, 0) / np.linalg.norm(v, axis=1, keepdims=True)
    # The gradient of z by v is (x - z v / |v|) / |v|, which stands at right angles to v.
    inner = (by_v.T @ by_v) * (problem.inputs @ problem.inputs.T) - (by_v * z).T @ (by_v * z)
    g = by_gamma.T @ by_gamma
    return (inner + (within_clients(g, problem.client) if gamma.shape[1] > 1 else g)) / len(v)


def gradients(problem: Problem, v: np.ndarray, gamma: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the gradients of |f - y|^2 / 2 by v and gamma, in their shapes, and |f - y|^2."""
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
    """Return gradient descent of v and gamma by `steps` steps, with a gamma for each client if `local`."""
    v, gamma = start(problem, local)
    losses, least = [], []
    for _ in range(steps + 1):
        by_v, by_gamma, loss = gradients(problem, v, gamma)
        losses.append(loss)
        least.append(np.linalg.eigvalsh(evolution(problem, v, gamma))[0])
        v = v - rate * by_v
        gamma = gamma - rate * by_gamma
    return Descent(limit(problem, local), rate, np.array(losses), np.array(least))
