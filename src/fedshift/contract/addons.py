"""The contract of add-ons: with several algorithms, and of the network that they extend."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ..addons import Addon, extended
from ..core.registry import discover
from ..core.rng import keyed
from ..engine.federation import Federation
from ..engine.specification import Specification
from .algorithms import MASKS, SETTINGS, alike, federation, learns, outlining
from .case import Case, made, numeric, others, require, variants
from .fixtures import CLASSES, clients, differing, network
from .hooks import watched

Kind = type[Addon]
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "moon", "perfedavg")
"""Algorithms that differ in what a local step is."""

COLOURED = (3, 16, 16)
"""Shape of images in which every add-on can act: in colour, and large enough for tiles and frequencies."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what add-ons must satisfy."""
    for algorithm in ALGORITHMS:
        for bn in ("aggregated", "local"):
            title = f"it learns, resumes, and the order of clients makes no difference: {algorithm}, bn {bn}"
            yield Case(title, partial(trains, cls, algorithm, bn))
    if "segmentation" in cls.tasks:
        yield Case(MASKS, partial(learns_masks, cls))
    yield Case("its network answers any batch", partial(answers, cls))
    yield Case("it differs from training without it", partial(differs, cls))
    for field in numeric(cls):
        yield Case(f"its setting {field} changes results", partial(setting_matters, cls, field), advice=True)


def trains(cls: Kind, algorithm: str, bn: str) -> None:
    """Check the training of an algorithm with the add-on; see `algorithms.learns`."""
    method: Any = discover("algorithm")[algorithm]
    with watched(cls):
        learns(lambda names: federation(method, bn, names=names, addon=made(cls)))


def learns_masks(cls: Kind) -> None:
    """Check the training of FedAvg on masks with the add-on; see `algorithms.learns`."""
    method: Any = discover("algorithm")["fedavg"]
    with watched(cls):
        learns(lambda names: outlining(method, names, addon=made(cls)))


def answers(cls: Kind) -> None:
    """Check that heads start from the seed alone, and add nothing to the logits' shape."""
    addon = made(cls)
    model, again = (extended(addon, network(), seed=1).eval() for _ in range(2))
    changed = differing(model.state_dict(), again.state_dict())
    require(not changed, f"its layers must start from the seed alone: {changed}")
    unknown = set(addon.stays(model)) - {name for name, _ in model.named_parameters()}
    require(not unknown, f"`stays` names tensors that are not parameters: {sorted(unknown)}")
    require(model(clients()["a"][0][:2]).shape == (2, CLASSES), "it changes the shape of the logits")


def _fedavg(addon: Addon | None) -> Federation:
    data = clients(dtype=torch.float32, shape=COLOURED)
    # Two poolings, since some add-ons act where maps become smaller.
    with keyed(0, "contract"):
        layers = [nn.Sequential(nn.Conv2d(n, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()) for n in (3, 2)]
    model = nn.Sequential(*layers, network(dtype=torch.float32))
    return Federation(Specification.open(model, addon=addon, training=SETTINGS), data)


def differs(cls: Kind) -> None:
    """Check that training with the add-on gives other weights than training without it."""
    with_it, without = (_fedavg(addon).run().global_state() for addon in (made(cls), None))
    changed = differing({name: with_it[name] for name in without}, without)
    require(bool(changed), "it trains to the bits of FedAvg without it")


def setting_matters(cls: Kind, field: str) -> None:
    """Check that another value of a numeric setting changes a bit, if one can be set alone."""
    pairs = [(plugin, changed) for plugin in variants(made(cls)) for changed in others(plugin, field)]
    same = all(alike(_fedavg(plugin), _fedavg(changed)) for plugin, changed in pairs)
    require(not pairs or not same, f"no bit changes with {field}: nothing reads it")
