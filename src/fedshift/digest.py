"""Identities: of a specification (its canonical JSON) and of the code that acts on it."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

TALK = frozenset(f"{__package__}.{module}" for module in ("errors", "progress", "provenance"))
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
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
    imported: set[str] = set()
    for node in _run_time(tree):
        if isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            if base.split(".")[0] == __package__:
                names = {f"{base}.{alias.name}" for alias in node.names}
                imported |= {n if _is_module(n) else base for n in names}
        elif isinstance(node, ast.Import):
            imported |= {a.name for a in node.names if a.name.split(".")[0] == __package__}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    imported -= {str(__package__), *TALK}
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), frozenset(imported)


def _run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING`, which no run ever sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            yield from _run_time(node)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, *([node.module] if node.module else [])])


@functools.cache
def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


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
