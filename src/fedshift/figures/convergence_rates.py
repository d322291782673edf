"""The figure compares gradient descent on FedBN's two-layer network with its theorem 4.4 and corollary 4.5."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, LINES, logarithmic
from ._descent import CLIENTS, SAMPLES, Descent, descents

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
    steps: int = Field(300, ge=1, description="steps of gradient descent")

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
        """Return the descents of FedAvg and FedBN for the n-th federation."""
        return descents(n, self.width, self.steps)
