"""Algorithms that change the server or the local step, from the formulas of their papers: NumPy, float64.

This continues `by_hand.py`, whose problem and forms it shares. `CASES` are settings of the library beside the function
that does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from by_hand import Federated, Site, Vector, logistic

Moment = Callable[[Vector, Vector], Vector]
"""The new second moment, from the old one and the change."""

# ---- moments at the server


def fedavgm(beta: float, eta_g: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p, x = f.shares(chosen), f.x
        f.kept["u"] = beta * f.kept.get("u", 0) + p @ [f.work(site, lr) - x for site in chosen]
        f.x = x + eta_g * f.kept["u"]
        return p

    return one_round


def adaptive(eta_g: float, b1: float, tau: float, v0: float, moment: Moment) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p, x = f.shares(chosen), f.x
        change = p @ [f.work(site, lr) - x for site in chosen]
        f.kept["m"] = b1 * f.kept.get("m", 0) + (1 - b1) * change
        f.kept["v"] = moment(f.kept.get("v", np.full_like(x, v0)), change)
        f.x = x + eta_g * f.kept["m"] / (np.sqrt(f.kept["v"]) + tau)
        return p

    return one_round


def yogi(b2: float) -> Moment:
    return lambda v, change: v - (1 - b2) * change**2 * np.sign(v - change**2)


def adagrad(v: Vector, change: Vector) -> Vector:
    return v + change**2


# ---- flat minima


def fedsam(rho: float, eta: float | None = None) -> Any:
    """Return the step of FedSAM, or with `eta` that of FedASAM. w and gamma are weights, b and beta are not."""

    def sharp(site: Site, theta: Vector) -> tuple[float, Vector, Vector]:
        x, y = site.take()
        loss, g = logistic(theta, x, y)
        scale = np.ones_like(theta)
        if eta is not None:
            scale[::2] = np.abs(theta[::2]) + eta
        e = rho * scale**2 * g / np.sqrt(((scale * g) ** 2).sum())
        return loss, logistic(theta + e, x, y)[1], x

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p = f.shares(chosen)
        f.x = p @ [f.work(site, lr, objective=sharp) for site in chosen]
        return p

    return one_round


SERVER = {"server_lr": 0.05, "beta1": 0.8, "tau": 0.01}
HEAVY = {"momentum": 0.6, "weight_decay": 0.05}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fedavgm": ({"name": "fedavgm", "beta": 0.6, "server_lr": 0.7}, fedavgm(0.6, 0.7), HEAVY),
    "fedyogi": ({"name": "fedyogi", **SERVER, "beta2": 0.7}, adaptive(0.05, 0.8, 0.01, 1e-4, yogi(0.7)), {}),
    "fedadagrad": ({"name": "fedadagrad", **SERVER, "v0": 0.3}, adaptive(0.05, 0.8, 0.01, 0.3, adagrad), {}),
    "fedsam": ({"name": "fedsam", "rho": 0.3}, fedsam(0.3), HEAVY),
    "fedsam, adaptive": ({"name": "fedsam", "rho": 0.7, "adaptive": True}, fedsam(0.7, 0.2), {}),
}
