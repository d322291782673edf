"""Plug-ins: one class, one file. A plug-in is found when its file lies in the right folder.

A plug-in is a frozen pydantic model. Its fields are its settings, with bounds and a description. Its methods are its
behaviour. Its name is the name of its file; short ones of this package share a file, which SHARED_FILES of the package
of their kind names. The module `places` says where else plug-ins may lie.
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
from .console import say
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
    plugin = next(places.named_by(file), None)
    if plugin:
        return get(*plugin)
    found = places.in_file(file)
    if file.parent.resolve() not in _added:
        _add(file)
    return get(found.plugin.kind, found.name)


def _add(place: Path) -> None:
    resolved = place.resolve()
    if resolved not in _added:
        _added.append(resolved)
        forget()


def forget() -> None:
    """Look for all plug-ins anew when they are next asked for. Classes that are imported stay as they are."""
    places.forget()
    for cached in (find, _found, discover, _aliases):
        cached.cache_clear()


@functools.cache
def find(kind: str, name: str) -> type[Plugin] | None:
    """Return the plug-in of a kind with that present name, and import no other; None if none has it.

    Raises UserError for a file of that name that fails, and where two plug-ins of the kind have it.
    """
    found = [places.built_in_file(kind, name)] if name in places.built_in_modules(kind) else []
    files = (file for file in itertools.chain.from_iterable(map(places.files, _added)) if file.stem == name)
    outside = [other for other in (*places.installed(kind, name), *map(places.in_file, files)) if _is(other, kind)]
    if outside and not found:
        # Studies and old specifications may still say an earlier name.
        found = [built_in for built_in in places.built_in(kind) if name in built_in.plugin.aliases]
    found += outside
    if not found:
        return None
    if len(found) > 1:
        raise UserError(found[1].origin, f"there is another {kind} {name!r}: {found[0].place}", "rename one of the two")
    found[0].plugin.call_it(name)
    return found[0].plugin


@functools.cache
def _found(kind: str) -> dict[str, Found]:
    """Return all plug-ins of a kind with the places where they were found, by name.

    One that cannot be had is left out with a warning, and does not keep others from being used.
    """
    known: dict[str | type[Plugin], Found] = {}
    every = itertools.chain(places.built_in(kind), _each(kind))
    for found in every:
        words: list[str | type[Plugin]] = [found.name, *found.plugin.aliases, found.plugin]
        taken = next((known[word] for word in words if word in known), None)
        if taken:
            problem = f"there is another {kind} {found.name!r}: {taken.place}"
            _warn(str(UserError(found.origin, problem, "rename one of the two")))
            continue
        known |= dict.fromkeys(words, found)
        found.plugin.call_it(found.name)
    return {found.name: found for found in known.values()}


def _each(kind: str) -> Iterator[Found]:
    """Yield the plug-ins of a kind in installed packages, and in the folders and files that were added."""
    packages = [places.installed(kind, name) for name in sorted(places.named_by_packages(kind).names)]
    added = [map(places.in_file, [file]) for folder in _added for file in places.files(folder)]
    for look in (*packages, *added):
        try:
            yield from (found for found in look if _is(found, kind))
        except UserError as fault:
            _warn(str(fault))


def _is(found: Found, kind: str) -> bool:
    return found.plugin.kind == kind


@functools.cache
def _warn(line: str) -> None:
    """Print a warning, each once in a process: files are looked at for every kind."""
    say(f"warning: {line}")


@functools.cache
def discover(kind: str) -> dict[str, type[Plugin]]:
    """Return all plug-in classes of a kind by name: of the package, of installed packages, of folders of the project.

    Those that cannot be imported, and the second one of a name, are left out with a warning.
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


def get(kind: str, name: str, where: str | None = None) -> type[Plugin]:
    """Return the plug-in class with that name, with that earlier name, or at that path, `module:Class`.

    No other plug-in of a project is imported. Raises UserError, which suggests the closest present name, for an unknown
    one. `where` is the place that it names, by default the kind.
    """
    place = kind if where is None else where
    if places.is_path(name):
        cls = places.at_path(kind, name, place)
        if find(kind, cls.name) is not cls:
            cls.call_it(places.name_of(cls))
        return cls
    found = find(kind, name)
    if not found:
        earlier = (built_in.name for built_in in places.built_in(kind) if name in built_in.plugin.aliases)
        found = find(kind, next(earlier, name))
    if found:
        return found
    plugins = discover(kind)
    present = _aliases(kind).get(name, name)
    if present not in plugins:
        raise UserError(place, f"unknown {kind} {name!r}", did_you_mean(name, plugins))
    return plugins[present]


def line_of(error: Exception) -> str:
    """Return file and line of an error that passed through a plug-in of the user's; empty for any other error."""
    lines = (places.line_of(error, place.parent if place.is_file() else place) for place in _added)
    return next(filter(None, lines), "")


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
    # Several settings may name one plug-in whose file fails.
    return list({str(line): line for line in lines}.values())


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

    A validator counts from its value where it names nothing, or begins with a dot (a key) or a space (a plug-in). An
    error inside a file of a plug-in has that file as its place.
    """
    if inner.partition(", line ")[0].endswith(".py"):
        return inner
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
