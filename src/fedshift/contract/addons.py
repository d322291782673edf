"""The contract of add-ons: with several algorithms, and of the network that they extend."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from ..addons import Addon, extended
from ..core.errors import UserError
from ..core.registry import discover
from ..core.rng import keyed
from ..engine.federation import Federation
from ..engine.specification import Specification
from .algorithms import (
    IGNORES_WEIGHTS,
    LAST,
    MASKS,
    SETTINGS,
    WEIGHTED,
    Networks,
    alike,
    federation,
    layers_from_the_seed,
    learns,
    loss_is_a_mean,
    moves,
    networks,
    outlining,
)
from .case import Case, made, numeric, others, reading, require, variants
from .fixtures import CLASSES, clients, differing, network, require_alone
from .hooks import watched

Kind = type[Addon]
Results = Callable[[Addon | None], Networks]
"""What FedAvg trains to with an add-on, or without one."""
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "moon", "perfedavg")
"""Algorithms that differ in what a local step is."""

COLOURED = (3, 16, 16)
"""Shape of images in which every add-on can act: in colour, and large enough for tiles and frequencies."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what add-ons must satisfy."""
    yield Case("its own layers start from the seed alone", partial(layers_from_the_seed, cls))
    build = partial(federation, discover("algorithm")["fedavg"], addon=made(cls))  # type: ignore[arg-type]
    yield Case("its loss is a mean over the images of a batch", partial(loss_is_a_mean, cls, build))
    yield Case("weights of classes change what it trains, or it refuses them", partial(weighs, cls))
    results = functools.cache(lambda addon: networks(_fedavg(addon)))
    for algorithm in ALGORITHMS:
        for bn in ("aggregated", "local"):
            title = f"it learns, resumes, and the order of clients makes no difference: {algorithm}, bn {bn}"
            yield Case(title, partial(trains, cls, algorithm, bn))
    if "segmentation" in cls.tasks:
        yield Case(MASKS, partial(learns_masks, cls))
    yield Case("its network answers any batch", partial(answers, cls))
    yield Case("it differs from training without it", partial(differs, cls, results))
    for field in numeric(cls):
        yield Case(f"its setting {field} changes results", partial(setting_matters, cls, field, results), advice=True)


def trains(cls: Kind, algorithm: str, bn: str) -> None:
    """Check the training of an algorithm with the add-on; see `algorithms.learns`."""
    method: Any = discover("algorithm")[algorithm]
    with watched(cls):
        trained = learns(lambda names: federation(method, bn, names=names, addon=made(cls)))
    moves(trained, extended(made(cls), network(), seed=1), bn)


def learns_masks(cls: Kind) -> None:
    """Check the training of FedAvg on masks with the add-on; see `algorithms.learns`."""
    method: Any = discover("algorithm")["fedavg"]
    with watched(cls):
        learns(lambda names: outlining(method, names, addon=made(cls)))


def answers(cls: Kind) -> None:
    """Check the shape of the logits, and that an image has the same ones in any batch."""
    model = extended(made(cls), network(), seed=1).eval()
    x = clients()["a"][0]
    require(model(x[:2]).shape == (2, CLASSES), "it changes the shape of the logits")
    require_alone(model, x)


def weighs(cls: Kind) -> None:
    """Check that weights of classes change training with the add-on; see `algorithms.weighs_classes`."""
    method: Any = discover("algorithm")["fedavg"]
    with contextlib.suppress(UserError), watched(cls):
        build = partial(federation, method, "aggregated", addon=made(cls))
        require(not alike(*(networks(build(training=training)) for training in (LAST, WEIGHTED))), IGNORES_WEIGHTS)


def _fedavg(addon: Addon | None) -> Federation:
    data = clients(dtype=torch.float32, shape=COLOURED)
    # Two poolings, since some add-ons act where maps become smaller.
    with keyed(0, "contract"):
        layers = [nn.Sequential(nn.Conv2d(n, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()) for n in (3, 2)]
    model = nn.Sequential(*layers, network(dtype=torch.float32))
    return Federation(Specification.open(model, addon=addon, training=SETTINGS), data)


def differs(cls: Kind, results: Results) -> None:
    """Check that training with the add-on gives other weights than training without it."""
    with_it, without = (results(addon)[0] for addon in (made(cls), None))
    changed = differing({name: with_it[name] for name in without}, without)
    require(bool(changed), "it trains to the bits of FedAvg without it")


def setting_matters(cls: Kind, field: str, results: Results) -> None:
    """Check that another value of a numeric setting changes a bit, if one can be set alone."""
    pairs = [(plugin, changed) for plugin in variants(made(cls)) for changed in others(plugin, field)]
    read = set[str]()
    with reading(cls, read):
        same = all(alike(results(plugin), results(changed)) for plugin, changed in pairs)
    require(not pairs or not same or field in read, f"no bit changes with {field}: nothing reads it")
