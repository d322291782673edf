"""Identities: of a specification (its canonical JSON), of a file, and of the code behind a job."""

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
"""Folders and modules of this package that say how work is started, stored and shown: an edit there reruns nothing.

A job whose own module lies in one of these folders, such as the page's in `report`, reruns for an edit in that folder.
"""
SHAPES_RESULTS = ("fedshift.core.rng", *(f"fedshift.io.{name}" for name in ("dicom", "images", "nifti", "scan")))
"""Modules in these folders that do shape results: they say what is drawn, and which pixels are read from a file."""

LIBRARIES = {"site-packages", "dist-packages"}
"""Names of folders of installed libraries. A module there is part of a plug-in only if it lies in its package."""


def canonical(spec: Any) -> str:
    """Return JSON with sorted keys and no white space: equal specs give equal text."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def of(spec: Any, length: int = 10) -> str:
    """Return the first `length` hex digits of the sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:length]


def of_file(path: Path, algorithm: str = "sha256") -> str:
    """Return the hex digest of a file, which is read in pieces."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def of_code(stage: str, *plugins: object) -> str:
    """Return a digest of the code behind a job: its module, such as "jobs.train", its plug-ins, and what these import.

    Comments, docstrings and layout do not count, nor do libraries and SHAPES_NO_RESULT. Plug-ins, given as such or as
    classes, may come from outside of this package. They are found by their names and imported by no module of the
    engine, so that a job reruns for an edit of its own plug-ins alone. Raises ModuleNotFoundError.
    """
    return _installed().digest(frozenset([f"{PACKAGE}.{stage}", *(plugin.__module__ for plugin in plugins)]))


@functools.cache
def _installed() -> Code:
    return Code(ROOT)


class Code:
    """The source files of this package, in the folder `root`, and of plug-ins. Each is parsed once, and never imported.

    Snakemake asks for digests before any numeric library is loaded, so an import would cost it seconds.
    """

    def __init__(self, root: Path) -> None:
        self.roots = {PACKAGE: root}
        """The folder of each top-level package that is followed, or the file of a top-level module."""
        self.digest = functools.cache(self._digest)
        self._reached = functools.cache(self.modules)
        self._parsed = functools.cache(self._parse)
        self._found = functools.cache(self._find)

    def _digest(self, entries: frozenset[str]) -> str:
        """Return a digest of some modules and of all that they import."""
        # Trees of all modules are many objects: looking for garbage among them would take a fifth of the time.
        gc.disable()
        try:
            reached = set[str]().union(*map(self._reached, entries))
        finally:
            gc.enable()
        # The top-level package is left out: that of a project's own plug-ins is named by the path of their folder.
        return of(sorted((name.partition(".")[2], self._parsed(name)[0]) for name in reached), 12)

    def modules(self, entry: str) -> set[str]:
        """Return the names of a module and of all that it imports, directly or not. Raises ModuleNotFoundError."""
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
        """Follow the top-level package, or the top-level module, of a plug-in from outside."""
        if package in self.roots:
            return
        spec = importlib.util.find_spec(package)
        if spec and spec.submodule_search_locations:
            self.roots[package] = Path(next(iter(spec.submodule_search_locations)))
        elif spec and spec.origin and spec.has_location:
            self.roots[package] = Path(spec.origin)

    def _parse(self, module: str) -> tuple[str, frozenset[str]]:
        """Return a digest of a module without docstrings, and the names of the followed modules that it imports."""
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
        """Yield the full names of the modules that a statement of a module in `package` imports."""
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
            for alias in statement.names:
                # `from .folder import name` imports a module of the folder, or what its __init__.py defines.
                submodule = f"{base}.{alias.name}"
                yield submodule if self._file(submodule) else base

    def _is_followed(self, package: str, importer: str) -> bool:
        """Return whether a top-level package is followed from a module of another one, or of the same.

        From a plug-in outside of this package, modules that lie beside its package are followed too.
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
        """Return the source file of a module of a package that is followed; None for all others."""
        package, _, names = module.partition(".")
        root = self.roots.get(package)
        return self._found(root, names) if root else None

    def _find(self, root: Path, names: str) -> Path | None:
        if root.is_file():
            return None if names else root
        stem = root.joinpath(*names.split("."))
        files = (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
        return next((file for file in files if file.is_file()), None)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements below a node that run, and take away those that are a string alone, such as docstrings."""
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
    """Return a syntax tree as text, without what is empty: `ast.dump` shows that in some versions of Python only."""
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
