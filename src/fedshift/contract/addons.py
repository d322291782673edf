"""Checks of add-ons: they train with several algorithms, and the network with an add-on's layers predicts correctly."""

from __future__ import annotations

import functools
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
from .algorithms import (
    LAST,
    MASKS,
    SETTINGS,
    WEIGHS,
    Results,
    federation,
    layers_from_the_seed,
    learns,
    learns_masks,
    loss_is_a_mean,
    moves,
    networks,
    outlining,
    setting_matters,
    watched,
    weighs_classes,
)
from .case import Case, made, numeric, require
from .fixtures import CLASSES, clients, differing, network, require_alone

Kind = type[Addon]
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "moon", "perfedavg")
"""Algorithms with different local steps, with each of which an add-on must train."""

COLOURED = (3, 16, 16)
"""Shape (channels, height, width) of images that every add-on can change: add-ons may need colours, tiles or
frequencies."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that an add-on class must pass."""
    yield Case("its own layers start from the seed alone", partial(layers_from_the_seed, cls))
    fedavg: Any = discover("algorithm")["fedavg"]
    build = partial(federation, fedavg, addon=made(cls))
    yield Case("its loss is a mean over the images of a batch", partial(loss_is_a_mean, cls, build))
    unweighted = functools.cache(lambda: networks(build("aggregated", training=LAST)))
    yield Case(WEIGHS, partial(weighs_classes, cls, partial(build, "aggregated"), unweighted))
    results = functools.cache(lambda addon, bn: networks(_fedavg(addon)))
    for algorithm in ALGORITHMS:
        for bn in ("aggregated", "local"):
            title = f"it learns, resumes, and the order of clients makes no difference: {algorithm}, bn {bn}"
            yield Case(title, partial(trains, cls, algorithm, bn))
    if "segmentation" in cls.tasks:
        yield Case(MASKS, partial(learns_masks, cls, lambda names: outlining(fedavg, names, addon=made(cls))))
    yield Case("its network gives an image the same logits in any batch", partial(answers, cls))
    yield Case("it differs from training without it", partial(differs, cls, results))
    for field in numeric(cls):
        check = partial(setting_matters, partial(made, cls), field, results, ("aggregated",))
        yield Case(f"its setting {field} changes results", check, advice=True)


def trains(cls: Kind, algorithm: str, bn: str) -> None:
    """Check a training with the add-on under an algorithm and a BN policy, given by name: see `learns` and `moves`."""
    method: Any = discover("algorithm")[algorithm]
    with watched(cls):
        trained = learns(lambda names: federation(method, bn, names=names, addon=made(cls)))
    moves(trained, extended(made(cls), network(), seed=1), bn)


def answers(cls: Kind) -> None:
    """Check that an extended network returns logits (n, classes), and the same logits for an image in any batch."""
    model = extended(made(cls), network(), seed=1).eval()
    x = clients()["a"][0]
    require(model(x[:2]).shape == (2, CLASSES), "it changes the shape of the logits")
    require_alone(model, x)


def _fedavg(addon: Addon | None) -> Federation:
    """Return an untrained federation of three clients with colour images, FedAvg and the add-on, if one is given."""
    data = clients(dtype=torch.float32, shape=COLOURED)
    # Two poolings, since some add-ons act where maps become smaller.
    with keyed(0, "contract"):
        layers = [nn.Sequential(nn.Conv2d(n, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()) for n in (3, 2)]
    model = nn.Sequential(*layers, network(dtype=torch.float32))
    return Federation(Specification.open(model, addon=addon, training=SETTINGS), data)


def differs(cls: Kind, results: Results) -> None:
    """Check that training with the add-on gives other weights than training without it. `results` trains and caches."""
    with_it, without = (results(addon, "aggregated")[0] for addon in (made(cls), None))
    changed = differing({name: with_it[name] for name in without}, without)
    require(bool(changed), "its trained networks have the bits of FedAvg without it: none of its methods has an effect")
