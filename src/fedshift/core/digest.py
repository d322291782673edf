"""Identities: of a specification (its canonical JSON) and of the code that acts on it."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PACKAGE = "fedshift"
TALK = frozenset(f"{PACKAGE}.{module}" for module in ("core.errors", "core.console", "jobs.provenance"))
"""Modules that only speak to people: a change in them changes no result."""


def canonical(spec: Any) -> str:
    """JSON with sorted keys and no white space: equal specs, equal text."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def of(spec: Any, length: int = 10) -> str:
    """The first `length` hex digits of the sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()[:length]


def of_file(path: Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file, read in pieces."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@functools.cache
def _module(name: str) -> tuple[str, frozenset[str]]:
    """The digest of a module's code, and the modules of this package that it imports."""
    path = _file(name)
    if path is None:
        raise ModuleNotFoundError(name)
    tree = _Behaviour().visit(ast.parse(path.read_text(encoding="utf-8")))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base.split(".")[0] == PACKAGE:
                names = {f"{base}.{alias.name}" for alias in node.names}
                imported |= {n if _file(n) else base for n in names}
        elif isinstance(node, ast.Import):
            imported |= {a.name for a in node.names if a.name.split(".")[0] == PACKAGE}
    imported -= {PACKAGE, *TALK}
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest(), frozenset(imported)


class _Behaviour(ast.NodeTransformer):
    """Drops what changes no result: docstrings, descriptions, cards, words of errors, imports for type checkers."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        words = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if words else node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if getattr(node.func, "id", "") in ("UserError", "say", "Card"):
            node.args, node.keywords = [], []
        node.keywords = [k for k in node.keywords if k.arg != "description"]
        return node

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        self.generic_visit(node)
        return node.orelse if getattr(node.test, "id", "") == "TYPE_CHECKING" else node


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _file(name: str) -> Path | None:
    """The file of a module of this package; looked up, not imported, or the DAG would wait for torch."""
    stem = Path(__file__).parents[1].joinpath(*name.split(".")[1:])
    return next((file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()), None)


def of_code(entry: Iterable[str], length: int = 12) -> str:
    """A digest of modules of this package and of all they import from it, directly or not.

    Comments, docstrings and layout do not count, nor do imports for type checkers: a change of behaviour alters the
    digest, a change of words does not. Plug-ins are imported by discovery, not by name: list those a job uses.
    """
    todo, seen = list(entry), {}
    while todo:
        name = todo.pop()
        if name not in seen:
            seen[name], imported = _module(name)
            todo += imported
    return of(seen, length)
