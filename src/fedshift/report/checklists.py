"""The reporting checklists CLAIM 2024 and TRIPOD+AI, as far as fedshift and the study's authors have filled them.

CLAIM 2024: Tejani et al. 2024, Radiology: Artificial Intelligence 6(4):e240300, 44 items.
TRIPOD+AI: Collins et al. 2024, BMJ 385:e078378, 27 items in 52 parts.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass

from ..study.author import Author
from .html import TEMPLATES
from .phrases import verb

ITEMS = TEMPLATES / "checklists.csv"
"""The items of both checklists in their order and in our words: who answers each, and where on the page."""


@dataclass(frozen=True)
class Item:
    """One item of a checklist.

    Attributes
    ----------
    checklist : name of the checklist
    number, topic : as the checklist counts it, and its subject
    who : `fedshift` answers it alone, `partly`, or only `you`, the author, can
    section : id of the section of the page with the part of fedshift; empty where there is none
    prefilled : what that section says about it
    field : field of the study's key `author` with the author's part; empty where there is none
    """

    checklist: str
    number: str
    topic: str
    who: str
    section: str
    prefilled: str
    field: str


@dataclass(frozen=True)
class Checklist:
    """A checklist: its name, what it counts (`parts`), its citation, and its items, each with whether it is open.

    An item is open while the author's part has no text.
    """

    name: str
    parts: str
    source: str
    lines: list[tuple[Item, bool]]

    @property
    def open(self) -> int:
        """The number of items that the authors have still to fill."""
        return sum(is_open for _, is_open in self.lines)

    @property
    def summary(self) -> str:
        """One line with the number of open items."""
        need = verb(self.open, "need")
        return f"{self.name}: prefilled by fedshift; {self.open} of {len(self.lines)} {self.parts} {need} you"


def items(checklist: str) -> list[Item]:
    """Return the items of a checklist in its order."""
    with ITEMS.open(newline="", encoding="utf-8") as file:
        rows = [Item(**row) for row in csv.DictReader(file)]
    return [item for item in rows if item.checklist == checklist]


def checklists(author: Author) -> list[Checklist]:
    """Return both checklists. An item that fedshift does not answer alone is open until the author's field has text."""
    texts = author.statements()

    def checklist(name: str, parts: str, source: str) -> Checklist:
        lines = [(item, item.who != "fedshift" and item.field not in texts) for item in items(name)]
        return Checklist(name, parts, source, lines)

    return [
        checklist("CLAIM 2024", "items", "Tejani et al. 2024, Radiology: AI 6(4):e240300"),
        checklist("TRIPOD+AI", "parts of its 27 items", "Collins et al. 2024, BMJ 385:e078378"),
    ]


def statements(author: Author) -> list[tuple[str, str]]:
    """Return the title and the text of each statement that the authors have made."""
    # fields are named like Python's, and shown as titles
    return [(field.replace("_", " ").capitalize(), text) for field, text in author.statements().items()]
