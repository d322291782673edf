"""Federated algorithms once more, from the formulas of their papers: NumPy, float64, gradients written out.

Nothing here comes from the library. The problem has one input and two classes. Its parameters are `[w, b]`, with logits
[0, w x + b]; or `[gamma, beta, w, b]`, where batch norm comes first. Each algorithm is a function that does one round:
it takes the federation, the sites that take part, the clients' rate and the number of the round, moves the server, and
returns the weights of the sites, with which running statistics are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Moment = Callable[[Vector, Vector], Vector]
"""The new second moment, from the old one and the change."""
Objective = Callable[["Site", Vector], tuple[float, Vector, Vector]]
"""Loss and gradient of a step at a site, and the inputs that its running statistics follow."""


@dataclass
class Site:
    """A client: its data, the batches it takes, and what it keeps. `share` is its part of all samples, or 1/N."""

    x: Vector
    y: Vector
    share: float
    steps: int
    batches: Iterator[Any]
    own: Vector
    stats: Vector
    kept: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)

    def take(self) -> tuple[Vector, Vector]:
        index = next(self.batches)
        return self.x[index], self.y[index]


@dataclass
class Federated:
    """A server and its sites. `own` of a site comes before the server's `x` in its vector of parameters."""

    x: Vector
    stats: Vector
    sites: dict[str, Site]
    statistics_travel: bool
    momentum: float = 0.0
    weight_decay: float = 0.0
    kept: dict[str, Any] = field(default_factory=dict)

    def play(self, algorithm: Any, rounds: list[list[str]], rate: Callable[[int], float]) -> Federated:
        for number, names in enumerate(rounds, 1):
            chosen = [self.sites[name] for name in names]
            p = algorithm(self, chosen, rate(number), number)
            if self.statistics_travel:
                self.stats = p @ [site.stats for site in chosen]
        return self

    def shares(self, chosen: list[Site]) -> Vector:
        p = np.array([site.share for site in chosen])
        return p / p.sum()

    def receive(self, site: Site) -> Vector:
        """The site's parameters as a round begins."""
        if self.statistics_travel:
            site.stats = self.stats
        return np.concatenate([site.own, self.x])

    def work(
        self,
        site: Site,
        lr: float,
        pull: Callable[[Vector], Any] | None = None,
        objective: Objective | None = None,
        beside: Callable[[Vector], Any] | None = None,
    ) -> Vector:
        """The local steps. Returns what travels, and logs the loss.

        `pull` adds to the gradient of what travels, `beside` to the step but not to the momentum buffer.
        """
        theta, stays = self.receive(site), len(site.own)
        buffer, total, seen = np.zeros_like(theta), 0.0, 0
        for _ in range(site.steps):
            loss, gradient, x = (objective or batch_gradient)(site, theta)
            if pull:
                gradient[stays:] += pull(theta[stays:])
            buffer = self.momentum * buffer + gradient + self.weight_decay * theta
            theta_next = theta - lr * buffer
            if beside:
                theta_next[stays:] -= lr * beside(theta[stays:])
            theta, n = theta_next, len(x)
            site.stats = 0.9 * site.stats + 0.1 * np.array([x.mean(), ((x - x.mean()) ** 2).sum() / (n - 1)])
            total, seen = total + n * loss, seen + n
        site.losses.append(total / seen)
        site.own = theta[:stays]
        return theta[stays:]


# ---- the loss and its gradient


def normal(x: Vector) -> Vector:
    return (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)


def logistic(theta: Vector, x: Vector, y: Vector, stats: Vector | None = None) -> tuple[float, Vector]:
    """Mean cross-entropy of logits [0, w h + b], with h = x or gamma x' + beta, and its gradient.

    x' is normalised by mean and variance of the batch, or by those of `stats`.
    """
    *norm, w, b = theta
    u = normal(x) if stats is None else (x - stats[0]) / np.sqrt(stats[1] + 1e-5)
    h = norm[0] * u + norm[1] if norm else x
    z = w * h + b
    d = (1 / (1 + np.exp(-z)) - y) / len(y)
    affine = [(d * w * u).sum(), (d * w).sum()] if norm else []
    return float((np.log(1 + np.exp(z)) - y * z).mean()), np.array([*affine, (d * h).sum(), d.sum()])


def batch_gradient(site: Site, theta: Vector) -> tuple[float, Vector, Vector]:
    x, y = site.take()
    return *logistic(theta, x, y), x


def full_gradient(site: Site, theta: Vector) -> Vector:
    """Over all data of a site, batch by batch."""
    total, seen = np.zeros_like(theta), 0
    while seen < len(site.x):
        x, y = site.take()
        total, seen = total + logistic(theta, x, y)[1] * len(x) / len(site.x), seen + len(x)
    assert seen == len(site.x)
    return total


# ---- algorithms


def fedavg(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
    p = f.shares(chosen)
    f.x = p @ [f.work(site, lr) for site in chosen]
    return p


def fixbn(m: int) -> Any:
    def algorithm(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        if number <= m:
            return fedavg(f, chosen, lr, number)
        sent = []
        for site in chosen:
            stats = f.stats if f.statistics_travel else site.stats

            def objective(site: Site, theta: Vector, stats: Vector = stats) -> tuple[float, Vector, Vector]:
                x, y = site.take()
                return *logistic(theta, x, y, stats), x

            sent.append(f.work(site, lr, objective=objective))
            site.stats = stats
        p = f.shares(chosen)
        f.x = p @ sent
        return p

    return algorithm


def fedprox(mu: float, form: str = "squared", skip: bool = False) -> Any:
    """Gradient of mu/2 |y - x|^2: mu (y - x). Of mu/2 |y - x|: mu/2 (y - x) / |y - x|, and 0 at 0."""

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        def pull(y: Vector) -> Any:
            away = y - f.x
            if (skip and number == 1) or not away.any():
                return 0
            return mu * away if form == "squared" else mu / 2 * away / np.sqrt((away**2).sum())

        p = f.shares(chosen)
        f.x = p @ [f.work(site, lr, pull) for site in chosen]
        return p

    return one_round


def scaffold(option: int, eta_g: float) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        x, c = f.x, f.kept.setdefault("c", 0 * f.x)

        def client(site: Site) -> tuple[Vector, Vector]:
            ci = site.kept.setdefault("c", 0 * x)
            if option == 1:
                new = full_gradient(site, f.receive(site))[len(site.own) :]
                y = f.work(site, lr, lambda _: c - ci)
            else:
                y = f.work(site, lr, lambda _: c - ci)
                new = ci - c + (x - y) / (site.steps * lr)
            site.kept["c"] = new
            return y - x, new - ci

        p = f.shares(chosen)
        moved, changed = zip(*map(client, chosen), strict=True)
        f.x = x + eta_g * (p @ moved)
        f.kept["c"] = c + sum(site.share for site in chosen) * (p @ changed)  # the sum is |S|/N for equal shares
        return p

    return one_round


def reach(steps: int, lr: float, momentum: float, mu: float) -> float:
    """FedNova's a: how far, in units of lr, the local solver goes where the gradient of the loss is 1 everywhere."""
    moved = buffer = 0.0
    for _ in range(steps):
        buffer = momentum * buffer + 1
        moved -= lr * (buffer + mu * moved)
    return -moved / lr


def fednova(mu: float = 0.0, gmf: float = 0.0) -> Any:
    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p, x = f.shares(chosen), f.x
        a = np.array([reach(site.steps, lr, f.momentum, mu) for site in chosen])
        d = [(x - f.work(site, lr, beside=lambda y: mu * (y - x))) / ai for site, ai in zip(chosen, a, strict=True)]
        f.kept["buffer"] = gmf * f.kept.get("buffer", 0) + (p @ a) * (p @ d) / lr
        f.x = x - lr * f.kept["buffer"]
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


def fedadam(eta_g: float, b1: float, b2: float, tau: float, v0: float) -> Any:
    return adaptive(eta_g, b1, tau, v0, lambda v, change: b2 * v + (1 - b2) * change**2)


def feddc(alpha: float) -> Any:
    """w_i = N n_i / sum n; means are plain, that of h over all sites, also those that do not take part."""

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        x, s, N = f.x, f.kept.setdefault("s", 0 * f.x), len(f.sites)

        def client(site: Site) -> tuple[Vector, Vector]:
            w, h, si = N * site.share, site.kept.get("h", 0 * x), site.kept.get("s", 0 * x)
            theta = f.work(site, lr, lambda y: alpha / w * (y - (x - h)) + s / w - si)
            site.kept["h"] = h + theta - x
            site.kept["s"] = si - s / w - (theta - x) / (site.steps * lr)
            return theta, w * (site.kept["s"] - si)

        thetas, changes = zip(*map(client, chosen), strict=True)
        f.x = sum(thetas) / len(chosen) + sum(site.kept.get("h", 0 * x) for site in f.sites.values()) / N
        f.kept["s"] = s + sum(changes) / N
        return np.full(len(chosen), 1 / len(chosen))

    return one_round


def perfedavg(alpha: float, delta: float | None = None) -> Any:
    """Return the step of Per-FedAvg, Hessian-free if there is a `delta`. The batch D' is taken before D and D''."""

    def meta(site: Site, w: Vector) -> tuple[float, Vector, Vector]:
        outer = site.take()
        inner = w - alpha * logistic(w, *site.take())[1]
        loss, v = logistic(inner, *outer)
        if delta:
            last = site.take()
            ahead, behind = logistic(w + delta * v, *last)[1], logistic(w - delta * v, *last)[1]
            v = v - alpha * (ahead - behind) / (2 * delta)
        return loss, v, outer[0]

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        p = f.shares(chosen)
        f.x = p @ [f.work(site, lr, objective=meta) for site in chosen]
        return p

    return one_round


# ---- MOON: parameters [gamma, beta]? A (2), a (2), B (2, 2), b (2); features z = A h + a, logits B z + b


def features(theta: Vector, u: Vector) -> Vector:
    """(n, 2), of inputs after the normalisation, but before gamma and beta."""
    h = theta[-12] * u + theta[-11] if len(theta) == 12 else u
    return h[:, None] * theta[-10:-8] + theta[-8:-6]


def evaluated(theta: Vector, stats: Vector, x: Vector) -> Vector:
    """Features with running statistics."""
    return features(theta, (x - stats[0]) / np.sqrt(stats[1] + 1e-5) if len(theta) == 12 else x)


def cosine(z: Vector, g: Vector) -> tuple[Vector, Vector]:
    """Row by row, and its gradient with respect to z."""
    size_z, size_g = (np.sqrt((v**2).sum(1, keepdims=True)) for v in (z, g))
    s = (z * g).sum(1, keepdims=True) / (size_z * size_g)
    return s[:, 0], (g / size_g - s * z / size_z) / size_z


def moon(mu: float, T: float) -> Any:
    """The term is -log(e^(sg/T) / (e^(sg/T) + e^(sp/T))) = log(1 + e^((sp - sg)/T)); the logged loss is without it."""

    def one_round(f: Federated, chosen: list[Site], lr: float, number: int) -> Vector:
        def client(site: Site) -> Vector:
            start = f.receive(site), site.stats
            previous: tuple[Vector, Vector] = site.kept.get("previous", start)

            def objective(site: Site, theta: Vector) -> tuple[float, Vector, Vector]:
                x, y = site.take()
                n, u = len(y), normal(x) if len(theta) == 12 else x
                A, B, b = theta[-10:-8], theta[-6:-2].reshape(2, 2), theta[-2:]
                z = features(theta, u)
                h = theta[0] * u + theta[1] if len(theta) == 12 else u
                e = np.exp(z @ B.T + b)
                prob = e / e.sum(1, keepdims=True)
                d_logits = (prob - np.eye(2)[y.astype(int)]) / n
                (sg, d_sg), (sp, d_sp) = (cosine(z, evaluated(*of, x)) for of in (start, previous))
                pulled = 1 / (1 + np.exp((sg - sp) / T))
                d_z = d_logits @ B + mu * pulled[:, None] / T * (d_sp - d_sg) / n
                d_h = d_z @ A
                affine = [(d_h * u).sum(), d_h.sum()] if len(theta) == 12 else []
                rest = [h @ d_z, d_z.sum(0), (d_logits.T @ z).ravel(), d_logits.sum(0)]
                loss = -np.log(prob[np.arange(n), y.astype(int)]).mean()
                return float(loss), np.concatenate([affine, *rest]), x

            y = f.work(site, lr, objective=objective)
            site.kept["previous"] = np.concatenate([site.own, y]), site.stats
            return y

        p = f.shares(chosen)
        f.x = p @ [client(site) for site in chosen]
        return p

    return one_round
