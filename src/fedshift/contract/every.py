"""The contract of plug-ins of all kinds."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import partial

from pydantic import ValidationError

from ..core.plugin import Plugin
from ..core.registry import build, get
from .case import Broken, Case, made, needed, refusal, require

SLOW = {"torch", "torchvision", "monai", "pandas", "scipy", "sklearn", "matplotlib"}
"""Libraries that take long to import."""


def cases(cls: type[Plugin]) -> Iterator[Case]:
    """Yield what plug-ins of all kinds must satisfy."""
    yield Case("it is built from its name", partial(built_from_its_name, cls))
    yield Case("it says what it is", partial(described, cls))
    yield Case("its file holds one public class, and is imported quickly", partial(one_light_file, cls))
    yield Case(
        "its code asks for nothing that differs between machines or processes", partial(repeatable, cls), advice=True
    )
    yield Case("its methods take what they are given", partial(takes_what_it_is_given, cls))
    yield Case("its settings survive as plain data", partial(plain, cls))
    yield Case("it cannot be changed", partial(frozen, cls))
    yield Case("an unknown key is refused with the closest known one", partial(unknown_keys_are_refused, cls))


def built_from_its_name(cls: type[Plugin]) -> None:
    """Check that the name leads to the class."""
    plugin = made(cls) if needed(cls) else build(cls.kind, cls.name)
    require(type(plugin) is cls, f"the name {cls.name} leads to {type(plugin)}")
    require(get(cls.kind, cls.name) is cls, f"{cls.name} is not found by its name")


def described(cls: type[Plugin]) -> None:
    """Check docstring and descriptions."""
    require(bool(vars(cls).get("__doc__")), "it needs its own docstring")
    require(len(cls.summary()) > 10, "the first line of its docstring is too short: lists show it")
    undescribed = [k for k, field in cls.model_fields.items() if not field.description]
    require(not undescribed, f"settings need Field(description=...): {undescribed}")
    if hasattr(cls, "paper"):
        words = "it needs `paper`, the source of the method: a paper, or words such as 'ours' or 'control'"
        require(bool(cls.paper), words)


def one_light_file(cls: type[Plugin]) -> None:
    """Check the classes of its file, and what is imported with it."""
    module = sys.modules[cls.__module__]
    classes = [
        thing for thing in vars(module).values() if inspect.isclass(thing) and thing.__module__ == cls.__module__
    ]
    others = sorted({c.__name__ for c in classes if c is not cls and not c.__name__.startswith("_")})
    require(not others, f"a file holds one public class; begin the names of others with an underscore: {others}")
    imported = set(_imported(ast.parse(inspect.getsource(module))))
    words = "import slow libraries inside of methods, or under TYPE_CHECKING: every job imports the file"
    require(imported.isdisjoint(SLOW), f"{words}: {sorted(imported & SLOW)}")


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the libraries that are imported when a file is: not those in functions or under TYPE_CHECKING."""
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
    "hash": "that of a text differs between processes; fedshift.core.digest.of does not",
    "cuda": "a machine may have no such device; use .to(x) of a tensor that is given",
}
"""Calls whose results no seed of a study decides, by the last part of their names."""


def repeatable(cls: type[Plugin]) -> None:
    """Check the calls in its file by name: some faults show only in another process, or on another device."""
    for call in _calls(ast.parse(inspect.getsource(sys.modules[cls.__module__]))):
        name = ast.unparse(call.func)
        reason = ELSEWHERE.get(name.rpartition(".")[2])
        keyed = reason is _SEEDS and any(not isinstance(argument, ast.Constant) for argument in call.args)
        require(reason is None or keyed, f"line {call.lineno} calls {name}: {reason}")


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a file, but those that make the hash of an object, which no result depends on."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield node
        if not (isinstance(node, ast.FunctionDef) and node.name == "__hash__"):
            yield from _calls(node)


def takes_what_it_is_given(cls: type[Plugin]) -> None:
    """Check that each public method is one of a base class, and can be called with the arguments of that."""
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
    """Check that settings are equal after they were written and read."""
    plugin = made(cls)
    again = build(cls.kind, plugin.spec())
    require(
        again == plugin and again.spec() == plugin.spec(), "its settings change when they are written and read again"
    )
    require(set(plugin.spec()) == {"name", *cls.model_fields}, "its specification must hold its name and all fields")


def frozen(cls: type[Plugin]) -> None:
    """Check that no attribute can be set."""
    plugin = made(cls)
    for field in (*cls.model_fields, "something"):
        try:
            setattr(plugin, field, getattr(plugin, field, 1))
        except ValidationError:
            continue
        raise Broken(f"its attribute {field!r} can be set after it is built")


def unknown_keys_are_refused(cls: type[Plugin]) -> None:
    """Check the error of a misspelt setting."""
    for field in cls.model_fields or ["settin"]:
        spec = {"name": cls.name, **needed(cls), f"{field}g": 1}
        words = refusal(lambda spec=spec: build(cls.kind, spec), f"the unknown setting {field}g is accepted")  # type: ignore[misc]
        require(f"unknown key '{field}g'" in words, f"an unknown setting is not named: {words}")
        hint = f"did you mean {field!r}?" if cls.model_fields else "known: none"
        require(hint in words, f"the closest setting is not named: {words}")
