"""The contract of add-ons: with several algorithms, and of the network that they extend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..addons import Addon, extended
from ..core.registry import discover
from .algorithms import federation, learns
from .case import Case, made, require
from .fixtures import CLASSES, clients, differing, network

Kind = type[Addon]
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "moon", "perfedavg")
"""Algorithms that differ in what a local step is."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what add-ons must satisfy."""
    for algorithm in ALGORITHMS:
        for bn in ("aggregated", "local"):
            title = f"it learns, resumes, and the order of clients makes no difference: {algorithm}, bn {bn}"
            yield Case(title, partial(trains, cls, algorithm, bn))
    yield Case("its network answers any batch", partial(answers, cls))


def trains(cls: Kind, algorithm: str, bn: str) -> None:
    """Check the training of an algorithm with the add-on; see `algorithms.learns`."""
    method: Any = discover("algorithm")[algorithm]
    learns(lambda names: federation(method, bn, names=names, addon=made(cls)))


def answers(cls: Kind) -> None:
    """Check that heads start from the seed alone, and add nothing to the logits' shape."""
    addon = made(cls)
    model, again = (extended(addon, network(), seed=1).eval() for _ in range(2))
    changed = differing(model.state_dict(), again.state_dict())
    require(not changed, f"its layers must start from the seed alone: {changed}")
    unknown = set(addon.stays(model)) - {name for name, _ in model.named_parameters()}
    require(not unknown, f"`stays` names tensors that are not parameters: {sorted(unknown)}")
    require(model(clients()["a"][0][:2]).shape == (2, CLASSES), "it changes the shape of the logits")
