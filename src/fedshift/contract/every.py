"""The contract of plug-ins of all kinds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pydantic import ValidationError

from ..core.plugin import Plugin
from ..core.registry import build, get
from .case import Broken, Case, made, needed, refusal, require


def cases(cls: type[Plugin]) -> Iterator[Case]:
    """Yield what plug-ins of all kinds must satisfy."""
    yield Case("it is built from its name", partial(built_from_its_name, cls))
    yield Case("it says what it is", partial(described, cls))
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
    require(bool(vars(cls).get("__doc__")), "it needs a docstring, see fedshift's docs/contract.md")
    require(len(cls.summary()) > 10, "the first line of its docstring is too short, see fedshift's docs/contract.md")
    undescribed = [k for k, field in cls.model_fields.items() if not field.description]
    require(not undescribed, f"settings need Field(description=...), see fedshift's docs/contract.md: {undescribed}")


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
