"""Pages from templates, and the parts that they share: tables, cells and sections.

Each page is one file that loads nothing, and all text in it is escaped.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.table import Table
from ..core.spelling import counted

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
OPEN = 1
"""Tables of conditions that a section shows. Further ones are folded."""


@dataclass(frozen=True)
class PageCell:
    """The text of a table cell, a smaller second line below it, and a mark: worst, better, worse or nothing."""

    text: str
    below: str = ""
    mark: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table on the page. The first `heads` columns name what a row is about."""

    caption: str
    header: tuple[str, ...]
    rows: list[list[PageCell]]
    heads: int


@dataclass(frozen=True)
class Fold:
    """A part of a section that is folded away under its title; a `secondary` one is not printed either."""

    title: str
    tables: list[PageTable] = field(default_factory=list)
    lines: Sequence[str] = ()
    secondary: bool = False


@dataclass(frozen=True)
class Section:
    """A section of the page: sentences, tables, and parts that are folded away."""

    id: str
    title: str
    lines: Sequence[str] = ()
    tables: list[PageTable] = field(default_factory=list)
    folds: list[Fold] = field(default_factory=list)


def plain(table: Table, marks: Mapping[str, str] | None = None) -> PageTable:
    """Return a table as a page shows it. `marks` maps texts of the last column to their mark."""
    rows = [[PageCell(text) for text in row] for row in table.rows]
    for row in rows:
        row[-1] = replace(row[-1], mark=(marks or {}).get(row[-1].text, ""))
    return PageTable(table.caption, table.header, rows, table.heads)


def further(tables: list[PageTable]) -> tuple[list[PageTable], list[Fold]]:
    """Return the tables of conditions that a section shows, and further ones in a secondary fold."""
    folds = []
    if tables[OPEN:]:
        folds.append(Fold(counted(len(tables) - OPEN, "further condition"), tables[OPEN:], secondary=True))
    return tables[:OPEN], folds


@functools.cache
def _environment() -> Environment:
    """Return what templates are filled by; it compiles each of them once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedshift.report"),
        autoescape=True,
        # a name that the page lacks is an error, not an empty text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["counted"] = counted
    return environment


def render(template: str, content: dict[str, Any]) -> str:
    """Return a template filled with its content. All pages share the style sheet, as `css`."""
    from markupsafe import Markup

    # the style sheet is ours: escaped, its quotes would be lost
    css = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return _environment().get_template(template).render(content | {"css": css})
