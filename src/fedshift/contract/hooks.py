"""Watching the hooks of an algorithm or add-on while a federation trains: what they return, and what they change."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

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
READ = ("server_state", "client_state", "sample", "broadcast", "download", "round_weights", "personal")
"""Hooks that read the network and change nothing in it."""


@contextlib.contextmanager
def watched(cls: type[Plugin]) -> Iterator[None]:
    """Let the hooks that a class overrides raise Broken where they break what the base class says, in the block."""
    kind = next(base for base in cls.__mro__ if "kind" in vars(base))
    names = {"loss", *IN_PLACE, *TENSORS, *GRADIENTS, *READ}
    seen = _Seen({}, {})
    with contextlib.ExitStack() as stack:
        for name in sorted(names):
            hook = getattr(cls, name, None)
            if hook is not None and hook is not getattr(kind, name, None):
                stack.enter_context(mock.patch.object(cls, name, _watching(name, hook, seen)))
        yield
    sent = {key for report in seen.reports.values() for key in report}
    unsent = sorted(getattr(cls, "per_client", sent) - sent) if sent else []
    require(not unsent, f"`per_client` names tensors that no `report` returns: {unsent}")


class _Seen(NamedTuple):
    """What hooks have done so far: states of torch's generator with their rounds, and shapes of reports by round."""

    draws: dict[bytes, int]
    reports: dict[int, dict[str, tuple[int, ...]]]


def _watching(name: str, hook: Callable[..., Any], seen: _Seen) -> Callable[..., Any]:
    @functools.wraps(hook)
    def watching(plugin: Plugin, *arguments: Any) -> Any:
        before = torch.random.get_rng_state()
        local = arguments[0]
        gradient = getattr(local, "grad", None)
        model = getattr(local, "model", None)
        modes = _modes(model)
        vector: Any = getattr(local, "state_vector", getattr(local, "shared", None))
        kept = vector.clone() if name in READ else None
        result = hook(plugin, *arguments)
        changed = sorted(part for part, mode in _modes(model).items() if mode != modes[part])
        words = "leaves these parts of the network in another mode (training or evaluation, frozen or not); set it back"
        require(not changed, f"{name} {words}: {changed}")
        if kept is not None:
            words = f"{name} changes the network, and only says what is sent or kept; work on a clone"
            require(torch.equal(kept, vector), words)
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
            _require_own(name, local, vector)
        if name == "report":
            _require_alike(result, local, plugin, seen.reports)
        if isinstance(local, Local):
            _require_draws(name, before, seen.draws.setdefault, local.round)
        return result

    return watching


def _require_tensors(words: str, result: object) -> None:
    require(isinstance(result, dict), f"{words}: it is a {type(result).__name__}")
    assert isinstance(result, dict)
    for key, value in result.items():
        require(isinstance(value, Tensor), f"{words}: {key!r} is a {type(value).__name__}")


def _modes(model: nn.Module | None) -> dict[str, bool]:
    """Return which layers train, and which parameters have a gradient, by their paths."""
    if model is None:
        return {}
    layers = {path or "all": layer.training for path, layer in model.named_modules()}
    return layers | {path: parameter.requires_grad for path, parameter in model.named_parameters()}


def _require_own(name: str, local: Any, vector: Tensor) -> None:
    """Raise Broken for state that holds a graph, or that is a view of the network and so changes with it."""
    for key, value in local.state.items():
        words = f"after {name}, {key!r} of the state holds the graph of a backward pass, which grows; detach() it"
        require(not value.requires_grad, words)
        words = f"after {name}, {key!r} of the state is a view of the network, and changes with it; clone() it"
        require(value.untyped_storage().data_ptr() != vector.untyped_storage().data_ptr(), words)


def _require_alike(
    report: dict[str, Tensor], local: Any, plugin: Any, reports: dict[int, dict[str, tuple[int, ...]]]
) -> None:
    """Raise Broken unless all clients of a round report tensors alike, which are averaged, counted as floats each."""
    shapes = {key: tuple(value.shape) for key, value in report.items()}
    other = reports.setdefault(local.round, shapes)
    averaged = (shapes.keys() | other.keys()) - plugin.per_client
    differing = sorted(key for key in averaged if other.get(key) != shapes.get(key))
    words = "report gives these tensors, or their shapes, at some clients only, and the mean is over all; send zeros"
    require(not differing, f"{words}: {differing}")
    wide = sorted(key for key, value in report.items() if value.dtype.itemsize > local.shared.dtype.itemsize)
    words = f"report sends more bytes than the ledger counts, which takes each number for {local.shared.dtype}"
    require(not wide, f"{words}; convert them with .to(local.shared): {wide}")


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
