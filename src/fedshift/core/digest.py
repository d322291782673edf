"""Digests (sha256) that identify a specification by its canonical JSON, a file, and the source code behind a job."""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "fedshift"
ROOT = Path(__file__).parents[1]
"""The folder of this package."""

SHAPES_NO_RESULT = (
    *("fedshift.cli.", "fedshift.contract.", "fedshift.core.", "fedshift.export.", "fedshift.interface."),
    *("fedshift.io.", "fedshift.planning.", "fedshift.page.", "fedshift.engine.checkpoint.", "fedshift.jobs.accept."),
    "fedshift.jobs.record.",
)
"""Prefixes of modules that only start, store or show work and are left out of code digests: an edit reruns no job.

A job whose own module lies in one of these folders, such as the report's in `page`, reruns for an edit in that folder.
"""
SHAPES_RESULTS = ("fedshift.core.rng", *(f"fedshift.io.{name}" for name in ("dicom", "images", "nifti", "scan")))
"""Modules in folders of SHAPES_NO_RESULT that do shape results, by random draws or by how they read pixels from files:
code digests include them."""

LIBRARIES = {"site-packages", "dist-packages"}
"""Names of folders of installed libraries. A module there belongs to a plug-in's code only if it lies in the plug-in's
own package."""


def canonical(spec: Any) -> str:
    """Return plain data as JSON with sorted keys and no white space, so that equal data give equal text."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def of(spec: Any, length: int = 10) -> str:
    """Return the first `length` hex digits of the sha256 of plain data, written as canonical JSON."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:length]


def of_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the hex digest of a file's bytes by a hashlib algorithm. It is read in pieces, so it may be large."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def of_code(stage: str, *plugins: object) -> str:
    """Return a digest (12 hex digits) of the source code behind a job, which changes only if results may change.

    The code is the module `stage` of this package, such as "jobs.train", the modules of the plug-ins (instances or
    classes, also from outside of this package), and all modules that these import. Comments, docstrings, layout,
    installed libraries and the modules of SHAPES_NO_RESULT do not count. No module of the engine imports a plug-in, so
    that a job reruns for an edit of its own plug-ins alone. Raises ModuleNotFoundError for a module without source.
    """
    return _installed().digest(frozenset([f"{PACKAGE}.{stage}", *(plugin.__module__ for plugin in plugins)]))


@functools.cache
def _installed() -> Code:
    """Return the sources of the installed package, parsed once per process."""
    return Code(ROOT)


class Code:
    """The imports and digests of source files: of this package, in the folder `root`, and of plug-ins.

    Each file is parsed once and never imported. Snakemake asks for digests before any numeric library is loaded, so
    importing would cost seconds.
    """

    def __init__(self, root: Path) -> None:
        self.roots = {PACKAGE: root}
        """The folder of each top-level package, or the file of each top-level module, whose imports are followed."""
        self.digest = functools.cache(self._digest)
        self._reached = functools.cache(self.modules)
        self._parsed = functools.cache(self._parse)
        self._found = functools.cache(self._find)

    def _digest(self, entries: frozenset[str]) -> str:
        """Return a digest (12 hex digits) of the modules named in `entries` and of all modules that they import."""
        # Trees of all modules are many objects: looking for garbage among them would take a fifth of the time.
        gc.disable()
        try:
            reached = set[str]().union(*map(self._reached, entries))
        finally:
            gc.enable()
        # The top-level package is left out: that of a project's own plug-ins is named by the path of their folder.
        return of(sorted((name.partition(".")[2], self._parsed(name)[0]) for name in reached), 12)

    def modules(self, entry: str) -> set[str]:
        """Return the names of a module and of all modules that it imports, directly or not, and that shape results.

        Raises ModuleNotFoundError for a module without source.
        """
        self._add(entry.partition(".")[0])
        left_out = tuple(name for name in SHAPES_NO_RESULT if not f"{entry}.".startswith(name))
        reached = set[str]()
        waiting = {entry}
        while waiting:
            module = waiting.pop()
            reached.add(module)
            imported = self._parsed(module)[1]
            waiting |= {n for n in imported if not f"{n}.".startswith(left_out) or n in SHAPES_RESULTS} - reached
        return reached

    def _add(self, package: str) -> None:
        """Add a top-level package or module of a plug-in from outside to those whose imports are followed."""
        if package in self.roots:
            return
        spec = importlib.util.find_spec(package)
        if spec and spec.submodule_search_locations:
            self.roots[package] = Path(next(iter(spec.submodule_search_locations)))
        elif spec and spec.origin and spec.has_location:
            self.roots[package] = Path(spec.origin)

    def _parse(self, module: str) -> tuple[str, frozenset[str]]:
        """Return the sha256 of a module's code without docstrings, and the names of the modules that it imports.

        Installed libraries are left out of the names. Raises ModuleNotFoundError for a module without source.
        """
        file = self._file(module)
        if file is None:
            raise ModuleNotFoundError(module)
        tree = ast.parse(file.read_bytes())
        package = module.rpartition(".")[0] if file.name != "__init__.py" else module
        statements = list(_statements(tree))
        names = {name for statement in statements for name in self._imports(statement, package)}
        # The package's own module holds the version alone, and must not connect a job with the Python interface.
        names.discard(PACKAGE)
        importer = module.partition(".")[0]
        followed = {n for n in names if self._is_followed(n.partition(".")[0], importer) and self._file(n)}
        return hashlib.sha256(_written(tree).encode()).hexdigest(), frozenset(followed)

    def _imports(self, statement: ast.stmt, package: str) -> Iterator[str]:
        """Yield the absolute names of the modules that one statement of a module in `package` imports, if any."""
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
            for alias in statement.names:
                # `from .folder import name` imports a module of the folder, or what its __init__.py defines.
                submodule = f"{base}.{alias.name}"
                yield submodule if self._file(submodule) else base

    def _is_followed(self, package: str, importer: str) -> bool:
        """Return True if imports of the top-level `package` by a module of the package `importer` are followed.

        This package and the importer's own are followed. A plug-in outside of this package, unless it is installed, may
        also import modules that lie beside its package.
        """
        if package in (PACKAGE, importer):
            return True
        folder = self.roots[importer].parent
        if importer == PACKAGE or LIBRARIES & set(folder.parts):
            return False
        for path in (folder / package, folder / f"{package}.py"):
            if path.exists():
                self.roots.setdefault(package, path)
                return True
        return False

    def _file(self, module: str) -> Path | None:
        """Return the source file of a module, or None if its package is not followed or no file exists."""
        package, _, names = module.partition(".")
        root = self.roots.get(package)
        return self._found(root, names) if root else None

    def _find(self, root: Path, names: str) -> Path | None:
        """Return the source file of a module by its dotted `names` below `root`, or None if there is no such file."""
        if root.is_file():
            return None if names else root
        stem = root.joinpath(*names.split("."))
        files = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
        return next((file for file in files if file.is_file()), None)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements below a node of a syntax tree, and remove docstrings and other constants from the tree.

    Statements under TYPE_CHECKING are not yielded.
    """
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        nodes = getattr(node, block, [])
        nodes[:] = [n for n in nodes if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
        if block == "body" and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue  # what only type checkers import is passed in by a caller, or is no part of the job
        for inner in nodes:
            if isinstance(inner, ast.stmt):
                yield inner
            yield from _statements(inner)


def _written(node: object) -> str:
    """Return a syntax tree as text that is the same in all versions of Python.

    Empty fields are left out, since `ast.dump` shows them in some versions only.
    """
    if isinstance(node, list):
        return f"[{','.join([_written(item) for item in node])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is not None and value != [] and name not in ("ctx", "kind", "type_comment"):
            fields.append(f"{name}={_written(value)}")
    return f"{type(node).__name__}({','.join(fields)})"
