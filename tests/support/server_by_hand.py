"""Algorithms that change the server or the local step, from the formulas of their papers: NumPy, float64.

This continues `by_hand.py`, whose problem and forms it shares. `CASES` are settings of the library beside the function
that does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from by_hand import Federated, Moment, Site, Vector, adaptive, logistic

# ---- moments at the server


def fedavgm(beta: float, eta_g: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p, x = f.shares(chosen), f.x
        f.kept["u"] = beta * f.kept.get("u", 0) + p @ [f.work(site, lr) - x for site in chosen]
        f.x = x + eta_g * f.kept["u"]
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


# ---- what the server learns from each client


def equal(chosen: list[Site]) -> Vector:
    return np.full(len(chosen), 1 / len(chosen))


def evaluated(f: Federated, site: Site, x: Vector) -> float:
    """Return the loss over a site's data in evaluation mode, where what travels is x."""
    *norm, w, b = np.concatenate([site.own, x])
    inputs, labels = site.take()
    assert len(inputs) == len(site.x)
    h = norm[0] * (inputs - site.stats[0]) / np.sqrt(site.stats[1] + 1e-5) + norm[1] if norm else inputs
    z = w * h + b
    return float((np.log(1 + np.exp(z)) - labels * z).mean())


def received(f: Federated, site: Site) -> float:
    """Return the loss of the received model, with the running statistics that the site then has."""
    f.receive(site)
    return evaluated(f, site, f.x)


def qffl(q: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        losses = np.array([received(f, site) + 1e-10 for site in chosen])[:, None]
        G = (f.x - np.array([f.work(site, lr) for site in chosen])) / lr
        h = q * losses ** (q - 1) * (G**2).sum(1, keepdims=True) + losses**q / lr
        f.x = f.x - (losses**q * G).sum(0) / h.sum()
        return equal(chosen)

    return one_round


def weights_of(f: Federated, chosen: list[Site]) -> Vector:
    """Return q of the sites that take part, divided by its sum. It begins at 1/N."""
    q = np.array([site.kept.setdefault("q", 1 / len(f.sites)) for site in chosen])
    return q / q.sum()


def simplex(point: Vector) -> Vector:
    """Return the closest point of the simplex: max(point - t, 0), where bisection finds the t with sum 1."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        t = (low + high) / 2
        low, high = (t, high) if np.maximum(point - t, 0).sum() > 1 else (low, t)
    return np.maximum(point - low, 0)


def reweighted(measure: str, change: Callable[[Vector, Vector], Vector]) -> Any:
    """Return AFL or GroupDRO: `change` moves all weights q, given q and the losses, 0 where a site does not take part.

    The losses are those of the received model, or those of the local steps.
    """

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p = weights_of(f, chosen)
        before = {id(site): received(f, site) for site in chosen if measure == "received"}
        f.x = p @ [f.work(site, lr) for site in chosen]
        losses = {id(s): before[id(s)] if measure == "received" else s.losses[-1] for s in chosen}
        sites = [*f.sites.values()]
        q = np.array([site.kept.get("q", 1 / len(sites)) for site in sites])
        for site, new in zip(sites, change(q, np.array([losses.get(id(s), 0.0) for s in sites])), strict=True):
            site.kept["q"] = new
        return p

    return one_round


def dro(eta: float) -> Any:
    def change(q: Vector, losses: Vector) -> Vector:
        return q * np.exp(eta * losses) / (q * np.exp(eta * losses)).sum()

    return reweighted("steps", change)


def afl(eta: float) -> Any:
    return reweighted("received", lambda q, losses: simplex(q + eta * losses))


def adjusted(a: Vector, gap: Vector, taking_part: Any, step: float) -> Vector:
    """Return the weights after a generalisation adjustment."""
    a = a.copy()
    if gap.any():
        a[taking_part] = a[taking_part] + step / len(a) * gap / np.abs(gap).max()
        a = np.clip(a, 0, 1) / np.clip(a, 0, 1).sum()
    return a


def feddg_ga(step: float, rounds: int) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        start = np.array([received(f, site) for site in chosen])
        gap = np.array([m - site.kept.get("m", m) for m, site in zip(start, chosen, strict=True)])
        ends = [f.work(site, lr) for site in chosen]
        for site, end in zip(chosen, ends, strict=True):
            site.kept["m"] = evaluated(f, site, end)
        sites = [*f.sites.values()]
        a = np.array([site.kept.get("q", 1 / len(sites)) for site in sites])
        rate = step * (1 - (number - 2) / rounds)
        for site, new in zip(
            sites,
            adjusted(a, gap, [k for k, s in enumerate(sites) if any(s is site for site in chosen)], rate),
            strict=True,
        ):
            site.kept["q"] = new
        p = weights_of(f, chosen)
        f.x = p @ ends
        return p

    return one_round


def vrex(beta: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        mean = f.kept.get("mean", 0.0)

        def objective(site: Site, theta: Vector) -> tuple[float, Vector, Vector]:
            x, y = site.take()
            loss, g = logistic(theta, x, y)
            return loss, (1 + 2 * beta * (site.kept.get("R", mean) - mean)) * g, x

        f.x = np.mean([f.work(site, lr, objective=objective) for site in chosen], axis=0)
        for site in chosen:
            site.kept["R"] = site.losses[-1]
        f.kept["mean"] = np.mean([site.losses[-1] for site in chosen])
        return equal(chosen)

    return one_round


# ---- how far the server goes, and whom it follows


def fedexp(eps: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p, x = f.shares(chosen), f.x
        changes = np.array([f.work(site, lr) - x for site in chosen])
        mean = p @ changes
        eta_g = max(1.0, p @ (changes**2).sum(1) / (2 * ((mean**2).sum() + eps)))
        f.kept.setdefault("eta_g", []).append(eta_g)
        f.x = x + eta_g * mean
        return p

    return one_round


def feddisco(a: float, b: float) -> Any:
    """Two classes: the shares (s, 1 - s) are sqrt(2) |s - 1/2| away from (1/2, 1/2)."""

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        d = np.sqrt(2) * np.abs([site.y.mean() - 0.5 for site in chosen])
        raw = np.maximum(0, f.shares(chosen) - a * d + b)
        p = raw / raw.sum()
        f.x = p @ [f.work(site, lr) for site in chosen]
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
    "qffl": ({"name": "qffl", "q": 1.7}, qffl(1.7), HEAVY),
    "afl": ({"name": "afl", "weight_lr": 0.4}, afl(0.4), {}),
    "groupdro": ({"name": "groupdro", "weight_lr": 0.9}, dro(0.9), HEAVY),
    "feddg_ga": ({"name": "feddg_ga", "step": 0.8}, feddg_ga(0.8, 3), {}),
    "fedexp": ({"name": "fedexp", "eps": 0.0}, fedexp(0.0), {}),
    "fedexp, eps": ({"name": "fedexp", "eps": 0.02}, fedexp(0.02), HEAVY),
    "feddisco": ({"name": "feddisco", "a": 0.8, "b": 0.15}, feddisco(0.8, 0.15), HEAVY),
    "vrex": ({"name": "vrex", "beta": 0.8}, vrex(0.8), {}),
}
