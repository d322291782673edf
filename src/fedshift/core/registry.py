"""Plug-ins: one class, one file. A plug-in is found when its file lies in the right folder.

A plug-in is a frozen pydantic model. Its fields are its settings, with bounds and a description. Its methods are its
behaviour. Its name is the name of its file. The module `places` says where else plug-ins may lie.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from . import places
from .errors import UserError, UserErrors, did_you_mean
from .places import Found
from .plugin import KINDS as KINDS
from .plugin import Plugin

_added: list[Path] = []
"""Folders and single files of plug-ins of this process, in the order in which they were added."""


def add_folder(folder: Path) -> None:
    """Let the plug-ins in a folder be found too: each file whose name does not begin with "_" is one, of any kind.

    Raises UserError if the folder does not exist.
    """
    if not folder.is_dir():
        raise UserError("plugins", f"no such folder: {folder}", "plug-ins of your own lie in a folder of the project")
    _add(folder)


def add_file(file: Path) -> type[Plugin]:
    """Return the plug-in in a file, which is found by its name from now on. Raises UserError if it holds none."""
    if not file.is_file():
        raise UserError(file, "no such file", "give the file of one plug-in")
    for kind in KINDS:
        for cls in discover(kind).values():
            if Path(inspect.getfile(cls)).resolve() == file.resolve():
                return cls
    found = places.in_file(file)
    _add(file)
    return discover(found.plugin.kind)[found.name]


def _add(place: Path) -> None:
    resolved = place.resolve()
    if resolved not in _added:
        _added.append(resolved)
        forget()


def forget() -> None:
    """Look for all plug-ins anew when they are next asked for. Classes that are imported stay as they are."""
    places.forget()
    for cached in (_found, _alone, discover, _aliases):
        cached.cache_clear()


@functools.cache
def _found(kind: str) -> dict[str, Found]:
    """Return all plug-ins of a kind with the places where they were found, by name.

    Raises UserErrors for files that hold no plug-in or fail, and for two plug-ins with one name.
    """
    outside = [*places.installed(kind), *(found for found in _in_added() if found.plugin.kind == kind)]
    known: dict[str | type[Plugin], Found] = {}
    for found in itertools.chain(places.built_in(kind), outside):
        words: set[str | type[Plugin]] = {found.name, *found.plugin.aliases, found.plugin}
        for word in words:
            if word in known:
                problem = f"there is another {kind} {found.name!r}: {known[word].place}"
                raise UserError(found.origin, problem, "rename one of the two")
            known[word] = found
        found.plugin.call_it(found.name)
    return {found.name: found for found in known.values()}


def _in_added() -> Iterator[Found]:
    """Yield the plug-ins in the folders and files that were added. Raises UserErrors for all that fail."""
    faults: list[UserError] = []
    for file in itertools.chain.from_iterable(map(places.files, _added)):
        try:
            yield places.in_file(file)
        except UserError as fault:
            faults.append(fault)
    if faults:
        raise UserErrors(faults)


@functools.cache
def discover(kind: str) -> dict[str, type[Plugin]]:
    """Return all plug-in classes of a kind by name: of the package, of installed packages, of folders of the project.

    Raises UserErrors for files that hold no plug-in or fail, and for two plug-ins with one name.
    """
    return {name: found.plugin for name, found in _found(kind).items()}


def origins(kind: str) -> dict[str, str]:
    """Return where each plug-in of a kind comes from: `built in`, a file, or a package with its version."""
    return {name: found.origin for name, found in _found(kind).items()}


def names(kind: str) -> list[str]:
    """Return all names by which a study may call plug-ins of a kind, earlier names included, in order."""
    return sorted([*discover(kind), *_aliases(kind)])


@functools.cache
def _aliases(kind: str) -> dict[str, str]:
    """Return the present name for each earlier name."""
    return {alias: name for name, cls in discover(kind).items() for alias in cls.aliases}


@functools.cache
def _alone(kind: str, name: str) -> type[Plugin] | None:
    """Return the built-in plug-in with that name, and import no other; None where others of its kind must be known."""
    if _added or places.named_by_packages(kind) or name not in places.built_in_names(kind):
        return None
    return places.built_in_file(kind, name).plugin


def get(kind: str, name: str, where: str | None = None) -> type[Plugin]:
    """Return the plug-in class with that name, with that earlier name, or at that path, `module:Class`.

    Raises UserError, which suggests the closest present name, for an unknown one. `where` is the place that it names,
    by default the kind.
    """
    alone = _alone(kind, name)
    if alone:
        return alone
    plugins = discover(kind)
    place = where
    if place is None:
        place = kind
    if places.is_path(name):
        cls = places.at_path(kind, name, place)
        if cls not in plugins.values():
            cls.call_it(places.name_of(cls))
        return cls
    present = _aliases(kind).get(name, name)
    if present not in plugins:
        raise UserError(place, f"unknown {kind} {name!r}", did_you_mean(name, plugins))
    return plugins[present]


def packages() -> set[str]:
    """Return the names of all packages, fedshift among them, that define plug-ins in this process."""
    return {cls.__module__.partition(".")[0] for cls in _subclasses(Plugin)}


def _subclasses(cls: type[Plugin]) -> Iterator[type[Plugin]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def build(kind: str, spec: str | dict[str, Any] | Plugin, where: str | None = None) -> Any:
    """Make a plug-in from `name` or `{name: ..., setting: value}`; return one that is made already as it is.

    `where` is the place that errors name, by default the kind; "" in a validator inside a model, which adds the place
    of its value. Raises UserErrors that name each wrong key, with the closest known one.
    """
    if isinstance(spec, Plugin):
        return spec
    if where is None:
        where = kind
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        article = "a"
        if kind[0] in "aeiou":
            article = "an"
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
        loc = item["loc"]
        value = item["input"]
        context = item.get("ctx", {})
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
            meaning = "a number"
            if isinstance(value, bool):
                meaning = "true or false, as YAML reads no, yes, off and on"
            lines.append(UserError(place, f"must be text, and is {meaning} (got {value!r})", "put it in quotes"))
        elif item["type"] == "literal_error":
            # pydantic gives the values in words: 'a', 'b' or 'c'.
            allowed = [a or b for a, b in re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))]
            lines.append(UserError(place, f"unknown value {value!r}", did_you_mean(str(value), allowed)))
        elif item["type"] == "too_short" and len(value) >= context["min_length"]:
            continue  # its wrong items make it too short, and each of them has a line
        else:
            text = item["msg"]
            if item["type"] != "missing":
                text += f" (got {value!r})"[:120]
            lines.append(UserError(place, text))
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
    """Return the full place of an error that a validator inside the value at `place` raised about `inner`.

    A validator counts from its value where it names nothing, or begins with a dot (a key) or a space (a plug-in).
    """
    if not inner or inner.startswith((".", " ")):
        return place + inner
    if place.endswith(f".{inner}"):
        return place
    return f"{place}.{inner}"


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
