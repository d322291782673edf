"""Watching the hooks of an algorithm or add-on while a federation trains: what they return, and what they change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ..algorithms import Local
from ..core.plugin import Plugin
from .case import require
from .fixtures import CLASSES

IN_PLACE = ("begin", "correct", "update")
"""Hooks that change their argument in place and return nothing."""
TENSORS = ("server_state", "client_state", "broadcast", "report")
"""Hooks that return tensors by name."""
GRADIENTS = ("gradient", "backward", "correct")
"""Hooks that may change the gradient."""


@contextlib.contextmanager
def watched(cls: type[Plugin]) -> Iterator[None]:
    """Let the hooks that a class overrides raise Broken where they break what the base class says, in the block."""
    kind = next(base for base in cls.__mro__ if "kind" in vars(base))
    names = {"loss", *IN_PLACE, *TENSORS, *GRADIENTS}
    seen: dict[bytes, int] = {}
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            hook = getattr(cls, name, None)
            if hook is not None and hook is not getattr(kind, name, None):
                stack.enter_context(mock.patch.object(cls, name, _watching(name, hook, seen)))
        yield


def _watching(name: str, hook: Callable[..., Any], seen: dict[bytes, int]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def watching(plugin: Plugin, *arguments: Any) -> Any:
        before = torch.random.get_rng_state()
        local = arguments[0]
        gradient = getattr(local, "grad", None)
        result = hook(plugin, *arguments)
        if name in IN_PLACE:
            require(result is None, f"{name} returns a {type(result).__name__}; change its argument in place")
        if name in TENSORS:
            _require_tensors(f"{name} must return tensors by name", result)
        if name == "loss":
            _require_loss(result, len(arguments[2]))
        if name in GRADIENTS and isinstance(local, Local):
            require(
                local.grad is gradient, f"{name} binds local.grad to a new tensor; change it in place, as grad.mul_()"
            )
        if hasattr(local, "state"):
            _require_tensors(f"after {name}, the state must hold tensors by name", local.state)
        if isinstance(local, Local):
            _require_draws(name, before, seen.setdefault, local.round)
        return result

    return watching


def _require_tensors(words: str, result: object) -> None:
    require(isinstance(result, dict), f"{words}: it is a {type(result).__name__}")
    assert isinstance(result, dict)
    for key, value in result.items():
        require(isinstance(value, Tensor), f"{words}: {key!r} is a {type(value).__name__}")


def _require_loss(result: object, images: int) -> None:
    words = "loss must return two tensors: the mean loss of the batch, of shape (), and the logits (batch, classes)"
    pair = isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result)
    require(pair, f"{words}; it returns a {type(result).__name__}")
    assert isinstance(result, tuple)
    loss, logits = (tuple(part.shape) for part in result)
    # of masks they are (batch, classes, height, width)
    require(loss == () and logits[:2] == (images, CLASSES), f"{words}; their shapes are {loss} and {logits}")


def _require_draws(name: str, before: Tensor, first: Callable[[bytes, int], int], number: int) -> None:
    """Raise Broken if a hook leaves torch's generator in a state that it had after another round."""
    after = torch.random.get_rng_state()
    if not torch.equal(after, before):
        words = f"{name} sets torch's generator to one state in each round, so that later draws repeat themselves"
        require(first(after.numpy().tobytes(), number) == number, words)
