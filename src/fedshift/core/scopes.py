"""Scopes of Python source: what a statement defines, and which parts only type checkers and people read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeGuard

Function = ast.FunctionDef | ast.AsyncFunctionDef


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def imports_of_module(statement: ast.stmt) -> list[ast.stmt]:
    """Return the import statements in a top-level statement that bind names of the module: not those in functions."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return []
    return [node for node in ast.walk(statement) if isinstance(node, ast.Import | ast.ImportFrom)]


def defined(statement: ast.stmt) -> set[str]:
    """Return the names of the module that a top-level statement defines; imported names are not among them."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    nodes = list(walk_scope([statement]))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return names | {node.name for node in nodes if isinstance(node, (*FUNCTIONS, ast.ClassDef))}


def walk_scope(body: list[Any]) -> Iterator[ast.AST]:
    """Walk the nodes of one scope: the bodies of functions, classes and comprehensions in it are left out."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda, *COMPREHENSIONS)):
            todo += ast.iter_child_nodes(node)


def for_type_checkers(node: ast.AST) -> TypeGuard[ast.If]:
    """Return whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in (getattr(node.test, a, "") for a in ("id", "attr"))


def without_type_checking(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run: of `if TYPE_CHECKING:` those after `else`."""
    for statement in body:
        yield from statement.orelse if for_type_checkers(statement) else [statement]


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string on its own, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
