"""Plug-ins: one class, one file. A plug-in is found when its file lies in the right folder.

A plug-in is a frozen pydantic model. Its fields are its settings, with bounds and a description. Its methods are its
behaviour. Its name is the name of its file; short ones of this package share a file, which SHARED_FILES of the package
of their kind names. Others lie in installed packages, and in files of a project. A folder of a project becomes a
package, so that its files can import each other with `from ._helper import`. The folder itself is on no path for
imports, and nothing in it hides an installed module.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import itertools
import operator
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from . import digest
from .console import say
from .errors import UserError, UserErrors, did_you_mean
from .plugin import KINDS as KINDS
from .plugin import Plugin

BUILT_IN = "built in"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that ids and names of files can hold. A hyphen stands for a dot in the path of a class."""


@dataclass(frozen=True)
class Found:
    """A plug-in under the name that studies call it by, and the place that it comes from, in words."""

    name: str
    plugin: type[Plugin]
    origin: str

    @property
    def place(self) -> str:
        """Its file, or its module with the origin of that."""
        return self.origin if self.origin.endswith(".py") else f"{self.plugin.__module__} ({self.origin})"


def built_in(kind: str) -> Iterator[Found]:
    """Yield the plug-ins of a kind in this package. Raises RuntimeError for a module that holds not exactly one."""
    return (built_in_file(kind, name) for name in built_in_modules(kind))


@functools.cache
def built_in_modules(kind: str) -> dict[str, str]:
    """Return the module of each plug-in of a kind in this package, by its name, in order, without importing one.

    It has the plug-in's name, or is the one that SHARED_FILES of the package names.
    """
    package = importlib.import_module(f"{digest.PACKAGE}.{kind}s")
    own = {m.name: m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
    files = own | getattr(package, "SHARED_FILES", {})
    return {name: f"{package.__name__}.{files[name]}" for name in sorted(files)}


def built_in_file(kind: str, name: str) -> Found:
    """Return the plug-in of a name in this package. Raises RuntimeError if its file does not hold exactly one."""
    module = importlib.import_module(built_in_modules(kind)[name])
    classes = [cls for cls in _plugins(module) if (cls.kind, cls.name) == (kind, name)]
    if len(classes) != 1:
        raise RuntimeError(f"{module.__name__} must hold exactly one {kind} {name!r}, found {len(classes)}")
    return Found(name, classes[0], BUILT_IN)


@functools.cache
def _of_all_packages() -> Any:
    """Return the entry points of all installed packages: reading them takes longer than choosing among them."""
    return entry_points()


def named_by_packages(kind: str) -> EntryPoints:
    """Return the entry points of installed packages for a kind."""
    found: EntryPoints = _of_all_packages().select(group=f"{digest.PACKAGE}.{kind}s")
    return found


def installed(kind: str, name: str) -> Iterator[Found]:
    """Yield the plug-ins that installed packages name so, as entry points of the group `fedshift.KINDs`.

    Raises UserError for an entry point that cannot be imported, or is not a plug-in of that kind.
    """
    for point in sorted(named_by_packages(kind).select(name=name)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        where = f"{origin}, entry point {point.name}"
        if not NAME.fullmatch(point.name):
            raise UserError(where, "cannot name a plug-in", "the package must use letters, digits and underscores")
        with _importing(where):
            cls = point.load()
        yield Found(point.name, _require(cls, kind, point.value, where), origin)


def named_by(file: Path) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the plug-ins of this package, and of installed ones, whose module is a file."""
    for kind in KINDS:
        outside = {point.name: point.module for point in named_by_packages(kind)}
        for name, module in (built_in_modules(kind) | outside).items():
            with contextlib.suppress(ImportError, ValueError):  # a package that is broken, and holds another file
                spec = importlib.util.find_spec(module)
                if spec and spec.origin and Path(spec.origin).resolve() == file.resolve():
                    yield kind, name


def plugin_files(place: Path) -> list[Path]:
    """Return the files of plug-ins in a folder, in order, or the one file itself."""
    if not place.is_dir():
        return [place]
    return sorted(f for f in place.glob("*.py") if not f.name.startswith(("_", ".")))


def in_file(file: Path) -> Found:
    """Return the plug-in in a file of a project; its name is the name of the file.

    Raises UserError, with the line, for a file that cannot be imported, and for one without exactly one plug-in.
    """
    shown = _shown(file.absolute())
    if not (NAME.fullmatch(file.stem) and file.suffix == ".py"):
        raise UserError(shown, "cannot name a plug-in", "use letters, digits and underscores, such as my_method.py")
    folder = file.parent.resolve()
    with _importing(shown, folder):
        module = importlib.import_module(f"{_package(folder)}.{file.stem}")
    classes = _plugins(module)
    if len(classes) != 1:
        remedy = "give each its own file" if classes else "begin the name of a helper with an underscore"
        raise UserError(shown, f"holds {len(classes)} plug-ins, and must hold exactly one", remedy)
    return Found(file.stem, classes[0], shown)


def _package(folder: Path) -> str:
    """Make a folder a package, whose name is that of no other folder, and return the name."""
    name = f"{digest.PACKAGE}_plugins_{digest.of(str(folder), 8)}"
    if name in sys.modules:
        return name
    start = folder / "__init__.py"
    spec: ModuleSpec | None = ModuleSpec(name, None)
    if start.exists():
        spec = importlib.util.spec_from_file_location(name, start)
    assert spec
    spec.submodule_search_locations = [str(folder)]
    # The module is there before its code runs, as in any import: its files may import each other from it.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if spec.loader:
        try:
            spec.loader.exec_module(module)
        except Exception:
            del sys.modules[name]
            raise
    return name


def _plugins(module: ModuleType) -> list[type[Plugin]]:
    """Return the plug-ins that a module defines. Classes whose names begin with an underscore are none."""
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Plugin) and c.kind]
    return [c for c in dict.fromkeys(classes) if c.__module__ == module.__name__ and not c.__name__.startswith("_")]


@contextlib.contextmanager
def _importing(where: object, folder: Path | None = None) -> Iterator[None]:
    """Raise UserError for an error of the block, which imports a plug-in: with the line, if that lies in the folder."""
    try:
        yield
    except UserError as error:
        raise UserError(line_in(error, folder) or where, str(error)) from error
    except Exception as error:
        first = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
        problem = f"cannot be imported: {type(error).__name__}: {first}"
        raise UserError(line_in(error, folder) or where, problem, _remedy(error, folder)) from error


def line_in(error: Exception, folder: Path | None) -> str:
    """Return file and line of an error: the last line in the folder; nothing if no line of it lies there."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if folder and Path(f.filename).parent == folder]
    return f"{_shown(Path(frames[-1].filename))}, line {frames[-1].lineno}" if frames else ""


def _remedy(error: Exception, folder: Path | None) -> str:
    if not folder:
        return ""
    # The folder is a package of its own and on no path, so its files import each other with a dot.
    if isinstance(error, ModuleNotFoundError) and error.name and (folder / f"{error.name}.py").exists():
        return f"{error.name}.py lies beside it: write `from .{error.name} import ...`"
    return "correct the file"


def _shown(path: Path) -> str:
    """Return a path as messages give it: from the current folder, if it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def name_of(cls: type[Plugin]) -> str:
    """Return the path of a class in letters that ids and file names allow: `lab-half--Half` for `lab.half:Half`."""
    return f"{cls.__module__}:{cls.__qualname__}".replace(":", "--").replace(".", "-")


def at_path(kind: str, path: str, where: str) -> type[Plugin]:
    """Return the plug-in class at a path `module:Class`, installed or in this folder, or raise UserError."""
    path = path.replace("--", ":").replace("-", ".")
    name, _, attribute = path.partition(":")
    if not NAME.fullmatch(path.replace(".", "_").replace(":", "_")) or not (name and attribute):
        raise UserError(where, f"{path!r} is not the path of a class", "write module:Class, such as my_methods:FedHalf")
    package, here = name.partition(".")[0], str(Path.cwd())
    # Appended, not put in front: a file of the project must not hide an installed module of the same name.
    if package and importlib.util.find_spec(package) is None and here not in sys.path:
        sys.path.append(here)
    try:
        with _importing(where):
            module = importlib.import_module(name)
    except UserError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            remedy = "modules are looked for among installed packages and in the project's folder"
            raise UserError(where, f"{path!r}: there is no module {cause.name!r}", remedy) from None
        raise
    try:
        cls = operator.attrgetter(attribute)(module)
    except AttributeError:
        classes = [cls.__name__ for cls in _plugins(module) if cls.kind == kind]
        raise UserError(where, f"{path!r}: {name} has no {attribute!r}", did_you_mean(attribute, classes)) from None
    return _require(cls, kind, path, where)


def _require(cls: object, kind: str, path: str, where: str) -> type[Plugin]:
    """Return a class if it is a plug-in of a kind. Raises UserError if it is not."""
    what = "another class" if inspect.isclass(cls) else "no class"
    if inspect.isclass(cls) and issubclass(cls, Plugin):
        if cls.kind == kind:
            return cls
        what = f"a plug-in of the kind {cls.kind}"
    problem = f"{path!r} is {what}, and no plug-in of the kind {kind}"
    raise UserError(where, problem, f"give a class of the kind {kind}")


_added: list[Path] = []
"""Folders and single files of plug-ins of this process, in the order in which they were added."""


def add_folder(folder: Path) -> None:
    """Let plug-ins in a folder be found: files without a leading "_". Raises UserError where there is no folder."""
    if not folder.is_dir():
        raise UserError("plugins", f"no such folder: {folder}", "plug-ins of your own lie in a folder of the project")
    _add(folder)


def add_file(file: Path) -> type[Plugin]:
    """Return the plug-in in a file, which is found by its name from now on. Raises UserError if it holds none."""
    if not file.is_file():
        raise UserError(file, "no such file", "give the file of one plug-in")
    plugin = next(named_by(file), None)
    if plugin:
        return get(*plugin)
    found = in_file(file)
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
    # What is installed, and the files of this package, are looked at anew.
    for cached in (_of_all_packages, built_in_modules, find, _found, discover, _aliases):
        cached.cache_clear()


@functools.cache
def find(kind: str, name: str) -> type[Plugin] | None:
    """Return the plug-in of a kind with that present name, and import no other; None if none has it.

    Raises UserError for a file of that name that fails, and where two plug-ins of the kind have it.
    """
    found = [built_in_file(kind, name)] if name in built_in_modules(kind) else []
    own = (in_file(file) for place in _added for file in plugin_files(place) if file.stem == name)
    outside = [other for other in (*installed(kind, name), *own) if other.plugin.kind == kind]
    if outside and not found:
        # Studies and old specifications may still say an earlier name.
        found = [other for other in built_in(kind) if name in other.plugin.aliases]
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
    every = itertools.chain(built_in(kind), _each(kind))
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
    packages = [installed(kind, name) for name in sorted(named_by_packages(kind).names)]
    added = [map(in_file, [file]) for folder in _added for file in plugin_files(folder)]
    for look in (*packages, *added):
        try:
            yield from (found for found in look if found.plugin.kind == kind)
        except UserError as fault:
            _warn(str(fault))


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
    if ":" in name or "--" in name:  # the path of a class, as people and `name_of` write it
        cls = at_path(kind, name, place)
        if find(kind, cls.name) is not cls:
            cls.call_it(name_of(cls))
        return cls
    found = find(kind, name)
    if not found:
        earlier = (other.name for other in built_in(kind) if name in other.plugin.aliases)
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
    lines = (line_in(error, place.parent if place.is_file() else place) for place in _added)
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
    where = kind if where is None else where
    spec = {"name": spec} if isinstance(spec, str) else spec
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
        loc = item["loc"]
        value = item["input"]
        context = item.get("ctx", {})
        place = ".".join([where, *_path(loc, values)])
        cause = context.get("error")
        if isinstance(cause, UserError):
            causes = cause.errors if isinstance(cause, UserErrors) else [cause]
            lines += [UserError(_inside(place, e.where), e.what, e.remedy) for e in causes]
        elif item["type"] == "extra_forbidden":
            key = str(loc[-1])
            lines.append(UserError(place, f"unknown key {key!r}", did_you_mean(key, _keys(cls, loc))))
        elif item["type"] == "string_type" and isinstance(value, bool | int | float):
            meaning = "true or false, as YAML reads no, yes, off and on" if isinstance(value, bool) else "a number"
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
