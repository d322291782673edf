"""The class of a check of the contract, the guard in which each check runs, and the checks of plug-ins of all kinds."""

from __future__ import annotations

import ast
import contextlib
import inspect
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import torch
from matplotlib._pylab_helpers import Gcf
from pydantic import ValidationError

from ..core.errors import UserError
from ..core.plugin import Plugin
from ..core.registry import build, get

SLOW = {"torch", "torchvision", "monai", "pandas", "scipy", "sklearn", "matplotlib"}
"""Libraries that take long to import, which the file of a plug-in may import inside of methods only."""


class Broken(AssertionError):  # noqa: N818 - a requirement is broken, and no error was made
    """The error of a check: the plug-in does not satisfy a requirement of the contract."""


@dataclass(frozen=True)
class Case:
    """One check of a plug-in: the requirement as a title, and a function that raises an error if it does not hold.

    The error is usually Broken. If `advice` is True, a failure is only reported, and the plug-in passes all the same.
    """

    title: str
    check: Callable[[], None]
    advice: bool = False


def require(holds: bool, what: str) -> None:
    """Raise Broken with the message `what` unless `holds` is True."""
    if not holds:
        raise Broken(what)


def refusal(call: Callable[[], object], what: str) -> str:
    """Return the message of the UserError that `call` raises. Raises Broken, with `what`, if `call` raises none."""
    try:
        call()
    except UserError as error:
        return str(error)
    raise Broken(what)


def needed(cls: type[Plugin]) -> dict[str, Any]:
    """Return a value for each required setting of a plug-in class: its first example, or else the path `images.csv`."""
    required = {k: field for k, field in cls.model_fields.items() if field.is_required()}
    return {k: (field.examples or ["images.csv"])[0] for k, field in required.items()}


def made(cls: type[Plugin], **settings: Any) -> Any:
    """Return a plug-in that the registry builds by its name, with default settings except for those given."""
    return build(cls.kind, {"name": cls.name, **needed(cls), **settings})


def numeric(cls: type[Plugin]) -> list[str]:
    """Return the names of a plug-in class's settings whose type is int or float."""
    return [name for name, field in cls.model_fields.items() if field.annotation in (int, float)]


def variants(plugin: Plugin) -> Iterator[Any]:
    """Yield the plug-in, then copies with one setting changed: to each other choice of a Literal or Boolean setting."""
    yield plugin
    for name, field in type(plugin).model_fields.items():
        values = get_args(field.annotation)
        if field.annotation is bool:
            values = (True, False)
        for value in values:
            if isinstance(value, str | bool) and value != getattr(plugin, name):
                yield build(plugin.kind, plugin.spec() | {name: value})


def others(plugin: Plugin, field: str) -> Iterator[Any]:
    """Yield copies of the plug-in with other values of the numeric setting `field`, as far as its bounds allow them."""
    value = getattr(plugin, field)
    for changed in dict.fromkeys((2 * value, value / 2, value + 1, 0, 1, 0.5, 10)):
        if changed != value:
            with contextlib.suppress(UserError):
                yield build(plugin.kind, plugin.spec() | {field: changed})


@contextlib.contextmanager
def reading(cls: type[Plugin], read: set[str]) -> Iterator[None]:
    """Inside the block, add to `read` the name of each attribute that is read from an instance of `cls`."""

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
"""State that all code of a process shares, by its name in messages: a function that reads the state, a function that
restores it, and the remedy for a plug-in that changes it."""


def guarded(cls: type[Plugin], check: Callable[[], None]) -> None:
    """Run a check in an empty working folder, and raise Broken if the plug-in leaves side effects.

    Side effects are changed values in the plug-in's module or classes, changed state of the process (see PROCESS), and
    files in the working folder. They often cause the error of the check itself, so they are reported in its place.
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
        raise Broken(f"it writes {', '.join(written)} into the working folder, which all runs share: write no file")
    if isinstance(cause, ValidationError) and cause.errors()[0]["type"] == "frozen_instance":
        words = "and a plug-in never changes; keep tensors in the state that hooks are given"
        raise Broken(f"it sets self.{cause.errors()[0]['loc'][0]}, {words}")
    if cause is not None:
        raise cause


def _attempt(check: Callable[[], None]) -> tuple[Exception | None, list[str]]:
    """Run a check in an empty folder. Return its error, or None, and the names of the files that it leaves there."""
    cause: Exception | None = None
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.chdir(folder):
            try:
                check()
            except Exception as error:
                cause = error
        return cause, sorted(file.name for file in Path(folder).iterdir())


def own_classes(cls: type[Plugin]) -> list[type]:
    """Return all classes that the file of a plug-in class defines."""
    return [c for c in vars(sys.modules[cls.__module__]).values() if _is_own(c, cls) and inspect.isclass(c)]


def _is_own(thing: object, cls: type[Plugin]) -> bool:
    """Return True if a class or function is defined in the file of the plug-in class."""
    return getattr(thing, "__module__", None) == cls.__module__


def _kept(cls: type[Plugin]) -> dict[str, bytes]:
    """Return the pickled values of all variables in a plug-in's module, classes and functions, by name.

    Comparing two results shows state that a plug-in keeps between calls. Values that cannot be pickled are left out.
    """
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


def of_every_kind(cls: type[Plugin]) -> Iterator[Case]:
    """Yield the checks that a plug-in class of any kind must pass."""
    yield Case("it is built from its name", partial(built_from_its_name, cls))
    yield Case("its class and settings are described", partial(described, cls))
    yield Case("its file holds one public class, and is imported quickly", partial(one_light_file, cls))
    yield Case(
        "its code asks for nothing that differs between machines or processes", partial(repeatable, cls), advice=True
    )
    yield Case("its methods take the arguments of the base class", partial(takes_what_it_is_given, cls))
    yield Case("its settings are the same after they are written and read again", partial(plain, cls))
    yield Case("its attributes cannot be set after it is built", partial(frozen, cls))
    yield Case("an unknown key is refused with the closest known one", partial(unknown_keys_are_refused, cls))


def built_from_its_name(cls: type[Plugin]) -> None:
    """Check that the registry finds the class by its name and builds an instance of it."""
    plugin = made(cls) if needed(cls) else build(cls.kind, cls.name)
    require(type(plugin) is cls, f"the name {cls.name} leads to {type(plugin)}")
    require(get(cls.kind, cls.name) is cls, f"{cls.name} is not found by its name")


def described(cls: type[Plugin]) -> None:
    """Check that the class has a docstring, each setting a description, and a method its source in `paper`."""
    require(bool(vars(cls).get("__doc__")), "it needs its own docstring")
    require(len(cls.summary()) > 10, "the first line of its docstring is too short: lists show it")
    undescribed = [k for k, field in cls.model_fields.items() if not field.description]
    require(not undescribed, f"settings need Field(description=...): {undescribed}")
    if hasattr(cls, "paper"):
        words = "it needs `paper`, the source of the method: a paper, or words such as 'ours' or 'control'"
        require(bool(cls.paper), words)


def one_light_file(cls: type[Plugin]) -> None:
    """Check that the plug-in's file has one public class, and imports no slow library when it is imported."""
    module = sys.modules[cls.__module__]
    classes = [
        thing for thing in vars(module).values() if inspect.isclass(thing) and thing.__module__ == cls.__module__
    ]
    others = sorted({c.__name__ for c in classes if c is not cls and not c.__name__.startswith("_")})
    # Short plug-ins of this package share a file with an underscore, which is found by its names alone.
    shared = module.__name__.rpartition(".")[2].startswith("_")
    words = f"a file holds one public class; begin the names of others with an underscore: {others}"
    require(shared or not others, words)
    imported = set(_imported(ast.parse(inspect.getsource(module))))
    words = "import slow libraries inside of methods, or under TYPE_CHECKING: every job imports the file"
    require(imported.isdisjoint(SLOW), f"{words}: {sorted(imported & SLOW)}")


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that are imported when a file is imported, given its syntax tree.

    Imports in functions and under TYPE_CHECKING are left out.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _imported(node)


_SEEDS = "its seed is not that of the run; draw from the generator that is given, or from fedshift.core.rng"
_CLOCK = "it differs each time"
ELSEWHERE = {
    **dict.fromkeys(("default_rng", "RandomState"), _SEEDS),
    **dict.fromkeys(("time", "now", "today", "uuid4", "urandom", "getpid"), _CLOCK),
    "hash": "the hash of a text differs between processes; use fedshift.core.digest.of",
    "cuda": "a machine may have no such device; use .to(x) with a tensor that the hook is given",
}
"""Functions whose results differ between machines, processes or calls whatever the seed of a study: the reason or the
remedy by the last part of a function's name."""


def repeatable(cls: type[Plugin]) -> None:
    """Check that the plug-in's file calls no function of ELSEWHERE, whose result differs between processes or devices.

    The source is read, since such a fault does not show in one process. A generator that is given a seed is allowed.
    """
    for call in _calls(ast.parse(inspect.getsource(sys.modules[cls.__module__]))):
        name = ast.unparse(call.func)
        reason = ELSEWHERE.get(name.rpartition(".")[2])
        keyed = reason is _SEEDS and any(not isinstance(argument, ast.Constant) for argument in call.args)
        require(reason is None or keyed, f"line {call.lineno} calls {name}: {reason}")


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a syntax tree, without calls in methods `__hash__`, on which no result depends."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node
        if not (isinstance(node, ast.FunctionDef) and node.name == "__hash__"):
            yield from _calls(node)


def takes_what_it_is_given(cls: type[Plugin]) -> None:
    """Check that each public method overrides one of the base class and accepts the same arguments."""
    cls.require_hooks()
    kind = next(base for base in cls.__mro__ if "kind" in vars(base))
    for name, method in vars(cls).items():
        given = vars(kind).get(name)
        if inspect.isfunction(method) and inspect.isfunction(given):
            arguments = list(inspect.signature(given).parameters)
            try:
                inspect.signature(method).bind(*arguments)
            except TypeError:
                takes = ", ".join(inspect.signature(method).parameters)
                raise Broken(f"{name} takes ({takes}), and is given ({', '.join(arguments)})") from None


def plain(cls: type[Plugin]) -> None:
    """Check that a plug-in built from its own plain data, `spec()`, equals the plug-in."""
    plugin = made(cls)
    again = build(cls.kind, plugin.spec())
    require(
        again == plugin and again.spec() == plugin.spec(), "its settings change when they are written and read again"
    )
    require(set(plugin.spec()) == {"name", *cls.model_fields}, "its specification must hold its name and all fields")


def frozen(cls: type[Plugin]) -> None:
    """Check that setting any attribute of a built plug-in raises an error."""
    plugin = made(cls)
    for field in (*cls.model_fields, "something"):
        try:
            setattr(plugin, field, getattr(plugin, field, 1))
        except ValidationError:
            continue
        raise Broken(f"its attribute {field!r} can be set after it is built")


def unknown_keys_are_refused(cls: type[Plugin]) -> None:
    """Check that a misspelt setting raises a UserError that names it and suggests the closest setting."""
    for field in cls.model_fields or ["settin"]:
        spec = {"name": cls.name, **needed(cls), f"{field}g": 1}
        words = refusal(lambda spec=spec: build(cls.kind, spec), f"the unknown setting {field}g is accepted")  # type: ignore[misc]
        require(f"unknown key '{field}g'" in words, f"an unknown setting is not named: {words}")
        hint = f"did you mean {field!r}?" if cls.model_fields else "known: none"
        require(hint in words, f"the closest setting is not named: {words}")
