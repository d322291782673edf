"""Plug-ins: one class, one file. A plug-in is found when its file lies in the right folder.

A plug-in is a frozen pydantic model. Its fields are its settings, with bounds and a description. Its methods are its
behaviour. Its name is the name of its file.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ValidationError

from .errors import UserError, UserErrors, did_you_mean
from .frozen import Frozen


class Plugin(Frozen, allow_inf_nan=False):
    """Base class of every plug-in. The base class of a kind sets `kind`; `name` is the name of the file."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Earlier names, oldest first, which studies and old specifications may still use."""
    identity_name: ClassVar[str] = ""
    """The oldest name. Identities use it, so a new name changes no id."""
    documentation_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that only people read: they are part of no identity, and a change of them reruns no job."""
    later_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that came later: at their default they are part of no identity, so that earlier studies keep ids."""
    label_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that the label always shows, even at their default."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.name = cls.__module__.rpartition(".")[2]
        cls.aliases = vars(cls).get("aliases", ())  # a subclass is another plug-in, and inherits no name
        cls.identity_name = (*cls.aliases, cls.name)[0]

    def spec(self) -> dict[str, Any]:
        """Return the name and all settings, defaults included, as plain data from which `build` makes it again."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def identity(self) -> dict[str, Any]:
        """Return the oldest name and the settings that influence results; digests of this make ids."""
        changed = self.model_dump(mode="json", exclude_defaults=True)
        unused = self.documentation_fields | (self.later_fields - changed.keys())
        settings = {k: v for k, v in self.model_dump(mode="json").items() if k not in unused}
        return {"name": self.identity_name, **settings}

    @property
    def label(self) -> str:
        """Return the name with the settings that differ from their defaults: `fedprox(mu=0.1)`."""
        settings, changed = self.model_dump(mode="json"), self.model_dump(mode="json", exclude_defaults=True)
        inside = ", ".join(f"{k}={v}" for k, v in settings.items() if k in changed or k in self.label_fields)
        return f"{self.name}({inside})" if inside else self.name

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]


HERE = "."
"""The place that a validator inside a model gives for its error: the model replaces it by the real place."""

KINDS = ("algorithm", "dataset", "model", "addon", "inference", "metric", "figure", "transform")
"""The kinds of plug-ins. The package with the plural as its name holds those of a kind."""


def folder(kind: str) -> str:
    """Return the name of the package that holds the plug-ins of a kind."""
    return f"fedshift.{kind}s"


@functools.cache
def discover(kind: str) -> dict[str, type[Plugin]]:
    """Return all plug-in classes of a kind by name, found by walking their folder.

    Raises RuntimeError for a module that does not hold exactly one.
    """
    package = importlib.import_module(folder(kind))
    plugins: dict[str, type[Plugin]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")):
        loaded = importlib.import_module(f"{package.__name__}.{module}")
        classes = [
            c
            for c in vars(loaded).values()
            if inspect.isclass(c)
            and issubclass(c, Plugin)
            and c.__module__ == loaded.__name__
            and c.kind == kind
            and not c.__name__.startswith("_")
        ]
        if len(classes) != 1:
            raise RuntimeError(f"{loaded.__name__} must hold exactly one {kind} plug-in, found {len(classes)}")
        plugins[module] = classes[0]
    return plugins


def names(kind: str) -> list[str]:
    """Return all names by which a study may call plug-ins of a kind, earlier names included, in order."""
    return sorted([*discover(kind), *_aliases(kind)])


@functools.cache
def _aliases(kind: str) -> dict[str, str]:
    """Return the present name for each earlier name."""
    return {alias: name for name, cls in discover(kind).items() for alias in cls.aliases}


def get(kind: str, name: str, where: str = "") -> type[Plugin]:
    """Return the plug-in class with that name, or with that earlier name.

    Raises UserError, which suggests the closest present name, for an unknown one.
    """
    plugins = discover(kind)
    present = _aliases(kind).get(name, name)
    if present not in plugins:
        raise UserError(where or kind, f"unknown {kind} {name!r}", did_you_mean(name, plugins))
    return plugins[present]


def build(kind: str, spec: str | dict[str, Any] | Plugin, where: str = "") -> Any:
    """Make a plug-in from `name` or `{name: ..., setting: value}`; return one that is made already as it is.

    `where` is the place that errors name. Raises UserErrors that name each wrong key, with the closest known one.
    """
    where = where or kind
    if isinstance(spec, Plugin):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        article = "an" if kind[0] in "aeiou" else "a"
        raise UserError(where, f"{article} {kind} is a name, or a mapping with the key 'name'", f"got {spec!r}")
    cls = get(kind, spec["name"], where)
    return validated(cls, {k: v for k, v in spec.items() if k != "name"}, f"{where} ({spec['name']})")


def validated(cls: type[BaseModel], values: dict[str, Any], where: str) -> Any:
    """Return `cls(**values)`. Raises UserErrors, one for each error of pydantic, that say what to correct."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UserErrors(_explain(error, cls, values, where)) from None


def _explain(error: ValidationError, cls: type[BaseModel], values: dict[str, Any], where: str) -> list[UserError]:
    """Return a UserError for each error of pydantic."""
    lines: list[UserError] = []
    for item in error.errors():
        loc, value, context = item["loc"], item["input"], item.get("ctx", {})
        place = ".".join([where, *_path(loc, values)])
        cause = context.get("error")
        if isinstance(cause, UserErrors):
            lines += [UserError(_inside(place, e.where), e.what, e.remedy) for e in cause.errors]
        elif isinstance(cause, UserError):
            lines.append(UserError(_inside(place, cause.where), cause.what, cause.remedy))
        elif item["type"] == "extra_forbidden":
            key = str(loc[-1])
            lines.append(UserError(place, f"unknown key {key!r}", did_you_mean(key, _keys(cls, loc))))
        elif item["type"] == "string_type" and isinstance(value, bool | int | float):
            meaning = "true or false, as YAML reads no, yes, off and on" if isinstance(value, bool) else "a number"
            lines.append(UserError(place, f"must be text, and is {meaning} (got {value!r})", "put it in quotes"))
        elif item["type"] == "literal_error":
            known = [a or b for a, b in re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))]
            lines.append(UserError(place, f"unknown value {value!r}", did_you_mean(str(value), known)))
        elif item["type"] == "too_short" and len(value) >= context["min_length"]:
            continue  # its wrong items make it too short, and each has a line of its own
        else:
            shown = "" if item["type"] == "missing" else f" (got {value!r})"
            lines.append(UserError(place, item["msg"] + shown[:120]))
    return lines


def _path(loc: tuple[int | str, ...], values: Any) -> list[str]:
    """Return `loc` as the user's file has it, where a single value may stand for a list of one."""
    path = []
    for part in loc:
        if isinstance(part, int) and not isinstance(values, list | tuple):
            continue
        if part != "[key]":
            path.append(str(part))
        try:
            values = values[part]
        except (LookupError, TypeError):
            values = None
    return path


def _inside(place: str, inner: str) -> str:
    """Return the full place of an error that a validator inside the value at `place` raised about `inner`."""
    if inner.startswith(HERE):
        return place + inner.removeprefix(HERE)
    return place if place.endswith(f".{inner}") else f"{place}.{inner}"


def _keys(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the model at `loc`, following nested models."""
    for part in loc[:-1]:
        field = cls.model_fields.get(str(part))
        cls = (field and _model(field.annotation)) or cls
    return [f.alias or name for name, f in cls.model_fields.items()]


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `tuple[Grid, ...]`, or None."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)
