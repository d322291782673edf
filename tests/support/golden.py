"""The golden loss curve: FedAvg and FedBN on a perceptron in plain NumPy, float64, with the gradients written out.

Nothing here comes from the library: data, initial weights, back-propagation and averaging are spelled out once more. A
client's whole data are one batch, so that no order of batches plays a part.

`python tests/support/golden.py` writes `src/fedshift/jobs/golden.json`. That file also holds data and initial weights,
so that the library replays the curves without this one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Params = dict[str, Array]

FILE = Path(__file__).parents[2] / "src" / "fedshift" / "jobs" / "golden.json"
HOW = "python tests/support/golden.py: NumPy float64, gradients written out by hand, nothing imported from fedshift"
SIZES = {"a": 13, "b": 22, "c": 9}
VALIDATION = 7
SHAPE, HIDDEN, CLASSES, SEED = (1, 4, 4), 6, 3, 5
TRAINING: dict[str, Any] = {
    "rounds": 6,
    "local_epochs": 4,
    "batch_size": 32,
    "lr": 0.2,
    "momentum": 0.5,
    "weight_decay": 0.01,
    "weights": "size",
    "select": "last",
}
AFFINE, STATISTICS, WEIGHTS = ("gamma", "beta"), ("mean", "var"), ("w1", "b1", "w2", "b2")
TRAVELS = {"aggregated": (*WEIGHTS, *AFFINE, *STATISTICS), "local": WEIGHTS}


def data(client: str, n: int, split: str) -> tuple[Array, Array]:
    """Images (n, 1, 4, 4) and labels; clients differ in brightness and contrast, classes in a gradient."""
    k = sorted(SIZES).index(client)
    rng = np.random.default_rng([k, ["train", "val"].index(split)])
    y = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(n, *SHAPE)) + y[:, None, None, None] * np.linspace(-1, 1, SHAPE[2])
    return (1 + 0.5 * k) * x + k, y


def start() -> Params:
    rng = np.random.default_rng(SEED)
    inputs = int(np.prod(SHAPE))
    return {
        "w1": rng.normal(size=(HIDDEN, inputs)) / inputs**0.5,
        "b1": rng.normal(size=HIDDEN),
        "gamma": rng.uniform(0.5, 1.5, HIDDEN),
        "beta": rng.normal(size=HIDDEN),
        "mean": np.zeros(HIDDEN),
        "var": np.ones(HIDDEN),
        "w2": rng.normal(size=(CLASSES, HIDDEN)) / HIDDEN**0.5,
        "b2": rng.normal(size=CLASSES),
    }


def log_softmax(logits: Array) -> Array:
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def forward_backward(p: Params, x: Array, y: Array) -> tuple[float, Params]:
    """Mean cross-entropy in training mode, its gradients, and new running statistics in `p`."""
    n = len(y)
    z = x @ p["w1"].T + p["b1"]
    mean, var = z.mean(0), z.var(0)
    std = np.sqrt(var + 1e-5)
    normal = (z - mean) / std
    a = p["gamma"] * normal + p["beta"]
    h = np.maximum(a, 0)
    logp = log_softmax(h @ p["w2"].T + p["b2"])
    p["mean"] = 0.9 * p["mean"] + 0.1 * mean
    p["var"] = 0.9 * p["var"] + 0.1 * var * n / (n - 1)
    d_logits = (np.exp(logp) - np.eye(CLASSES)[y]) / n
    d_a = (d_logits @ p["w2"]) * (a > 0)
    d_normal = d_a * p["gamma"]
    d_z = (d_normal - d_normal.mean(0) - normal * (d_normal * normal).mean(0)) / std
    return -logp[np.arange(n), y].mean(), {
        "w2": d_logits.T @ h,
        "b2": d_logits.sum(0),
        "gamma": (d_a * normal).sum(0),
        "beta": d_a.sum(0),
        "w1": d_z.T @ x,
        "b1": d_z.sum(0),
    }


def evaluate(p: Params, x: Array, y: Array) -> float:
    """Mean cross-entropy with running statistics."""
    normal = (x @ p["w1"].T + p["b1"] - p["mean"]) / np.sqrt(p["var"] + 1e-5)
    h = np.maximum(p["gamma"] * normal + p["beta"], 0)
    return float(-log_softmax(h @ p["w2"].T + p["b2"])[np.arange(len(y)), y].mean())


def local_work(p: Params, x: Array, y: Array) -> float:
    """One round at one client, in place: a step an epoch. Returns the mean loss over epochs."""
    velocity = {k: np.zeros_like(p[k]) for k in (*WEIGHTS, *AFFINE)}
    losses = []
    for _ in range(TRAINING["local_epochs"]):
        loss, gradient = forward_backward(p, x, y)
        for k, g in gradient.items():
            velocity[k] = TRAINING["momentum"] * velocity[k] + g + TRAINING["weight_decay"] * p[k]
            p[k] = p[k] - TRAINING["lr"] * velocity[k]
        losses.append(loss)
    return float(np.mean(losses))


def curves(bn: str) -> dict[str, dict[str, list[float]]]:
    """Training and validation loss of each client, round by round."""
    train, val = ({k: data(k, n, s) for k, n in sizes.items()} for s, sizes in SPLITS.items())
    clients = {k: start() for k in SIZES}
    out: dict[str, dict[str, list[float]]] = {"train": {k: [] for k in SIZES}, "val": {k: [] for k in SIZES}}
    for _ in range(TRAINING["rounds"]):
        for k, p in clients.items():
            x, y = train[k]
            out["train"][k].append(local_work(p, x.reshape(len(y), -1), y))
        for name in TRAVELS[bn]:
            mean = sum(SIZES[k] / sum(SIZES.values()) * p[name] for k, p in clients.items())
            for p in clients.values():
                p[name] = mean
        for k, p in clients.items():
            x, y = val[k]
            out["val"][k].append(evaluate(p, x.reshape(len(y), -1), y))
    return out


SPLITS = {"train": SIZES, "val": dict.fromkeys(SIZES, VALIDATION)}


def content() -> dict[str, Any]:
    """All that `golden.json` holds."""
    pairs = {s: {k: data(k, n, s) for k, n in sizes.items()} for s, sizes in SPLITS.items()}
    return {
        "how": HOW,
        "training": TRAINING,
        "seed": SEED,
        "curves": {bn: curves(bn) for bn in TRAVELS},
        "start": {name: value.tolist() for name, value in start().items()},
        "data": {s: {k: [x.tolist(), y.tolist()] for k, (x, y) in of.items()} for s, of in pairs.items()},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(content()) + "\n", encoding="utf-8")
