"""Golden loss curves: reference curves computed in plain NumPy, and the check that the engine reproduces them.

`golden.json` holds data, initial weights, settings and curves, and is written by `tests/support/golden.py`, which
imports nothing of this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..core.errors import UserError
from ..engine.federation import Federation
from ..engine.specification import Specification
from ..io.text import read_json
from ..models.mlp import MLP

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-6
"""The relative error at which a loss counts as another one."""
NAMES = {
    "w1": "1.weight",
    "b1": "1.bias",
    "gamma": "2.weight",
    "beta": "2.bias",
    "mean": "2.running_mean",
    "var": "2.running_var",
    "w2": "4.weight",
    "b2": "4.bias",
}
"""The tensors of the stored network, and what `models.mlp` calls them."""

Point = tuple[str, str, int]
"""Split ("train" or "val"), client, and round from 1."""


def stored(bn: str) -> dict[Point, float]:
    """Return the stored losses of FedAvg under a BN policy: each client's, in each round."""
    return points(read_json(FILE)["curves"][bn])


def points(curves: dict[str, dict[str, list[float]]]) -> dict[Point, float]:
    """Return nested curves (split, client, losses round by round) as one mapping."""
    return {
        (split, client, number): loss
        for split, clients in curves.items()
        for client, losses in clients.items()
        for number, loss in enumerate(losses, 1)
    }


def replayed(bn: str) -> dict[Point, float]:
    """Train on the stored data from the stored weights, in float64, and return the losses."""
    content = read_json(FILE)
    start = {name: torch.tensor(content["start"][key], dtype=torch.float64) for key, name in NAMES.items()}
    data = {split: {k: _tensors(*pair) for k, pair in of.items()} for split, of in content["data"].items()}
    images, _ = next(iter(data["train"].values()))
    hidden, classes = len(content["start"]["b1"]), len(content["start"]["b2"])
    model = MLP(hidden=hidden).build(tuple(images.shape[1:]), classes).double()
    model.load_state_dict({**model.state_dict(), **start})
    specification = Specification.open(model, bn=bn, training=content["training"], seed=content["seed"])
    federation = Federation(specification, data["train"], validation=data["val"]).run()
    return {(row["split"], row["site"], row["round"]): row["loss"] for row in federation.history}


def _tensors(images: list[Any], labels: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(images, dtype=torch.float64), torch.tensor(labels)


def require() -> None:
    """Raise UserError if a loss differs from its golden curve, or does not exist: the engine computes something else.

    Names the curve, the round and both losses.
    """
    for bn in read_json(FILE)["curves"]:
        losses = replayed(bn)
        for (split, client, number), loss in sorted(stored(bn).items(), key=lambda item: item[0][2]):
            now = losses.get((split, client, number), float("nan"))
            if not abs(now - loss) <= TOLERANCE * abs(loss):
                curve = f"golden curve of FedAvg with BN policy {bn!r}"
                kind = {"train": "training", "val": "validation"}[split]
                problem = f"the {kind} loss of client {client} in round {number} is {now:.9g}, and was {loss:.9g}"
                raise UserError(curve, problem, "this code computes something else: train the runs again")
