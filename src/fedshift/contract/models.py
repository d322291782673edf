"""Checks of models: shapes of inputs and logits, initial weights, gradients and batch-norm layers."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from pydantic import ValidationError
from torch import nn

from ..core.errors import UserError
from ..core.registry import build
from ..engine.federation import Federation
from ..engine.specification import Specification
from ..models import Model, initialise
from ..tasks import Task
from .case import Broken, Case, made, require
from .fixtures import BATCH_NORMS, CLASSES, are_probabilities, differing, require_alone

SHAPES = ((3, 96, 96), (3, 28, 28), (3, 32, 32), (10,))
"""Shapes of inputs that are tried in order; a model is tested on the first shape that it takes."""
OTHERS = ((3, 32, 48), (1, 28, 28))
"""Further shapes of inputs, not square or with one channel, which a model must take or refuse by UserError."""
Kind = type[Model]
Shape = Callable[[], tuple[int, ...]]
"""A function that returns the shape of inputs on which a model is tested."""


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that a model class must pass. The search for a shape builds networks, so all checks share it."""
    shape = functools.cache(partial(accepted, cls))
    yield Case("it maps images to logits", partial(maps, cls, shape))
    for offered in (*SHAPES, *OTHERS):
        yield Case(
            f"it takes inputs of {offered}, or refuses them by UserError", partial(takes_or_refuses, cls, offered)
        )
    yield Case(
        "the logits of an image depend on no other image, and its input stays unchanged",
        partial(answers_alone, cls, shape),
    )
    yield Case("its weights depend on the seed alone", partial(starts_from_the_seed, cls, shape))
    yield Case(
        "a copy with the same state dict predicts the same, and all of its tensors move",
        partial(is_its_state, cls, shape),
    )
    yield Case("each of its parameters has a gradient", partial(has_gradients, cls, shape))
    yield Case("all its batch norm stays at home under local", partial(batch_norm_stays, cls, shape))


def accepted(cls: Kind) -> tuple[int, ...]:
    """Return the first input shape of the list SHAPES for which the model can be built.

    A model refuses other shapes by UserError. Raises Broken for another error, or if all shapes are refused.
    """
    for shape in SHAPES:
        with contextlib.suppress(UserError), _in_words(shape):
            initialise(made(cls), shape, CLASSES, seed=0)
            return shape
    raise Broken(f"it takes inputs of none of these shapes: {SHAPES}")


@contextlib.contextmanager
def _in_words(shape: tuple[int, ...]) -> Iterator[None]:
    """Turn an unexpected error of the block, for inputs of `shape`, into Broken. UserErrors pass unchanged."""
    try:
        yield
    except (UserError, Broken, ValidationError):
        raise
    except Exception as error:
        words = "raise UserError for inputs that it cannot take, as `require_images` does"
        raise Broken(f"inputs of shape {shape} end in {type(error).__name__}: {error}; {words}") from error


def maps(cls: Kind, shape: Shape) -> None:
    """Check that the network returns logits, no probabilities, of shape (n, classes) or (n, classes, height, width)."""
    model = initialise(made(cls), shape(), CLASSES, seed=0).eval()
    x = torch.rand(2, *shape(), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(x)
    require(isinstance(logits, torch.Tensor), f"it returns a {type(logits).__name__}, and must return a tensor")
    expected = (2, CLASSES, *shape()[1:]) if _task(cls).has_masks else (2, CLASSES)
    require(logits.shape == expected, f"two images give {tuple(logits.shape)} logits and not {expected}")
    require(not are_probabilities(logits), "it returns probabilities; return logits: losses and scores apply softmax")


def takes_or_refuses(cls: Kind, shape: tuple[int, ...]) -> None:
    """Check that the model builds a network for the shape with one logit per class, or refuses it by UserError."""
    # Other numbers of classes than everywhere else, so that one that is written into the code shows.
    classes = CLASSES + 2 if shape in SHAPES else CLASSES - 1
    with contextlib.suppress(UserError), _in_words(shape), torch.no_grad():
        found = tuple(initialise(made(cls), shape, classes, seed=0).eval()(torch.zeros(2, *shape)).shape[:2])
        words = f"for {classes} classes it gives {found[-1]} logits; `build` is given the number of classes"
        require(found == (2, classes), words)


def _opened(cls: Kind, shape: Shape, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """Return the initialised network in evaluation mode, and a batch of three random inputs."""
    x = torch.rand(3, *shape(), generator=torch.Generator().manual_seed(0)) - 0.5
    return initialise(made(cls), shape(), CLASSES, seed=seed).eval(), x


def answers_alone(cls: Kind, shape: Shape) -> None:
    """Check that the logits of an image depend on no other image of its batch, and that the input is not changed."""
    model, x = _opened(cls, shape)
    before = x.clone()
    require_alone(model, x)
    require(torch.equal(x, before), "it changes its input; an operation in place on it needs a copy")


def is_its_state(cls: Kind, shape: Shape) -> None:
    """Check that a copy with the same state dict predicts the same, and that all tensors are parameters or buffers."""
    model, x = _opened(cls, shape)
    other = copy.deepcopy(_opened(cls, shape, seed=1)[0])
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        words = (
            "with the same parameters and buffers a copy answers otherwise: it holds layers in a list, tensors that "
        )
        words += "are not registered, or functions of the first network; use nn.ModuleList and register_buffer"
        require(torch.allclose(other(x), model(x), rtol=1e-4, atol=1e-5), words)
    loose = [
        f"{path}.{name}"
        for path, layer in model.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, torch.Tensor)
    ]
    require(
        not loose, f"these tensors stay behind if the network moves to another device; register_buffer them: {loose}"
    )


def has_gradients(cls: Kind, shape: Shape) -> None:
    """Check that every trainable parameter gets a gradient; an unused one would be sent in each round for nothing."""
    model, x = _opened(cls, shape)
    with torch.random.fork_rng(devices=[]):  # dropout draws
        logits = model.train()(x)
    (logits * torch.rand(logits.shape, generator=torch.Generator().manual_seed(1))).sum().backward()
    unused = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    require(not unused, f"these parameters take no part in the forward pass, and would travel for nothing: {unused}")


def starts_from_the_seed(cls: Kind, shape: Shape) -> None:
    """Check that a network's initial weights depend on the seed alone, and differ for another seed."""
    plugin = made(cls)
    weights = initialise(plugin, shape(), CLASSES, seed=0).state_dict()
    # The global generator moves on; the weights must not depend on it.
    with torch.random.fork_rng(devices=[]):
        torch.rand(5)
        changed = differing(initialise(plugin, shape(), CLASSES, seed=0).state_dict(), weights)
    require(not changed, f"the same seed gives other weights: {changed}")
    different = differing(initialise(plugin, shape(), CLASSES, seed=1).state_dict(), weights)
    require(bool(different), "another seed gives the same weights")


def _task(cls: Kind) -> Task:
    """Return the first task that the model class supports, such as classification."""
    task: Task = build("task", cls.tasks[0])
    return task


def batch_norm_stays(cls: Kind, shape: Shape) -> None:
    """Check that under the BN policy `local` clients keep exactly the tensors of the network's batch-norm layers.

    Batch norm is found by type, so a layer with running statistics must derive from torch's batch-norm classes.
    """
    model = initialise(made(cls), shape(), CLASSES, seed=0)
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
    y = torch.zeros(2, *shape()[1:], dtype=torch.long) if task.has_masks else torch.arange(2)
    specification = Specification.open(model, bn="local", task=task)
    kept = set(Federation(specification, {"a": (torch.zeros(2, *shape()), y)}).trainer.own_names)
    require(kept == expected, f"under bn local these tensors are wrong: {sorted(kept ^ expected)}")
