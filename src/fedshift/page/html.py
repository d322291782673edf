"""Pages from templates, and the parts that they share: tables, cells and sections.

Each page is one file that loads nothing, and all text in it is escaped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..analysis.values import Table
from ..core.spelling import counted

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
ICONS = {"PROBLEM": "✕", "suspect": "!", "unknown": "?", "caveat": "i", "ok": "✓"}
"""The sign of each status of a concern, the gravest first."""


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
class Note:
    """A remark in small letters, such as the key of a table."""

    text: str


@dataclass(frozen=True)
class Lead:
    """A paragraph in larger letters."""

    text: str


@dataclass(frozen=True)
class Light:
    """One thing that can be wrong: its name, whether it is ok, unknown, suspect or a problem, and where more is."""

    name: str
    status: str
    detail: str
    place: str


@dataclass(frozen=True)
class Lights:
    """What readers ask first, side by side."""

    rows: Sequence[Light]


@dataclass(frozen=True)
class Tile:
    """One number of the headline, with a note below it."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Tiles:
    """Numbers of the headline, side by side."""

    rows: Sequence[Tile]


@dataclass(frozen=True)
class Screen:
    """The verdict of a study for readers in a hurry.

    Attributes
    ----------
    word, tone : the verdict, and whether it is good, bad or plain
    sentence : what it means, with three numbers at most and without names of methods
    whom : the condition, and the sites that the verdict holds for
    settle : what would decide it: how many more patients or trainings; may be empty
    size : an established loss against the margin, in words; else empty
    step : what to do next, with a line of YAML or a command in backticks
    low : that a level which holds up is low in itself; else empty
    """

    word: str
    tone: str
    sentence: str
    whom: str
    settle: str
    size: str = ""
    step: str = ""
    low: str = ""


@dataclass(frozen=True)
class Heading:
    """The heading of a part of a section."""

    text: str


@dataclass(frozen=True)
class Code:
    """Lines to copy, as they are. The label names them for readers who cannot see them."""

    label: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Pairs of a name and paragraphs about it."""

    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Claim:
    """A claim with its answer, what was found, and the tone of the answer: better, worse or nothing."""

    answer: str
    claim: str
    found: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Claims:
    """What a study claimed beforehand and what it found, one claim below the other."""

    rows: Sequence[Claim]


@dataclass(frozen=True)
class Download:
    """A link that holds its own file."""

    label: str
    name: str
    uri: str


@dataclass(frozen=True)
class Drawn:
    """A figure on the page: SVG of our own, with its texts escaped.

    `svg` is empty where it has not been drawn, and `parts` (title and SVG) are opened one by one.
    """

    title: str
    caption: str
    svg: str
    downloads: Sequence[Download] = ()
    parts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Picture:
    """A picture (SVG of our own) without a title; `look` is its class in the style sheet."""

    svg: str
    look: str


@dataclass(frozen=True)
class PicturedPair:
    """Two images that look alike: of each a base64 PNG and lines of text, and how alike they are, in words."""

    images: Sequence[tuple[str, Sequence[str]]]
    likeness: str


@dataclass(frozen=True)
class Concern:
    """One thing that can be wrong: PROBLEM, suspect, unknown, caveat or ok, what it is about, and pairs of images."""

    status: str
    text: str
    pairs: Sequence[PicturedPair] = field(default=(), compare=False)

    @property
    def icon(self) -> str:
        """The sign of the status, for readers who do not see its colour."""
        return ICONS[self.status]


@dataclass(frozen=True)
class Concerns:
    """What can be wrong, one below the other; `about_pairs` says how pairs of images were found."""

    rows: Sequence[Concern]
    about_pairs: str = ""


@dataclass(frozen=True)
class Fold:
    """Blocks that are folded away under a title; a `secondary` fold is not printed either."""

    title: str
    blocks: Sequence[Block]
    secondary: bool = False


Block = (
    str | Lead | Lights | Tiles | Note | Heading | Code | Facts | Claims | Concerns | Picture | Drawn | PageTable | Fold
)
"""A part of a section; a text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes
    ----------
    id : the place that links lead to
    title : the heading
    blocks : what the section shows, in its order
    short : the title in the table of contents; empty for a section that is not in it
    late : a section of details near the end of the page, which is folded away
    printed : whether a late section is printed
    """

    id: str
    title: str
    blocks: Sequence[Block] = ()
    short: str = ""
    late: bool = False
    printed: bool = False

    @property
    def lines(self) -> list[str]:
        """The paragraphs, without those in folds."""
        return [block for block in self.blocks if isinstance(block, str)]

    @property
    def tables(self) -> list[PageTable]:
        """The tables, without those in folds."""
        return [block for block in self.blocks if isinstance(block, PageTable)]


def plain(table: Table, marks: Mapping[str, str] | None = None) -> PageTable:
    """Return a table as a page shows it. `marks` maps texts of the last column to their mark."""
    rows = [[PageCell(text) for text in row] for row in table.rows]
    for row in rows:
        row[-1] = replace(row[-1], mark=(marks or {}).get(row[-1].text, ""))
    return PageTable(table.caption, table.header, rows, table.heads)


def linked(text: str) -> str:
    """Return a text in which addresses of the web are links."""
    from jinja2.utils import urlize
    from markupsafe import Markup

    return Markup(urlize(text, rel="noreferrer"))


def coded(text: str) -> str:
    """Return a text in which what stands in backticks, such as a line of YAML or a command, is marked as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


FOLDED = 20
"""Largest number of further conditions whose tables a section has in its fold."""


def further(shown: Sequence[PageTable], others: Sequence[PageTable]) -> list[Block]:
    """Return the tables that a section shows, and a secondary fold with those of further conditions.

    Of many conditions the fold has the first `FOLDED` alone, so that a page of hundreds stays one that a browser opens.
    """
    if not others:
        return [*shown]
    title = counted(len(others), "further condition")
    if len(others) > FOLDED:
        title += f", the first {FOLDED} of them here; all are in the tables to download"
    return [*shown, Fold(title, others[:FOLDED], secondary=True)]


@functools.cache
def _environment() -> Environment:
    """Return what templates are filled by; it compiles each of them once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fedshift.page"),
        autoescape=True,
        # a name that the page lacks is an error, not an empty text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["counted"] = counted
    environment.filters["coded"] = coded
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def render(template: str, content: dict[str, Any]) -> str:
    """Return a template filled with its content. All pages share the style sheet, as `css`."""
    from markupsafe import Markup

    # the style sheet is ours: escaped, its quotes would be lost
    css = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return _environment().get_template(template).render(content | {"css": css})
