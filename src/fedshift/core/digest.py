"""Identities: of a specification (its canonical JSON), of a file, and of the code that acts on them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .definitions import Meaning, Sources, sha256
from .digest_cache import DigestCache

PACKAGE = "fedshift"
ROOT = Path(__file__).parents[1]
"""The folder of this package."""

INFRASTRUCTURE = {
    "core": "errors, discovery, digests and the console",
    "io": "files are whole or not there, wherever and however they are written",
    "planning": "forecasts and states of jobs",
    "cli": "arguments and what is printed",
    "jobs.accept": "records of what was accepted as unchanged",
    "jobs.devices": "which GPU a job takes",
    "jobs.provenance": "what a manifest says",
    "jobs.round_log": "how the rounds of a run are kept on disk",
    "jobs.store": "where finished runs are kept",
    "engine.checkpoint": "how a state is saved and found again",
}
"""Rooms and modules that shape no result, and what they are for: a change there makes nothing anew.

They still count for a job whose own module lies in one of these rooms, such as the ledger's in `planning`.
"""
COUNTED = {
    "core.rng": "says what is drawn",
    "io.images": "says which pixels are read from a file",
}
"""Modules in these rooms that do shape results."""


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


def of_code(entry: Iterable[str]) -> str:
    """Return a digest of some modules, of this package or of plug-ins, and of all definitions that they use.

    Only what a definition does counts, not where it stands: comments, docstrings, layout, annotations of functions,
    words of errors, limits (see `limits`), names of modules and all of INFRASTRUCTURE leave the digest as it is.
    The same holds for plug-ins from outside, with what lies in their folder or package. Libraries do not count.
    Plug-ins are found by discovery, not by name: list those that a job uses. Raises ModuleNotFoundError.
    """
    modules = frozenset(entry)
    if any(module.partition(".")[0] != PACKAGE for module in modules):
        return _installed().digest(modules)
    known = _computed_before()
    digest = known.get(modules)
    if digest is None:
        digest = _installed().digest(modules)
        known.put(modules, digest)
    return digest


@functools.cache
def _installed() -> Code:
    return Code(ROOT)


@functools.cache
def _computed_before() -> DigestCache:
    """Return the digests of code of this package alone, on which no other file has an influence."""
    return DigestCache(ROOT)


def shapes_results(module: str) -> bool:
    """Return whether a change of a module can change a result: of all but this package's infrastructure, it can."""
    package, *parts = module.split(".")
    if package != PACKAGE:
        return True
    names = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return bool(parts) and (bool(names & COUNTED.keys()) or not names & INFRASTRUCTURE.keys())


class Code:
    """The code of a package and its plug-ins, parsed once: a change of their files after that is not seen."""

    def __init__(self, root: Path) -> None:
        self.sources = Sources(root, PACKAGE)
        self.digest = functools.cache(self._digest)
        self._reached = functools.cache(self._follow)
        self._fingerprint = functools.cache(self._of_statement)

    def _digest(self, entry: frozenset[str]) -> str:
        for module in entry:
            self.sources.add(module.partition(".")[0])
        return of(sorted(frozenset[str]().union(*map(self._reached, entry))), 12)

    def _follow(self, entry: str) -> frozenset[str]:
        """Return the fingerprints of all statements of a module, and of those that they use, directly or not."""
        room = ".".join(entry.split(".")[:2])
        todo, seen = list(self._statements(Meaning(entry, ""))), set[tuple[str, int]]()
        while todo:
            if (statement := todo.pop()) in seen:
                continue
            seen.add(statement)
            content = self.sources.content(*statement)
            for use in (*content.uses, *content.hints):
                if self._counts(use) or (not shapes_results(entry) and f"{use.module}.".startswith(f"{room}.")):
                    todo += self._statements(use)
        return frozenset(self._fingerprint(*statement) for statement in seen)

    def _counts(self, use: Meaning) -> bool:
        return not use.foreign and shapes_results(use.module)

    def _statements(self, use: Meaning) -> Iterator[tuple[str, int]]:
        """Yield the statements that a name stands for, and those of its module that are there for their effect."""
        for number in (*self.sources.statements(use), *self.sources.module(use.module).effects):
            yield use.module, number

    def _of_statement(self, module: str, number: int) -> str:
        """Return a digest of a statement's text and of what the names in it stand for, in their order.

        Names alone would not do: two modules may give one name to different things.
        """
        content = self.sources.content(module, number)
        return sha256([content.text, [self.sources.plain(u) for u in content.uses if u.foreign or self._counts(u)]])
