"""The contract of models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import torch

from ..core.errors import UserError
from ..core.registry import build
from ..engine.federation import Federation
from ..engine.specification import Specification
from ..models import Model, initialise
from ..tasks import Task
from .case import Broken, Case, Generators, made, require
from .fixtures import BATCH_NORMS, CLASSES, are_probabilities, differing

SHAPES = ((3, 96, 96), (3, 28, 28), (3, 32, 32), (10,))
"""Inputs that a model is offered; it is tested on the first that it takes."""
Kind = type[Model]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what models must satisfy."""
    yield Case("it maps images to logits", partial(maps, cls))
    yield Case("its weights depend on the seed alone", partial(starts_from_the_seed, cls))
    yield Case("all its batch norm stays at home under local", partial(batch_norm_stays, cls))


def accepted(cls: Kind) -> tuple[int, ...]:
    """Return the first shape that a model takes. It refuses others by UserError. Raises Broken if it takes none."""
    for shape in SHAPES:
        with contextlib.suppress(UserError):
            initialise(made(cls), shape, CLASSES, seed=0)
            return shape
    raise Broken(f"it takes inputs of none of these shapes: {SHAPES}")


def maps(cls: Kind) -> None:
    """Check the shape of the logits."""
    shape = accepted(cls)
    model = initialise(made(cls), shape, CLASSES, seed=0).eval()
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(x)
        require(isinstance(logits, torch.Tensor), f"it returns a {type(logits).__name__}, and must return a tensor")
        again = model(x)
    expected = (2, CLASSES, *shape[1:]) if _task(cls).has_masks else (2, CLASSES)
    require(logits.shape == expected, f"two images give {tuple(logits.shape)} logits and not {expected}")
    require(not are_probabilities(logits), "it returns probabilities; return logits: losses and scores apply softmax")
    words = "in evaluation mode the same images have other logits the second time; keep in buffers what must last"
    require(torch.equal(again, logits), words)


def starts_from_the_seed(cls: Kind) -> None:
    """Check that the same seed gives the same weights, another one others."""
    shape = accepted(cls)
    generators = Generators()
    plugin = made(cls)
    weights = initialise(plugin, shape, CLASSES, seed=0).state_dict()
    generators.require_unchanged()
    # The global generator moves on; the weights must not depend on it.
    torch.rand(5)
    changed = differing(initialise(plugin, shape, CLASSES, seed=0).state_dict(), weights)
    require(not changed, f"the same seed gives other weights: {changed}")
    different = differing(initialise(plugin, shape, CLASSES, seed=1).state_dict(), weights)
    require(bool(different), "another seed gives the same weights")


def _task(cls: Kind) -> Task:
    """Return the task that the model is for."""
    task: Task = build("task", cls.tasks[0])
    return task


def batch_norm_stays(cls: Kind) -> None:
    """Check that tensors of batch norm are found by the type of their layers."""
    shape = accepted(cls)
    model = initialise(made(cls), shape, CLASSES, seed=0)
    unknown = [
        type(layer).__name__
        for layer in model.modules()
        if hasattr(layer, "running_mean") and not isinstance(layer, BATCH_NORMS)
    ]
    words = "no BN policy knows them: derive batch norm from torch.nn.BatchNorm1d, 2d or 3d"
    require(not unknown, f"these layers have running statistics, and {words}: {unknown}")
    expected = {
        f"{path}.{leaf}"
        for path, layer in model.named_modules()
        if isinstance(layer, BATCH_NORMS)
        for leaf in layer.state_dict()
    }
    task = _task(cls)
    y = torch.zeros(2, *shape[1:], dtype=torch.long) if task.has_masks else torch.arange(2)
    specification = Specification.open(model, bn="local", task=task)
    kept = set(Federation(specification, {"a": (torch.zeros(2, *shape), y)}).trainer.own_names)
    require(kept == expected, f"under bn local these tensors are wrong: {sorted(kept ^ expected)}")
