"""Spellings of a name: two names that a reader takes for one may be two to a program."""

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
