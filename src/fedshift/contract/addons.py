"""The contract of add-ons: with several algorithms, and of the network that they extend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ..addons import Addon, extended
from ..core.registry import discover
from .algorithms import federation
from .case import Case, Generators, made, require
from .toy import CLASSES, clients, differing, network

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
    """Check for finite numbers, equal bits after a resume and in any order of clients, and untouched generators."""
    method: Any = discover("algorithm")[algorithm]
    options: dict[str, Any] = {"bn": bn, "addon": made(cls)}
    generators = Generators()
    trained = federation(method, **options).run(2)
    require(all(bool(v.isfinite().all()) for v in trained.tensors().values()), "a tensor is not finite")
    require(all(math.isfinite(row["loss"]) for row in trained.history), "a loss is not finite")
    saved, whole = (trained.tensors(), trained.progress()), trained.run()
    resumed = federation(method, **options)
    resumed.restore(*saved)
    changed = differing(resumed.run().tensors(), whole.tensors())
    require(not changed, f"other bits after a resume: {changed}")
    changed = differing(federation(method, names="cab", **options).run().tensors(), whole.tensors())
    require(not changed, f"the order of clients changes bits: {changed}")
    generators.require_unchanged()


def answers(cls: Kind) -> None:
    """Check that heads start from the seed alone, and add nothing to the logits' shape."""
    addon = made(cls)
    one, same = (extended(addon, network(), seed=1).eval() for _ in range(2))
    changed = differing(one.state_dict(), same.state_dict())
    require(not changed, f"its layers must start from the seed alone: {changed}")
    unknown = set(addon.stays(one)) - {name for name, _ in one.named_parameters()}
    require(not unknown, f"`stays` names what is no parameter: {sorted(unknown)}")
    require(one(clients()["a"][0][:2]).shape == (2, CLASSES), "it changes the shape of the logits")
