"""FedBN's corollary 4.6 on random clients: local statistics do not make the smallest eigenvalue smaller."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ._base import Figure, Results
from ._canvas import INK, WIDTH, logarithmic, marks

CLIENTS = (2, 3, 4, 5)
SAMPLES = 4
FEATURES = 10
ROUNDING = 1e-12
"""Rounding error that `holds` tolerates, relative to the eigenvalue."""


class NTK(Figure):
    """The smallest eigenvalues of the Gram matrices of FedAvg and FedBN, for random clients.

    The Gram matrix is G_pq = E_v[relu(v.x_p) relu(v.x_q)], v ~ N(0, I), over samples x_p of all clients. FedBN's matrix
    keeps only the blocks of samples of one client. The smallest eigenvalue bounds the rate at which gradient descent
    fits the training samples. That FedBN's is not smaller is algebra, and holds for inputs of any mean.
    """

    title = "Smallest eigenvalue of FedAvg and FedBN"
    draws: int = Field(50, ge=1, description="number of random sets of clients")

    def caption(self, results: Results) -> str:
        count = sum(holds(*eigenvalues(*sample(n))) for n in range(self.draws))
        share = "in all" if count == self.draws else f"in {count}"
        return (
            f"{self.draws} random draws of {CLIENTS[0]} to {CLIENTS[-1]} clients with {SAMPLES} samples each, normal "
            f"with mean 0, as the theory assumes, and each client's own scale, in {FEATURES} dimensions. Keeping only "
            "the blocks of one client, as FedBN's analysis does, left the smallest eigenvalue as large or larger "
            f"{share} of {self.draws} draws. By the corollary the bound of FedBN's loss then falls at least as fast."
        )

    def draw(self, results: Results) -> str:
        pairs = [eigenvalues(*sample(n)) for n in range(self.draws)]
        looks = marks((f"{count} clients" for count in CLIENTS), 4.5)

        def paint(figure: Any) -> None:
            axes = figure.subplots()
            least = [value for pair in pairs for value in pair]
            ends = [0.8 * min(least), 1.25 * max(least)]
            axes.plot(ends, ends, color=INK, linewidth=0.8, alpha=0.5)
            for k, (label, look) in enumerate(looks.items()):
                group = np.array(pairs[k :: len(CLIENTS)]).reshape(-1, 2)
                axes.plot(group[:, 0], group[:, 1], label=label, **look)
            logarithmic(axes.xaxis)
            logarithmic(axes.yaxis)
            axes.set(xlabel="FedAvg: whole Gram matrix", ylabel="FedBN: blocks of one client")

        return self.picture(results, (WIDTH, 3.6), paint, looks)


def gram(x: np.ndarray) -> np.ndarray:
    """Return the Gram matrix (n, n) of samples x (n, features): E_v[relu(v.x_p) relu(v.x_q)] with v ~ N(0, I).

    It is |x_p| |x_q| (sin t + (pi - t) cos t) / (2 pi), where t is the angle between x_p and x_q.
    """
    length = np.linalg.norm(x, axis=1)
    outer = np.outer(length, length)
    # Rounding may give a cosine beyond 1, whose angle is NaN; that of a sample with itself is exactly 1.
    cos = np.clip(x @ x.T / outer, -1.0, 1.0)
    np.fill_diagonal(cos, 1.0)
    t = np.arccos(cos)
    return outer * (np.sin(t) + (np.pi - t) * cos) / (2 * np.pi)


def within_clients(matrix: np.ndarray, client: np.ndarray) -> np.ndarray:
    """Return `matrix` (n, n) with zeros where two samples have different clients; `client` (n,) holds their indices."""
    return np.where(client[:, None] == client, matrix, 0.0)


def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the n-th random set of clients: the samples (n, FEATURES), and the index of each sample's client (n,)."""
    rng = stream("ntk", n)
    count = CLIENTS[n % len(CLIENTS)]
    parts = [rng.uniform(0.5, 2.0) * rng.standard_normal((SAMPLES, FEATURES)) for _ in range(count)]
    return np.concatenate(parts), np.repeat(np.arange(count), SAMPLES)


def eigenvalues(x: np.ndarray, client: np.ndarray) -> tuple[float, float]:
    """Return the smallest eigenvalues of the Gram matrix of all samples, and of its blocks within clients alone.

    `x` are the samples (n, features), and `client` (n,) is the index of each sample's client.
    """
    whole = gram(x)
    blocks = within_clients(whole, client)
    return float(np.linalg.eigvalsh(whole)[0]), float(np.linalg.eigvalsh(blocks)[0])


def holds(whole: float, blocks: float) -> bool:
    """Return whether corollary 4.6 holds up to rounding: FedBN's eigenvalue `blocks` is at least FedAvg's, `whole`."""
    return blocks >= whole - ROUNDING * abs(whole)
