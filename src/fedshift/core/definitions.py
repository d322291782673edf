"""The definitions of this package and of plug-ins from outside: what each says without words, and which others it uses.

Source files are parsed and never imported, since Snakemake asks for digests before any numeric library is loaded.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scopes import (
    FUNCTIONS,
    defined,
    for_type_checkers,
    imports_of_module,
    is_text,
    walk_scope,
    without_type_checking,
)
from .wordless import Edit, wordless

LIBRARIES = {"site-packages", "dist-packages"}
"""Names of folders of installed libraries. What lies there beside a plug-in's package is no part of it."""


@dataclass(frozen=True)
class Import:
    """One imported name: a module, or an attribute of it. `name` is what it is called here."""

    module: str
    attribute: str
    name: str


@dataclass(frozen=True)
class Meaning:
    """One thing that a name can mean: a definition, a whole module (no `name`), or something of another package."""

    module: str
    name: str
    foreign: bool = False


@dataclass(frozen=True)
class Content:
    """A statement without words. `uses` are the meanings of its names, in the order in which they stand.

    `hints` are the meanings of names in annotations of functions: the classes of what is passed in from elsewhere.
    """

    text: str
    uses: tuple[Meaning, ...]
    hints: tuple[Meaning, ...] = ()


class Module:
    """The top-level statements of a source file, and the names that they define or import."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.folder = name if path.is_dir() or path.name == "__init__.py" else name.rpartition(".")[0]
        self.statements: list[ast.stmt] = []
        self.effects: list[int] = []
        self.defined: dict[str, list[int]] = {}
        self.imported: dict[str, list[Import]] = {}
        self.lazy: dict[str, list[Import]] = {}
        """Imports for type checkers of a package with a `__getattr__`, which imports these names when they are used."""
        body = [] if path.is_dir() else ast.parse(path.read_bytes()).body
        for statement in body:
            if for_type_checkers(statement):
                self._imports(statement.body, self.lazy)
        for statement in without_type_checking(body):
            self._add(statement)
        if "__getattr__" not in self.defined:
            self.lazy.clear()

    def _imports(self, body: list[ast.stmt], into: dict[str, list[Import]]) -> None:
        for statement in body:
            for one in imports(statement, self.folder):
                into.setdefault(one.name, []).append(one)

    def _add(self, statement: ast.stmt) -> None:
        """File a statement under the names that it binds; one that binds none is there for its effect."""
        self._imports(imports_of_module(statement), self.imported)
        names = defined(statement)
        if isinstance(statement, ast.Import | ast.ImportFrom) or is_text(statement) or names == {"__all__"}:
            return
        number = len(self.statements)
        self.statements.append(statement)
        for name in names:
            self.defined.setdefault(name, []).append(number)
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.Assign, ast.AnnAssign)) or not names:
            self.effects.append(number)


def imports(statement: ast.stmt, folder: str) -> Iterator[Import]:
    """Yield what an import statement of a module in the package `folder` binds; nothing for other statements."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            first = alias.name.partition(".")[0]
            yield Import(alias.name if alias.asname else first, "", alias.asname or first)
    elif isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
        parts = folder.split(".") if statement.level else []
        parts = parts[: len(parts) - statement.level + 1] if statement.level else parts
        base = ".".join([*parts, *([statement.module] if statement.module else [])])
        for alias in statement.names:
            yield Import(base, alias.name, alias.asname or alias.name)


def _is_limit(statement: ast.stmt) -> bool:
    """Return whether a statement is a constant that is annotated as a `Limit`."""
    annotation = getattr(statement, "annotation", None)
    base = getattr(annotation, "value", None)
    return "Limit" in (getattr(base, "id", ""), getattr(base, "attr", ""))


class _Reader(Edit):
    """Finds what the names in a statement mean, and writes each under the name that it has where it is defined."""

    def __init__(self, sources: Sources, module: Module) -> None:
        self.sources, self.module = sources, module
        self.scopes: list[dict[str, list[Import]]] = []
        self.uses: list[Meaning] = []
        self.hints: list[Meaning] = []

    def _meanings(self, name: str) -> list[Meaning]:
        for scope in reversed(self.scopes):
            if name in scope:
                return [meaning for one in scope[name] for meaning in self.sources.imported(one, self.module.name)]
        return self.sources.meanings(self.module.name, name)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return node if isinstance(node.ctx, ast.Store) else self._chain(node, node.id, [])

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        rest, base = [node.attr], node.value
        while isinstance(base, ast.Attribute):
            rest.insert(0, base.attr)
            base = base.value
        return self._chain(node, base.id, rest) if isinstance(base, ast.Name) else self.generic_visit(node)

    def _chain(self, node: ast.expr, name: str, rest: list[str]) -> ast.AST:
        """Follow `name.rest` through modules of this package to the definition that is meant."""
        meanings = self._meanings(name)
        while rest and len(meanings) == 1 and not meanings[0].foreign and not meanings[0].name:
            inside = self.sources.meanings(meanings[0].module, rest[0])
            if not inside:
                break
            meanings, rest = inside, rest[1:]
        self.uses += meanings
        if len(meanings) != 1 or meanings[0].foreign:
            return node
        written: ast.expr = ast.Name(meanings[0].name or "module", ast.Load())
        for attribute in rest:
            written = ast.Attribute(written, attribute, ast.Load())
        return written

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        return None

    visit_ImportFrom = visit_Import

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if not self.scopes:
            return self.generic_visit(node)
        return self.visit(ast.Assign([node.target], node.value)) if node.value else None

    @contextlib.contextmanager
    def _within(self, scope: dict[str, list[Import]]) -> Iterator[None]:
        self.scopes.append(scope)
        yield
        self.scopes.pop()

    def _function(self, node: Any) -> ast.AST:
        """Visit defaults and decorators outside of the function's scope, and its body inside."""
        self._hint(node, "returns")
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        self.visit(node.args)
        body = ast.Module(node.body, [])
        with self._within(self._local(node.args, node.body)):
            self.generic_visit(body)
        node.body = body.body or [ast.Pass()]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_arg(self, node: ast.arg) -> ast.AST:
        self._hint(node, "annotation")
        return node

    def _hint(self, node: ast.AST, field: str) -> None:
        """Take an annotation away, and note what it means."""
        if annotation := getattr(node, field):
            uses, self.uses = self.uses, self.hints
            self.visit(annotation)
            self.uses = uses
            setattr(node, field, None)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.visit(node.args)
        with self._within(self._local(node.args, [])):
            node.body = self.visit(node.body)
        return node

    def _comprehension(self, node: ast.AST) -> ast.AST:
        targets = [generator.target for generator in node.generators]  # type: ignore[attr-defined]
        scope: dict[str, list[Import]] = {n.id: [] for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        with self._within(scope):
            return self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _local(self, arguments: ast.arguments, body: list[ast.stmt]) -> dict[str, list[Import]]:
        """Return the names of a function's own scope, with the imports among them."""
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        scope: dict[str, list[Import]] = {argument.arg: [] for argument in every if argument}
        outer: set[str] = set()
        for node in walk_scope(body):
            if isinstance(node, ast.Global | ast.Nonlocal):
                outer |= set(node.names)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                scope.setdefault(node.id, [])
            elif isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
                scope.setdefault(node.name or "", [])
            elif isinstance(node, ast.stmt):
                for one in imports(node, self.module.folder):
                    scope.setdefault(one.name, []).append(one)
        return {name: imported for name, imported in scope.items() if name not in outer}


class Sources:
    """The source files of the package `name` in the folder `root`, and those of plug-ins from outside.

    Each file is parsed when it is first asked for. Of imports from outside the package, the modules of the plug-in's
    own package are followed, and modules that lie beside it, unless they lie among installed libraries.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.roots: dict[str, Path] = {name: root}
        """The folder of each top-level package that is followed, or the file of a top-level module."""
        self.module = functools.cache(self._module)
        self.meanings = functools.cache(self._meanings)
        self.content = functools.cache(self._content)
        self.plain = functools.cache(self._plain)
        self.file = functools.cache(self._file)

    def add(self, package: str) -> None:
        """Follow the top-level package, or the top-level module, of a plug-in from outside."""
        if package in self.roots or (spec := importlib.util.find_spec(package)) is None:
            return
        if spec.submodule_search_locations:
            self.roots[package] = Path(next(iter(spec.submodule_search_locations)))
        elif spec.origin and spec.has_location:
            self.roots[package] = Path(spec.origin)

    def _file(self, name: str) -> Path | None:
        """Return the file of a module that is followed, or the folder of a package without one; None for all others."""
        first, *rest = name.split(".")
        if first not in self.roots or (rest and not self.roots[first].is_dir()):
            return None
        stem = self.roots[first].joinpath(*rest)
        files = [stem / "__init__.py", *([stem.with_name(f"{stem.name}.py")] if rest else []), stem]
        return next((file for file in files if file.exists()), None)

    def followed(self, name: str, by: str) -> bool:
        """Return whether a module that the module `by` imports is followed: it is known, and its source is there."""
        return self._is_known(name.partition(".")[0], by.partition(".")[0]) and self.file(name) is not None

    def _is_known(self, first: str, importer: str) -> bool:
        """Return whether the top-level package `first`, which a module of another one imports, is among `roots`."""
        if first in (self.name, importer) or importer == self.name:
            return first in (self.name, importer)
        beside = self.roots[importer].parent
        if not LIBRARIES & set(beside.parts):
            files = (beside / first / "__init__.py", beside / f"{first}.py")
            for file in filter(Path.is_file, files):
                self.roots.setdefault(first, file.parent if file.name == "__init__.py" else file)
        return first in self.roots

    def _module(self, name: str) -> Module:
        path = self.file(name)
        if path is None:
            raise ModuleNotFoundError(name)
        return Module(name, path)

    def _meanings(self, module: str, name: str) -> list[Meaning]:
        """Return what a name means at the top level of a module, followed through imports; nothing for built-ins."""
        here = self.module(module)
        meanings = [Meaning(module, name)] if name in here.defined else []
        for one in here.imported.get(name, []):
            meanings += self.imported(one, module)
        for one in here.imported.get("*", []) if not meanings else ():
            if self.followed(one.module, module):
                meanings += self.meanings(one.module, name)
        if not meanings and here.folder == module and self.file(f"{module}.{name}"):
            meanings = [Meaning(f"{module}.{name}", "")]
        return meanings or [meaning for one in here.lazy.get(name, []) for meaning in self.imported(one, module)]

    def imported(self, one: Import, by: str) -> list[Meaning]:
        """Return what an import in the module `by` binds. A name that its module lacks stands for that whole module."""
        if not self.followed(one.module, by):
            return [Meaning(one.module, f"{one.attribute} as {one.name}", foreign=True)]
        if not one.attribute:
            return [Meaning(one.module, "")]
        return self.meanings(one.module, one.attribute) or [Meaning(one.module, "")]

    def _content(self, module: str, number: int) -> Content:
        """Return a statement of a module without words, with the names that it uses resolved."""
        here = self.module(module)
        statement = here.statements[number]
        if _is_limit(statement):
            return Content("limit", ())
        reader = _Reader(self, here)
        read = reader.visit(wordless(statement))
        return Content(_written(read) if read else "", tuple(reader.uses), tuple(reader.hints))

    def statements(self, meaning: Meaning) -> list[int]:
        """Return the numbers of the statements that a meaning stands for."""
        here = self.module(meaning.module)
        return here.defined[meaning.name] if meaning.name else list(range(len(here.statements)))

    def _plain(self, meaning: Meaning) -> str:
        """Return a digest of what a name stands for by its own text, whatever that uses in turn."""
        if meaning.foreign:
            return f"{meaning.module} {meaning.name}"
        if not meaning.name:
            return "module"
        return sha256([self.content(meaning.module, n).text for n in self.statements(meaning)])


def _written(node: object) -> str:
    """Return a syntax tree as text. What is empty is left out: newer Pythons add fields that older ones do not have."""
    if isinstance(node, list):
        return f"[{','.join(map(_written, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment"))
    inside = ",".join(f"{name}={_written(value)}" for name, value in fields if value is not None and value != [])
    return f"{type(node).__name__}({inside})"


def sha256(parts: object) -> str:
    """Return the sha256, in hex digits, of the JSON of plain data."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
