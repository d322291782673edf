"""FedBN's figures 1 and 2: why batch-norm statistics stay local, shown with one weight and one scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.rng import stream
from ._base import Figure, Results
from ._canvas import COLOURS, INK, LINES, WIDTH

STDS = (0.5, 1.5)
"""Standard deviations of the input x at the two clients."""
W_TRUE = 3.0
NOISE = 0.1
SAMPLES = 1000
WEIGHTS = (0.001, 12.0)
"""Range of the weight w in FedBN's figures."""
SCALES = (0.001, 4.0)
"""Range of the scale gamma in FedBN's figures."""
LEVELS = (0.75, 0.5, 0.25, 0.1)
SPOTS = {"w averaged": "*", "both averaged": "X"}
"""Marker of each solution in the lower panels."""


class Toy(Figure):
    """Squared error of cos(w x / gamma) at two clients that see the same feature at different scales.

    A label is cos(w_true z) + noise, where z is a standard normal feature; client i sees x = s_i z, so that x ~ N(0,
    s_i^2). The paper writes y = cos(w_true x) and gives no constants. If that x were the client's own input, both
    clients would have the same best w without normalisation, and the paper's claims would not hold. Here it is the
    normalised input z (our decision). Division by gamma, the client's standard deviation, stands for batch
    normalisation.
    """

    title = "Toy example of local batch normalisation"

    def caption(self, results: Results) -> str:
        clients = [client(k) for k in range(len(STDS))]
        pairs = zip(clients, averaged(clients), strict=True)
        local, both = zip(*([error(w, g, *data)[0] for w, g in spots] for data, spots in pairs), strict=True)
        return (
            f"Model cos(w x / γ); {SAMPLES} samples a client with x ~ N(0, s²), s = {STDS[0]} and {STDS[1]}, labels "
            f"cos({W_TRUE:g} x / s) + noise of standard deviation {NOISE} (our constants). Above: the error over w; "
            "the clients have the same best w only if each divides by its own standard deviation. Below: over w and γ, "
            f"shaded where the error is below {', '.join(f'{v:g}' for v in LEVELS)}. With w averaged and γ kept "
            f"local, the error is {local[0]:.2f} at client 1 and {local[1]:.2f} at client 2; with both averaged, it is "
            f"{both[0]:.2f} and {both[1]:.2f}."
        )

    def draw(self, results: Results) -> str:
        clients = [client(k) for k in range(len(STDS))]
        w = np.linspace(*WEIGHTS, 400)
        gamma = np.linspace(*SCALES, 161)

        def paint(figure: Any) -> None:
            places = figure.subplots(2, 2)
            above = {"x as it is": [1.0, 1.0], "x divided by the local deviation": [x.std() for x, _ in clients]}
            for axes, (title, scales) in zip(places[0], above.items(), strict=True):
                for k, (x, y) in enumerate(clients):
                    curve = error(w, scales[k], x, y)
                    axes.plot(w, curve, color=COLOURS[k], linestyle=LINES[k], linewidth=1.6, label=f"client {k + 1}")
                    axes.plot(w[curve.argmin()], curve.min(), "o", color=COLOURS[k], markersize=5)
                axes.set(title=title, xlabel="w", ylim=(0, None))
            places[0, 0].set_ylabel("Squared error")
            for k, (axes, spots) in enumerate(zip(places[1], averaged(clients), strict=True)):
                surface = np.array([error(w[::3], g, *clients[k]) for g in gamma]).T
                shades = [(COLOURS[k], alpha) for alpha in (0.75, 0.55, 0.35, 0.15)]
                axes.contourf(gamma, w[::3], surface, levels=[0.0, *LEVELS[::-1]], colors=shades)
                for (label, marker), spot in zip(SPOTS.items(), spots, strict=True):
                    axes.plot(*spot[::-1], marker, color=INK, markersize=9, linestyle="none", label=label)
                axes.set(title=f"Client {k + 1}", xlabel="γ")
            places[1, 0].set_ylabel("w")

        return self.picture(results, (WIDTH, 5.8), paint, ["client 1", "client 2", *SPOTS])


def client(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and labels, both (SAMPLES,), of client `k`. They are the same on each call."""
    rng = stream("toy", k)
    z = rng.standard_normal(SAMPLES)
    return STDS[k] * z, np.cos(W_TRUE * z) + NOISE * rng.standard_normal(SAMPLES)


def error(w: Any, gamma: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the mean squared error of cos(w x / gamma) over samples x with labels y, for each weight in `w` (n,)."""
    return ((np.cos(np.outer(w, x / gamma)) - y) ** 2).mean(axis=1)


def averaged(clients: list[tuple[np.ndarray, np.ndarray]]) -> list[list[tuple[float, float]]]:
    """Return two solutions (w, gamma) for each client: with w averaged and its own gamma, and with both averaged.

    `clients` holds each client's inputs and labels. Before averaging, gamma is the standard deviation of the client's
    inputs, and w has the lowest error with this gamma.
    """
    grid = np.linspace(*WEIGHTS, 2401)
    gammas = [float(x.std()) for x, _ in clients]
    best = [float(grid[error(grid, g, *data).argmin()]) for g, data in zip(gammas, clients, strict=True)]
    w = float(np.mean(best))
    return [[(w, g), (w, float(np.mean(gammas)))] for g in gammas]
