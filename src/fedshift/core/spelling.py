"""Names that differ only in spelling, such as `P 007` and `p 7`, and English nouns after a count."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

DASHES = re.compile("[\u2010-\u2015\u2212]")
"""Dashes of Unicode, which are folded to a hyphen."""
THOUSANDS = re.compile(r"\d{1,3}(?:[ ,'\u2019]\d{3})+(?:\.0+)?")
"""A whole number with a separator between its thousands, such as 12,000."""
SCIENTIFIC = re.compile(r"(\d)(?:\.(\d+))?e\+(\d{2})")
"""A long number as spreadsheets write it: 1.2e+03. The plus is required, since a digest such as 12e45 is no number."""
NO_FRACTION = re.compile(r"(?<![\d.])(\d+)\.0+$")
LEADING_ZEROS = re.compile(r"(?<![\d.])0+(?=\d)")
IRREGULAR = {"child": "children", "foot": "feet", "tooth": "teeth", "vertebra": "vertebrae"}
"""Irregular plurals, by singular."""
AS_WRITTEN = "patient as written"
"""Column of a sample table with the patients' ids as the user wrote them, before spellings were unified."""
# fmt: off
PLACEHOLDERS = frozenset((
    "unknown", "unk", "unbekannt", "inconnu", "na", "n.a.", "n/a", "#n/a", "none", "null", "nil", "nan", "missing",
    "anonymous", "anonymized", "anonymised", "anonym", "-", "--", "---", ".", "?", "??", "???", "0", "xx", "xxx",
))
# fmt: on
"""Words in a patient column that usually mean that the patient is unknown, in the normal form of `folded`."""


def folded(name: str) -> str:
    """Return the normal form of a name, which is equal for spellings that readers and spreadsheets do not tell apart.

    The normal form ignores differences of case, Unicode form (NFKC), invisible characters, kinds of dashes, repeated or
    non-breaking blanks and blanks at the ends, leading zeros of numbers, a trailing `.0`, separators of thousands, and
    scientific notation such as 1E+03.
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
            # 1.2e+03 is 1200; with more digits than the exponent shifts, the number is not whole and stays as it is.
            whole, fraction, exponent = power[1], power[2] or "", int(power[3])
            if len(fraction) <= exponent:
                name = whole + fraction + "0" * (exponent - len(fraction))
    if "." in name:
        name = NO_FRACTION.sub(r"\1", name)
    return LEADING_ZEROS.sub("", name) if "0" in name else name


def groups(names: Iterable[str]) -> list[list[str]]:
    """Return a list of spellings for each name that occurs in several spellings, as `folded` compares them."""
    spelt: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        spelt.setdefault(folded(name), []).append(name)
    return [spellings for spellings in spelt.values() if len(spellings) > 1]


def unified(names: pd.Series) -> pd.Series:
    """Return the names with each spelling replaced by the first spelling that `folded` finds equal.

    Missing values stay missing.
    """
    again = {other: first for first, *others in groups(map(str, names.dropna().unique().tolist())) for other in others}
    return names.map(lambda name: again.get(str(name), name)) if again else names


def quoted(name: str) -> str:
    r"""Return a name in quotes, so that spaces at its ends show; combining marks are escaped: 'Zu\u0308rich'."""
    return repr(name) if unicodedata.is_normalized("NFC", name) else ascii(name)


def plural(singular: str) -> str:
    """Return the plural of an English noun: biopsies, masses, teeth.

    The last word of a phrase changes (further conditions), and each noun of a list (`slides, eyes or blocks`).
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
    """Return the noun in the singular if `count` is 1, or else in the plural."""
    return singular if count == 1 else plural(singular)


def counted(count: int, singular: str) -> str:
    """Return a count with its noun: `1 image`, `3,000 images`."""
    return f"{count:,} {noun(count, singular)}"
