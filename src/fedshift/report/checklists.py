"""The reporting checklists CLAIM 2024 and TRIPOD+AI, as far as fedshift and the study's authors have filled them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..study.author import Author
from .checklist_items import CLAIM, TRIPOD_AI, Item


@dataclass(frozen=True)
class Line:
    """An item on the page: the item, and whether it is open, which means that the author's part has no text."""

    item: Item
    open: bool


@dataclass(frozen=True)
class Checklist:
    """A checklist with all its lines. `name` is its name, `parts` what it counts, `source` its citation."""

    name: str
    parts: str
    source: str
    lines: tuple[Line, ...]

    @property
    def open(self) -> int:
        """The number of items that the authors have still to fill."""
        return sum(line.open for line in self.lines)

    @property
    def summary(self) -> str:
        """Return how many items are open, in one line."""
        need = "needs" if self.open == 1 else "need"
        return f"{self.name}: prefilled by fedshift; {self.open} of {len(self.lines)} {self.parts} {need} you"


def checklists(author: Author) -> list[Checklist]:
    """Return both checklists. An item that is not fedshift's alone is open until the author's field for it has text."""
    texts = author.statements()
    return [
        Checklist("CLAIM 2024", "items", "Tejani et al. 2024, Radiology: AI 6(4):e240300", _lines(CLAIM, texts)),
        Checklist(
            "TRIPOD+AI", "parts of its 27 items", "Collins et al. 2024, BMJ 385:e078378", _lines(TRIPOD_AI, texts)
        ),
    ]


def _lines(items: tuple[Item, ...], texts: Container[str]) -> tuple[Line, ...]:
    return tuple(Line(item, item.who != "fedshift" and item.field not in texts) for item in items)


def statements(author: Author) -> list[tuple[str, str]]:
    """Return the title and the text of each statement that the authors have made."""
    return [(_title(name), text) for name, text in author.statements().items()]


def _title(field: str) -> str:
    return field.replace("_", " ").capitalize()
