"""The registry: it finds plug-ins by kind and name, and builds them from settings.

A plug-in is a frozen pydantic model in a file of its own, whose name is the plug-in's name. The model's fields are the
plug-in's settings, with bounds and a description. Short plug-ins of this package share a file; SHARED_FILES in the
package of their kind maps their names to files. Further plug-ins lie in installed packages and in files of a project. A
folder of a project becomes a package, so that its files can import each other with `from ._helper import`. The folder
is not added to `sys.path`, so no file in it hides an installed module.
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
"""Allowed names of plug-ins. Ids and file names contain them, where a hyphen stands for a dot of a class's path."""


@dataclass(frozen=True)
class Found:
    """A plug-in class, the name by which studies refer to it, and its origin.

    `origin` is `built in`, the path of a file, or an installed package with its version.
    """

    name: str
    plugin: type[Plugin]
    origin: str

    @property
    def place(self) -> str:
        """The plug-in's location for messages: its file if the origin is one, or else its module with the origin."""
        return self.origin if self.origin.endswith(".py") else f"{self.plugin.__module__} ({self.origin})"


def built_in(kind: str) -> Iterator[Found]:
    """Yield the plug-ins of a kind that come with fedshift. Raises RuntimeError as `built_in_file`."""
    return (built_in_file(kind, name) for name in built_in_modules(kind))


@functools.cache
def built_in_modules(kind: str) -> dict[str, str]:
    """Return the full module name of each plug-in of a kind that comes with fedshift, sorted by the plug-in's name.

    A module has the plug-in's name, or SHARED_FILES of the package names it. No module is imported.
    """
    package = importlib.import_module(f"{digest.PACKAGE}.{kind}s")
    own = {m.name: m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")}
    files = own | getattr(package, "SHARED_FILES", {})
    return {name: f"{package.__name__}.{files[name]}" for name in sorted(files)}


def built_in_file(kind: str, name: str) -> Found:
    """Return the plug-in with a name that comes with fedshift.

    Raises RuntimeError if its file does not define exactly one plug-in of the kind with this name.
    """
    module = importlib.import_module(built_in_modules(kind)[name])
    classes = [cls for cls in _plugins(module) if (cls.kind, cls.name) == (kind, name)]
    if len(classes) != 1:
        raise RuntimeError(f"{module.__name__} must hold exactly one {kind} {name!r}, found {len(classes)}")
    return Found(name, classes[0], BUILT_IN)


@functools.cache
def _of_all_packages() -> Any:
    """Return the entry points of all installed packages. They are read once per process, since reading is slow."""
    return entry_points()


def named_by_packages(kind: str) -> EntryPoints:
    """Return the entry points by which installed packages declare plug-ins of a kind (group `fedshift.KINDs`)."""
    found: EntryPoints = _of_all_packages().select(group=f"{digest.PACKAGE}.{kind}s")
    return found


def installed(kind: str, name: str) -> Iterator[Found]:
    """Yield the plug-ins of a kind that installed packages declare under a name (entry points of `fedshift.KINDs`).

    Raises UserError for an entry point that cannot be imported or is not a plug-in of that kind.
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
    """Yield (kind, name) of each plug-in of fedshift or of an installed package whose source file is `file`."""
    for kind in KINDS:
        outside = {point.name: point.module for point in named_by_packages(kind)}
        for name, module in (built_in_modules(kind) | outside).items():
            with contextlib.suppress(ImportError, ValueError):  # a package that is broken, and holds another file
                spec = importlib.util.find_spec(module)
                if spec and spec.origin and Path(spec.origin).resolve() == file.resolve():
                    yield kind, name


def plugin_files(place: Path) -> list[Path]:
    """Return the sorted files of plug-ins in the folder `place`, or only `place` itself if it is a file.

    Files whose names begin with an underscore or a dot are left out.
    """
    if not place.is_dir():
        return [place]
    return sorted(f for f in place.glob("*.py") if not f.name.startswith(("_", ".")))


def in_file(file: Path) -> Found:
    """Import a file of a project and return the plug-in in it, whose name is the name of the file.

    Raises UserError, with the line, if the file cannot be imported, and if it does not define exactly one plug-in.
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
    """Make a folder of plug-ins importable as a package, and return the package's name.

    The name contains a digest of the folder's path, so that no two folders share one.
    """
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
    """Return the plug-in classes that a module defines, except for those whose names begin with an underscore."""
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Plugin) and c.kind]
    return [c for c in dict.fromkeys(classes) if c.__module__ == module.__name__ and not c.__name__.startswith("_")]


@contextlib.contextmanager
def _importing(where: object, folder: Path | None = None) -> Iterator[None]:
    """Turn any error of the block, which imports a plug-in, into UserError.

    The error names the line if it lies in a file of `folder`, and `where` otherwise.
    """
    try:
        yield
    except UserError as error:
        raise UserError(line_in(error, folder) or where, str(error)) from error
    except Exception as error:
        first = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
        problem = f"cannot be imported: {type(error).__name__}: {first}"
        raise UserError(line_in(error, folder) or where, problem, _remedy(error, folder)) from error


def line_in(error: Exception, folder: Path | None) -> str:
    """Return `FILE, line N` for an error: the last line of its traceback in `folder`, or the place of a syntax error.

    Return "" if no line of the traceback lies in the folder.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_shown(Path(error.filename))}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if folder and Path(f.filename).parent == folder]
    return f"{_shown(Path(frames[-1].filename))}, line {frames[-1].lineno}" if frames else ""


def _remedy(error: Exception, folder: Path | None) -> str:
    """Return the remedy for an error while a plug-in is imported from `folder`; "" for one of an installed package."""
    if not folder:
        return ""
    # The folder is a package of its own and on no path, so its files import each other with a dot.
    if isinstance(error, ModuleNotFoundError) and error.name and (folder / f"{error.name}.py").exists():
        return f"{error.name}.py lies beside it: write `from .{error.name} import ...`"
    return "correct the file"


def _shown(path: Path) -> str:
    """Return a path as text for messages: relative to the current folder if it lies in there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def name_of(cls: type[Plugin]) -> str:
    """Return the path of a class in characters that ids and file names allow: `lab-half--Half` for `lab.half:Half`."""
    return f"{cls.__module__}:{cls.__qualname__}".replace(":", "--").replace(".", "-")


def at_path(kind: str, path: str, where: str) -> type[Plugin]:
    """Import and return the plug-in class at a path `module:Class`, or as `name_of` writes the path.

    The module is installed or lies in the current folder. Raises UserError, with the key `where`, if the path is
    malformed, the module or class does not exist, or the class is no plug-in of the kind.
    """
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
    """Return `cls` unchanged if it is a plug-in class of the kind.

    Otherwise raise UserError with the key `where` and the `path` by which the class was found.
    """
    what = "another class" if inspect.isclass(cls) else "no class"
    if inspect.isclass(cls) and issubclass(cls, Plugin):
        if cls.kind == kind:
            return cls
        what = f"a plug-in of the kind {cls.kind}"
    problem = f"{path!r} is {what}, and no plug-in of the kind {kind}"
    raise UserError(where, problem, f"give a class of the kind {kind}")


_added: list[Path] = []
"""Folders and single files in which this process looks for plug-ins, in the order in which they were added."""


def add_folder(folder: Path) -> None:
    """Add a folder in whose files plug-ins are found from now on, except for files with a leading underscore.

    Raises UserError if the folder does not exist.
    """
    if not folder.is_dir():
        raise UserError("plugins", f"no such folder: {folder}", "plug-ins of your own lie in a folder of the project")
    _add(folder)


def add_file(file: Path) -> type[Plugin]:
    """Return the plug-in class in a file, and let the registry find it by its name from now on.

    Raises UserError if the file does not exist, cannot be imported or does not define exactly one plug-in.
    """
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
    """Add a folder or file in which plug-ins are found, unless it was added before."""
    resolved = place.resolve()
    if resolved not in _added:
        _added.append(resolved)
        forget()


def forget() -> None:
    """Clear all caches of the registry, so that plug-ins are searched for again. Imported classes stay loaded."""
    for cached in (_of_all_packages, built_in_modules, find, _found, discover, _aliases):
        cached.cache_clear()


@functools.cache
def find(kind: str, name: str) -> type[Plugin] | None:
    """Return the plug-in class of a kind with a current name, or None if there is none. No other plug-in is imported.

    Raises UserError if a file with that name cannot be imported, or if two plug-ins of the kind have the name.
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
    """Return all plug-ins of a kind with their origins, by name.

    A plug-in that cannot be imported, or whose name is taken, is left out with a warning.
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
    """Yield the plug-ins of a kind in installed packages and in the added folders and files.

    A plug-in that cannot be imported is left out with a warning.
    """
    packages = [installed(kind, name) for name in sorted(named_by_packages(kind).names)]
    added = [map(in_file, [file]) for folder in _added for file in plugin_files(folder)]
    for look in (*packages, *added):
        try:
            yield from (found for found in look if found.plugin.kind == kind)
        except UserError as fault:
            _warn(str(fault))


@functools.cache
def _warn(line: str) -> None:
    """Print a warning on standard error, once per process: a broken file is imported once for each kind of plug-in."""
    say(f"warning: {line}")


@functools.cache
def discover(kind: str) -> dict[str, type[Plugin]]:
    """Return all plug-in classes of a kind by name: of fedshift, of installed packages and of the project's folders.

    A plug-in that cannot be imported, or whose name is taken, is left out with a warning.
    """
    return {name: found.plugin for name, found in _found(kind).items()}


def origins(kind: str) -> dict[str, str]:
    """Return the origin of each plug-in of a kind, by name: `built in`, a file, or a package with its version."""
    return {name: found.origin for name, found in _found(kind).items()}


def names(kind: str) -> list[str]:
    """Return all names by which a study may refer to plug-ins of a kind, earlier names included, sorted."""
    return sorted([*discover(kind), *_aliases(kind)])


@functools.cache
def _aliases(kind: str) -> dict[str, str]:
    """Return the current name of a plug-in of the kind for each of its earlier names."""
    return {alias: name for name, cls in discover(kind).items() for alias in cls.aliases}


def get(kind: str, name: str, where: str | None = None) -> type[Plugin]:
    """Return the plug-in class of a kind by its current name, by an earlier name, or by its path `module:Class`.

    No other plug-in of a project is imported if the name is known. Raises UserError, which suggests the closest name,
    for an unknown name; `where` is the key that the error names, by default the kind.
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
    """Return `FILE, line N` of the last line in a user's plug-in that an error passed through, or "" if none did."""
    lines = (line_in(error, place.parent if place.is_file() else place) for place in _added)
    return next(filter(None, lines), "")


def packages() -> set[str]:
    """Return the names of all top-level packages, fedshift included, that have defined plug-ins in this process."""
    return {cls.__module__.partition(".")[0] for cls in _subclasses(Plugin)}


def _subclasses(cls: type[Plugin]) -> Iterator[type[Plugin]]:
    """Yield all direct and indirect subclasses."""
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def build(kind: str, spec: str | dict[str, Any] | Plugin, where: str | None = None) -> Any:
    """Return a plug-in made from its name or from `{name: ..., setting: value}`. A plug-in is returned unchanged.

    `where` is the key that errors name, by default the kind. A validator inside a pydantic model passes "", and the
    model adds its own key. Raises UserErrors that name each wrong setting and suggest the closest known one.
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
    """Return `cls(**values)`. Raises UserErrors, one for each wrong value, whose keys begin with `where`."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UserErrors(_explain(error, cls, values, where)) from None


def _explain(error: ValidationError, cls: type[BaseModel], values: dict[str, Any], where: str) -> list[UserError]:
    """Return the UserErrors for a validation error of `cls(**values)`, each with the dotted key of the wrong value.

    `where` is the key of the whole mapping.
    """
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
    """Return pydantic's location `loc` as the keys of the user's file, in which a list may be written as one value.

    `values` is the mapping from the file.
    """
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
    """Return the full dotted key of an error that a validator of the value at `place` raised with the key `inner`.

    `inner` is relative to `place` and may be empty, or begin with a dot (a key) or a space (the name of a plug-in). If
    it is a Python file with a line, it is returned unchanged.
    """
    if inner.partition(", line ")[0].endswith(".py"):
        return inner
    if not inner or inner.startswith((".", " ")):
        return place + inner
    if place.endswith(f".{inner}"):
        return place
    return f"{place}.{inner}"


def _keys(cls: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys of the nested model that contains pydantic's location `loc` within the model `cls`."""
    for part in loc[:-1]:
        field = cls.model_fields.get(str(part))
        cls = (field and _model(field.annotation)) or cls
    return [f.alias or name for name, f in cls.model_fields.items()]


def _model(annotation: Any) -> type[BaseModel] | None:
    """Return the pydantic model in an annotation such as `tuple[Grid, ...]`, or None if there is none."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)
