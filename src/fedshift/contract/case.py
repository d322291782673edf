"""A case of the contract: one requirement, for one plug-in and one setting."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from pydantic import ValidationError

from ..core.errors import UserError
from ..core.plugin import Plugin
from ..core.registry import build


class Broken(AssertionError):  # noqa: N818 - a requirement is broken, and no error was made
    """A requirement of the contract that a plug-in does not satisfy."""


@dataclass(frozen=True)
class Case:
    """A requirement in words, and the function that raises an error, usually Broken, where it does not hold.

    A case of `advice` may rightly fail: its words are shown, and the plug-in passes all the same.
    """

    title: str
    check: Callable[[], None]
    advice: bool = False


def require(holds: bool, what: str) -> None:
    """Raise Broken with some words unless something holds."""
    if not holds:
        raise Broken(what)


def refusal(call: Callable[[], object], what: str) -> str:
    """Return the words of the UserError that a call raises. Raises Broken, with `what`, if it raises none."""
    try:
        call()
    except UserError as error:
        return str(error)
    raise Broken(what)


def needed(cls: type[Plugin]) -> dict[str, Any]:
    """Return values for the settings that have no default: the first of their examples, else a path."""
    required = {k: field for k, field in cls.model_fields.items() if field.is_required()}
    return {k: (field.examples or ["images.csv"])[0] for k, field in required.items()}


def made(cls: type[Plugin], **settings: Any) -> Any:
    """Return a plug-in that is built by its name, with its defaults."""
    return build(cls.kind, {"name": cls.name, **needed(cls), **settings})


def numeric(cls: type[Plugin]) -> list[str]:
    """Return the names of the settings that are numbers."""
    return [name for name, field in cls.model_fields.items() if field.annotation in (int, float)]


def variants(plugin: Plugin) -> Iterator[Any]:
    """Yield the plug-in, and then with each other value of its settings that are words or true and false."""
    yield plugin
    for name, field in type(plugin).model_fields.items():
        values = get_args(field.annotation)
        if field.annotation is bool:
            values = (True, False)
        for value in values:
            if isinstance(value, str | bool) and value != getattr(plugin, name):
                yield build(plugin.kind, plugin.spec() | {name: value})


def others(plugin: Plugin, field: str) -> Iterator[Any]:
    """Yield the plug-in with other values of a numeric setting, of those that its bounds allow."""
    value = getattr(plugin, field)
    for changed in dict.fromkeys((2 * value, value / 2, value + 1, 0, 1, 0.5, 10)):
        if changed != value:
            with contextlib.suppress(UserError):
                yield build(plugin.kind, plugin.spec() | {field: changed})


class Generators:
    """The global random generators as they are now."""

    def __init__(self) -> None:
        self.torch = torch.random.get_rng_state()
        self.numpy = _numpy_state()

    def require_unchanged(self) -> None:
        """Raise Broken if anything was drawn from a global generator since."""
        require(torch.equal(torch.random.get_rng_state(), self.torch), "it drew from torch's global generator")
        require(_numpy_state() == self.numpy, "it drew from NumPy's global generator")


def _numpy_state() -> bytes:
    # The position counts, too: few draws leave the words of the state as they were.
    return pickle.dumps(np.random.get_state())  # noqa: NPY002


def guarded(cls: type[Plugin], check: Callable[[], None]) -> None:
    """Run a check. Raises Broken if the plug-in keeps anything in its file or class, or draws from NumPy's generator.

    Such a fault is the cause of others, so it is reported in their place.
    """
    before = _kept(cls)
    generator = _numpy_state()
    cause: Exception | None = None
    try:
        check()
    except Exception as error:
        cause = error
    after = _kept(cls)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        words = (
            "so a run depends on those before it in the same process; keep tensors in the state that hooks are given"
        )
        raise Broken(f"it changes {', '.join(changed)} of its file, {words}") from cause
    if _numpy_state() != generator:
        raise Broken("it drew from NumPy's global generator, which no seed of a study sets") from cause
    if isinstance(cause, ValidationError) and cause.errors()[0]["type"] == "frozen_instance":
        name = cause.errors()[0]["loc"][0]
        raise Broken(
            f"it sets self.{name}, and a plug-in never changes; keep tensors in the state that hooks are given"
        )
    if cause is not None:
        raise cause


def _kept(cls: type[Plugin]) -> dict[str, bytes]:
    """Return the values that a plug-in's file and class hold, by name, as bytes."""
    kept = {}
    for name, value in {**vars(sys.modules[cls.__module__]), **vars(cls)}.items():
        if not name.startswith(("__", "_abc_", "model_")) and not callable(value):
            try:
                kept[name] = pickle.dumps(value)
            except (pickle.PicklingError, TypeError, AttributeError):
                continue
    return kept
