"""The places where plug-ins are found: this package, installed packages, and files of a project.

A folder of a project becomes a package, so that its files can import each other with `from ._helper import`.
The folder itself is on no path for imports, and nothing in it hides an installed module.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
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
from typing import Any

from . import digest
from .errors import UserError, did_you_mean
from .plugin import KINDS, Plugin

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
    """Yield the plug-ins of a kind in this package: those in the folder of that kind.

    Raises RuntimeError for a module that does not hold exactly one.
    """
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


def forget() -> None:
    """Look anew, at the next call, at what is installed and at the files of this package."""
    _of_all_packages.cache_clear()
    built_in_modules.cache_clear()


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


def files(place: Path) -> list[Path]:
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
        remedy = "begin the name of a helper with an underscore"
        if classes:
            remedy = "give each its own file"
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
        raise UserError(line_of(error, folder) or where, str(error)) from error
    except Exception as error:
        first = str(error.msg if isinstance(error, SyntaxError) else error).partition("\n")[0]
        problem = f"cannot be imported: {type(error).__name__}: {first}"
        raise UserError(line_of(error, folder) or where, problem, _remedy(error, folder)) from error


def line_of(error: Exception, folder: Path | None) -> str:
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


def is_path(name: str) -> bool:
    """Return whether a name is the path of a class: `module:Class`, or as `name_of` writes it."""
    return ":" in name or "--" in name


def name_of(cls: type[Plugin]) -> str:
    """Return the path of a class in letters that ids and file names allow: `lab-half--Half` for `lab.half:Half`."""
    return f"{cls.__module__}:{cls.__qualname__}".replace(":", "--").replace(".", "-")


def at_path(kind: str, path: str, where: str) -> type[Plugin]:
    """Return the plug-in class at a path, `module:Class`, of an installed package or of the current folder.

    Raises UserError if there is none of that kind.
    """
    path = path.replace("--", ":").replace("-", ".")
    name, _, attribute = path.partition(":")
    if not NAME.fullmatch(path.replace(".", "_").replace(":", "_")) or not (name and attribute):
        raise UserError(where, f"{path!r} is not the path of a class", "write module:Class, such as my_methods:FedHalf")
    _look_in_the_current_folder(name.partition(".")[0])
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


def _look_in_the_current_folder(package: str) -> None:
    """Append the current folder to the path for imports if a package is found nowhere on it: it hides nothing there."""
    here = str(Path.cwd())
    # Appended, not put in front: a file of the project must not hide an installed module of the same name.
    if package and importlib.util.find_spec(package) is None and here not in sys.path:
        sys.path.append(here)


def _require(cls: object, kind: str, path: str, where: str) -> type[Plugin]:
    """Return a class if it is a plug-in of a kind. Raises UserError if it is not."""
    if inspect.isclass(cls) and issubclass(cls, Plugin) and cls.kind == kind:
        return cls
    problem = f"{path!r} is {_described(cls)}, and no plug-in of the kind {kind}"
    raise UserError(where, problem, f"give a class of the kind {kind}")


def _described(thing: object) -> str:
    if not inspect.isclass(thing):
        return "no class"
    if issubclass(thing, Plugin):
        return f"a plug-in of the kind {thing.kind}"
    return "another class"
