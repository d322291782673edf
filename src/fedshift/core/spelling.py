"""Spellings: names that a reader takes for one and a program for two, and nouns that follow a count."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

DASHES = re.compile("[\u2010-\u2015\u2212]")
THOUSANDS = re.compile(r"\d{1,3}(?:[ ,'\u2019]\d{3})+(?:\.0+)?")
"""A whole number with a mark between its thousands."""
SCIENTIFIC = re.compile(r"(\d)(?:\.(\d+))?e\+(\d{2})")
"""A number as spreadsheets write long ones: 1.2e+03. The plus is needed: a digest such as 12e45 is no number."""
NO_FRACTION = re.compile(r"(?<![\d.])(\d+)\.0+$")
LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
IRREGULAR = {"child": "children", "foot": "feet", "tooth": "teeth", "vertebra": "vertebrae"}
"""Plurals that no rule of `plural` makes."""
AS_WRITTEN = "patient as written"
"""Column of patients in a table of samples before their spellings were unified."""
# fmt: off
PLACEHOLDERS = frozenset((
    "unknown", "unk", "unbekannt", "inconnu", "na", "n.a.", "n/a", "#n/a", "none", "null", "nil", "nan", "missing",
    "anonymous", "anonymized", "anonymised", "anonym", "-", "--", "---", ".", "?", "??", "???", "0", "xx", "xxx",
))
# fmt: on
"""Names that often stand for a patient who is not known, as `folded` returns them."""


def folded(name: str) -> str:
    """Return a name without what readers and spreadsheets overlook, so that two spellings of it are equal.

    Folded are the Unicode form (NFKC), case, invisible characters, dashes, blanks (also that does not break) at the
    ends and in a row, zeros in front of a number, `.0` behind it, marks between thousands, and a power such as 1E+03.
    """
    if not name.isascii():
        # Decomposed before the case is folded, as in the compatibility caseless matching of Unicode.
        name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKD", name).casefold())
        name = DASHES.sub("-", "".join(letter for letter in name if unicodedata.category(letter) != "Cf"))
    name = " ".join(name.casefold().split())
    if name[:1].isdigit():
        if THOUSANDS.fullmatch(name):
            name = re.sub(r"[ ,'\u2019]", "", name)
        elif power := SCIENTIFIC.fullmatch(name):
            whole, fraction, exponent = power[1], power[2] or "", int(power[3])
            if len(fraction) <= exponent:
                name = whole + fraction + "0" * (exponent - len(fraction))
    if "." in name:
        name = NO_FRACTION.sub(r"\1", name)
    return LEADING_ZEROS.sub("", name) if "0" in name else name


def groups(names: Iterable[str]) -> list[list[str]]:
    """Return the names that differ only in what `folded` folds: a list of spellings for each such name."""
    spelt: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        spelt.setdefault(folded(name), []).append(name)
    return [spellings for spellings in spelt.values() if len(spellings) > 1]


def unified(names: pd.Series) -> pd.Series:
    """Return names, some of which may be missing, in which each is spelt as where `folded` meets it first."""
    again = {other: first for first, *others in groups(map(str, names.dropna().unique().tolist())) for other in others}
    return names.map(lambda name: again.get(str(name), name)) if again else names


def quoted(name: str) -> str:
    r"""Return a name in quotes, in which spaces show, and combining marks as escapes: 'Zu\u0308rich'."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def plural(singular: str) -> str:
    """Return the plural of a plain English noun, or of several: biopsies, masses, teeth, `slides, eyes or blocks`.

    Of several words the last one changes: further conditions.
    """
    if " " in singular:
        return re.sub("[a-z]+(?=$|,| or )", lambda word: plural(word[0]), singular)
    if singular in IRREGULAR:
        return IRREGULAR[singular]
    if singular.endswith("sis"):
        return f"{singular[:-2]}es"
    if re.search("[^aeiou]y$", singular):
        return f"{singular[:-1]}ies"
    if singular.endswith(("s", "x", "z", "ch", "sh")):
        return f"{singular}es"
    return f"{singular}s"


def noun(count: int, singular: str) -> str:
    """Return a noun in the number that belongs to a count."""
    return singular if count == 1 else plural(singular)


def counted(count: int, singular: str) -> str:
    """Return a count with its noun: `1 image`, `3,000 images`."""
    return f"{count:,} {noun(count, singular)}"
