"""Tables as pages show them: cells with a second line and a mark."""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.table import Table


@dataclass(frozen=True)
class PageCell:
    """The text of a table cell, a smaller second line below it, and a mark: worst, better, worse or nothing."""

    text: str
    below: str = ""
    mark: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table on the page. No other table of the page has its `id`. The first `heads` columns name what a row is."""

    id: str
    caption: str
    header: tuple[str, ...]
    rows: list[list[PageCell]]
    heads: int


def plain(name: str, table: Table) -> PageTable:
    """Return a table without marks."""
    return PageTable(name, table.caption, table.header, [[PageCell(c) for c in row] for row in table.rows], table.heads)
