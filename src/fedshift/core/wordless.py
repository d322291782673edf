"""Source without words: what only people read is taken out of a statement before a digest is made of it."""

from __future__ import annotations

import ast
from typing import Any

from .scopes import Function, defined, for_type_checkers, is_text

ERRORS = frozenset({"UserError", "UserErrors"})
WORDS = ERRORS | {"say", "Progress", "Card"}
"""Calls whose arguments are read by people alone, unless these do something themselves."""
WORD_FIELDS = frozenset({"display_name", "libraries", "paper", "why"})
"""Attributes of a class on which no result depends: people alone read them, or they only save time."""
QUIET = frozenset(
    {"abs", "bool", "dict", "duration", "float", "int", "len", "list", "max", "min", "range", "repr", "round", "set"}
    | {"sorted", "str", "sum", "tuple", "type", "zip"}
)
QUIET_METHODS = frozenset({"format", "items", "join", "keys", "lower", "nunique", "split", "strip", "upper", "values"})
"""Calls without an effect of their own. What only a message uses is left out if it makes no other calls than these."""


def _is_said(statement: ast.stmt) -> bool:
    """Return whether a statement assigns plain text."""
    value = getattr(statement, "value", None)
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))


def _callee(node: ast.AST) -> str:
    """Return the name by which a call calls: `f` and `a.f` are both "f"."""
    function = getattr(node, "func", None)
    return str(getattr(function, "id", "") or getattr(function, "attr", ""))


def _quiet(*nodes: ast.AST) -> bool:
    """Return whether expressions do nothing but to compute a value."""
    inside = [n for node in nodes for n in ast.walk(node)]
    calls = [n for n in inside if isinstance(n, ast.Call)]
    return all(map(_is_quiet, calls)) and not any(
        isinstance(n, ast.NamedExpr | ast.Yield | ast.YieldFrom | ast.Await) for n in inside
    )


def _is_quiet(call: ast.Call) -> bool:
    """Return whether a call has no effect; `map` has none if the function that it calls is such a one."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in QUIET_METHODS
    name = _callee(call)
    return name in QUIET or (name == "map" and getattr(call.args[0], "id", "") in QUIET)


class Edit(ast.NodeTransformer):
    """A transformer that leaves `pass` where a body would be empty."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit the parts of a node, and fill a body that they leave empty."""
        super().generic_visit(node)
        if isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) and getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[union-attr]
        return node


class _Wordless(Edit):
    """Removes what only people and type checkers read; `said` collects the names that messages are made of."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def _silence(self, call: ast.Call) -> None:
        """Take the arguments of a call away."""
        for part in (*call.args, *call.keywords):
            self.said |= _loaded(part)
        call.args, call.keywords = [], []

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        self.generic_visit(node)
        silent = _callee(node.value) == "say" and not node.value.args  # type: ignore[attr-defined]
        return None if is_text(node) or silent else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _callee(node) in WORDS and (_callee(node) in ERRORS or _quiet(*node.args, *node.keywords)):
            self._silence(node)
        node.keywords = [k for k in node.keywords if k.arg != "description"]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            self._silence(node.exc)
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        if not for_type_checkers(node):
            return self.generic_visit(node)
        visited = (self.visit(statement) for statement in node.orelse)
        return [statement for statement in visited if statement is not None]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [s for s in node.body if not (defined(s) & WORD_FIELDS and _is_said(s))]
        return self.generic_visit(node)

    def _function(self, node: Any) -> ast.AST:
        before, self.said = self.said, set()
        self.generic_visit(node)
        if self.said:
            _drop_servants(node, self.said)
        self.said |= before
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function


def _loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _drop_servants(function: Function, said: set[str]) -> None:
    """Remove assignments to local names that served removed messages alone, and those that served only these."""
    shared = {name for n in ast.walk(function) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    dropped = True
    while dropped:
        drop = _Drop(said - _loaded(function) - shared)
        drop.visit(function)
        dropped = drop.dropped
        said |= drop.served


class _Drop(Edit):
    """Removes assignments whose names are all among `idle`; `served` are the names that these read.

    Calls that may have an effect stay, without the name of what they return.
    """

    def __init__(self, idle: set[str]) -> None:
        self.idle, self.served, self.dropped = idle, set[str](), False

    def _assignment(self, node: Any) -> ast.AST | None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [part for target in targets for part in getattr(target, "elts", [target])]
        if not all(isinstance(part, ast.Name) and part.id in self.idle for part in parts):
            return node
        self.dropped = True
        if node.value and not _quiet(node.value):
            return ast.Expr(node.value)  # the name does not count, but the call does
        self.served |= _loaded(node.value) if node.value else set()
        return None

    visit_Assign = visit_AnnAssign = visit_AugAssign = _assignment


def wordless(statement: ast.stmt) -> ast.AST:
    """Return a statement, which is not text alone, without what only people and type checkers read."""
    rest: ast.AST = _Wordless().visit(statement)
    return rest
