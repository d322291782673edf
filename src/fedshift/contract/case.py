"""A case of the contract: one requirement, for one plug-in and one setting."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import torch
from matplotlib._pylab_helpers import Gcf
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


@contextlib.contextmanager
def reading(cls: type[Plugin], read: set[str]) -> Iterator[None]:
    """Add the names of all attributes that are read in the block from plug-ins of a class."""

    def watching(plugin: Plugin, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(plugin, name)

    with mock.patch.object(cls, "__getattribute__", watching):
        yield


_GENERATOR = "draw from the generator that is given, or from fedshift.core.rng, since no seed of a study sets this one"
_LEFT = "set it back, since everything that runs later would be affected"
PROCESS: dict[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "torch's global generator": (
        lambda: torch.random.get_rng_state().numpy(),
        lambda state: torch.random.set_rng_state(torch.from_numpy(state)),
        _GENERATOR,
    ),
    "NumPy's global generator": (np.random.get_state, np.random.set_state, _GENERATOR),
    "Python's global generator": (random.getstate, random.setstate, _GENERATOR),
    "torch's recording of gradients": (torch.is_grad_enabled, torch.set_grad_enabled, _LEFT),
    "torch's default type of floats": (torch.get_default_dtype, torch.set_default_dtype, _LEFT),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads, _LEFT),
    "NumPy's handling of errors": (np.geterr, lambda modes: np.seterr(**modes), _LEFT),
    "the figures that pyplot holds open": (
        lambda: list(Gcf.figs),
        lambda _: Gcf.destroy_all(),
        "close them, or paint on the figure that `picture` gives",
    ),
}
"""What all code of a process shares, how it is read and set back, and what a plug-in that changes it should do."""


def guarded(cls: type[Plugin], check: Callable[[], None]) -> None:
    """Run a check in an empty working folder.

    Raises Broken if the plug-in keeps anything in its file or class, changes what all code of the process shares, or
    writes into the working folder. Such a fault is the cause of others, so it is reported in their place.
    """
    kept = _kept(cls)
    # The position of a generator counts, too: few draws leave the words of its state as they were.
    shared = {name: pickle.dumps(read()) for name, (read, _, _) in PROCESS.items()}
    cause, written = _attempt(check)
    after = _kept(cls)
    changed = sorted(name for name in kept.keys() | after.keys() if kept.get(name) != after.get(name))
    for name, (read, restore, remedy) in PROCESS.items():
        if pickle.dumps(read()) != shared[name]:
            restore(pickle.loads(shared[name]))
            # Once more, since a library that is imported for the first time may draw, too.
            _attempt(check)
            again = pickle.dumps(read()) != shared[name]
            restore(pickle.loads(shared[name]))
            if again:
                raise Broken(f"it changes {name}: {remedy}") from cause
    if changed:
        words = (
            "so a run depends on those before it in the same process; keep tensors in the state that hooks are given"
        )
        raise Broken(f"it changes {', '.join(changed)} of its file, {words}") from cause
    if written:
        raise Broken(f"it writes {', '.join(written)} into the working folder, where runs meet: write no file")
    if isinstance(cause, ValidationError) and cause.errors()[0]["type"] == "frozen_instance":
        words = "and a plug-in never changes; keep tensors in the state that hooks are given"
        raise Broken(f"it sets self.{cause.errors()[0]['loc'][0]}, {words}")
    if cause is not None:
        raise cause


def _attempt(check: Callable[[], None]) -> tuple[Exception | None, list[str]]:
    """Run a check in an empty working folder; return its error, if any, and the names of the files that it leaves."""
    cause: Exception | None = None
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            try:
                check()
            except Exception as error:
                cause = error
        return cause, sorted(file.name for file in Path(folder).iterdir())


def own_classes(cls: type[Plugin]) -> list[type]:
    """Return the classes that a plug-in's file defines."""
    return [c for c in vars(sys.modules[cls.__module__]).values() if _is_own(c, cls) and inspect.isclass(c)]


def _is_own(thing: object, cls: type[Plugin]) -> bool:
    return getattr(thing, "__module__", None) == cls.__module__


def _kept(cls: type[Plugin]) -> dict[str, bytes]:
    """Return the values that a plug-in's file, classes and functions hold, by name, as bytes."""
    kept = {}
    places = {"": vars(sys.modules[cls.__module__])} | {f"{c.__name__}.": vars(c) for c in own_classes(cls)}
    for place, values in places.items():
        for name, value in values.items():
            if name.startswith(("__", "_abc_", "model_")) or inspect.isclass(value):
                continue
            held = value
            if inspect.isfunction(value):
                # Default arguments and attributes of a function last as long as the function.
                held = (value.__defaults__, value.__kwdefaults__, vars(value)) if _is_own(value, cls) else None
            with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError):
                kept[place * (place != f"{cls.__name__}.") + name] = pickle.dumps(held)
    return kept
