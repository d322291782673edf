"""Spellings: names that a reader takes for one and a program for two, and nouns that follow a count."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def plain(name: str) -> str:
    """Return a name without what readers overlook: spaces around it, case, and its Unicode form (NFC or NFD)."""
    # Decomposed first, as in the canonical caseless matching of Unicode.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold()).strip()


def groups(names: Iterable[str]) -> list[list[str]]:
    """Return the names that differ only by spaces around them, case or Unicode form: a list for each such name."""
    spelt: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        spelt.setdefault(plain(name), []).append(name)
    return [spellings for spellings in spelt.values() if len(spellings) > 1]


def quoted(name: str) -> str:
    r"""Return a name in quotes, in which spaces show, and combining marks as escapes: 'Zu\u0308rich'."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def noun(count: int, singular: str) -> str:
    """Return a noun in the number that belongs to a count."""
    if count == 1:
        return singular
    return f"{singular}s"


def counted(count: int, singular: str) -> str:
    """Return a count with its noun: `1 image`, `3,000 images`."""
    return f"{count:,} {noun(count, singular)}"
