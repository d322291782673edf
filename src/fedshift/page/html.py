"""Building blocks of HTML pages (tables, headings, warnings, figures) and the Jinja templates that render them.

Each page is a single HTML file that loads nothing from elsewhere. The templates escape all text.
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
"""The icon of each status that a check of data or results can have, from the most to the least serious."""


@dataclass(frozen=True)
class PageCell:
    """A table cell: its text, a second line in small print, and the name of its style.

    `mark` is worst, better, worse or "" for a plain cell.
    """

    text: str
    below: str = ""
    mark: str = ""


@dataclass(frozen=True)
class PageTable:
    """A table of an HTML page. The first `heads` columns identify a row; the other columns hold its values."""

    caption: str
    header: tuple[str, ...]
    rows: list[list[PageCell]]
    heads: int


@dataclass(frozen=True)
class Note:
    """A paragraph in small print, such as the legend of a table."""

    text: str


@dataclass(frozen=True)
class Lead:
    """An introductory paragraph in larger print."""

    text: str


@dataclass(frozen=True)
class Light:
    """A status light on the first screen: the outcome of one group of checks, with a link to the details.

    Attributes
    ----------
    name : what was checked, such as "Leaks and copies"
    status : ok, unknown, suspect or problem
    detail : what was found, in one sentence
    place : id of the page's section that the light links to
    """

    name: str
    status: str
    detail: str
    place: str


@dataclass(frozen=True)
class Lights:
    """A row of status lights, each the outcome of one group of checks, such as leaks between training and test data."""

    rows: Sequence[Light]


@dataclass(frozen=True)
class Tile:
    """One of the large numbers below the answer on the first screen, with a label above and a note below."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Tiles:
    """A row of large numbers below the answer on the first screen."""

    rows: Sequence[Tile]


@dataclass(frozen=True)
class Screen:
    """The verdict of a study as the top of its page shows it: a word, a sentence and the next step.

    Attributes
    ----------
    word, tone : the verdict in a few words, and whether its style is good, bad or plain
    sentence : what the verdict means, in one or two sentences without names of algorithms
    whom : the algorithm with its settings, and the sites that the verdict holds for
    settle : how many more patients or trainings would lead to a verdict; may be empty
    size : how large a significant loss is relative to the margin; else empty
    step : what the author should do next, with a line of YAML or a command in backticks
    low : a warning that the score is low in absolute terms although the model holds up at external sites; else empty
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
    """A subheading inside a section."""

    text: str


@dataclass(frozen=True)
class Code:
    """Preformatted text to copy, such as a shell command. Screen readers read `label` as its name."""

    label: str
    text: str


@dataclass(frozen=True)
class Facts:
    """A definition list: each row is a name and the paragraphs about it."""

    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Claim:
    """A claim that was made before the results were known, with its answer and the numbers found.

    Attributes
    ----------
    answer : such as yes, no or cannot tell
    claim : the claim as its author wrote it
    found : the numbers that decide it; may be empty
    tone : style of the answer: better, worse or "" for neutral
    """

    answer: str
    claim: str
    found: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Claims:
    """A list of claims that were made before the results were known, each with its answer."""

    rows: Sequence[Claim]


@dataclass(frozen=True)
class Download:
    """A download link whose file is embedded in the page as a data URI, with a label and a file name."""

    label: str
    name: str
    uri: str


@dataclass(frozen=True)
class Drawn:
    """A figure of the page as an SVG that fedshift drew, with title, caption and download links.

    `svg` is empty if the figure has not been drawn yet. `parts` (pairs of title and SVG) are shown as collapsible
    blocks.
    """

    title: str
    caption: str
    svg: str
    downloads: Sequence[Download] = ()
    parts: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Picture:
    """An SVG picture without title or caption; `look` is its CSS class."""

    svg: str
    look: str


@dataclass(frozen=True)
class PicturedPair:
    """Two images that may be copies of each other, side by side.

    `images` are two pairs of a base64-encoded PNG and its caption lines; `likeness` states their correlation in words.
    """

    images: Sequence[tuple[str, Sequence[str]]]
    likeness: str


@dataclass(frozen=True)
class Concern:
    """The outcome of one check of data or results: its status, its text, and pairs of look-alike images as evidence.

    The status is PROBLEM, suspect, unknown, caveat or ok.
    """

    status: str
    text: str
    pairs: Sequence[PicturedPair] = field(default=(), compare=False)

    @property
    def icon(self) -> str:
        """The icon of the status, for readers who cannot see its colour."""
        return ICONS[self.status]


@dataclass(frozen=True)
class Concerns:
    """A list of check outcomes; `about_pairs` explains how look-alike images, shown as evidence, were found."""

    rows: Sequence[Concern]
    about_pairs: str = ""


@dataclass(frozen=True)
class Fold:
    """A collapsible block with a title. If it is `secondary`, the printed page leaves it out."""

    title: str
    blocks: Sequence[Block]
    secondary: bool = False


Block = (
    str | Lead | Lights | Tiles | Note | Heading | Code | Facts | Claims | Concerns | Picture | Drawn | PageTable | Fold
)
"""Any part of a section. A plain string is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A section of an HTML page.

    Attributes
    ----------
    id : HTML id that links point to
    title : the heading
    blocks : the content, in order
    short : the title in the table of contents; empty for a section that is not listed there
    late : True for details near the end of the page, which are shown as a collapsible block
    printed : whether a `late` section is printed
    """

    id: str
    title: str
    blocks: Sequence[Block] = ()
    short: str = ""
    late: bool = False
    printed: bool = False

    @property
    def lines(self) -> list[str]:
        """The paragraphs of the section that are not inside a collapsible block."""
        return [block for block in self.blocks if isinstance(block, str)]

    @property
    def tables(self) -> list[PageTable]:
        """The tables of the section that are not inside a collapsible block."""
        return [block for block in self.blocks if isinstance(block, PageTable)]


def plain(table: Table, marks: Mapping[str, str] | None = None) -> PageTable:
    """Convert a table of texts for the page. `marks` maps texts of the last column to the style of their cell."""
    rows = [[PageCell(text) for text in row] for row in table.rows]
    for row in rows:
        row[-1] = replace(row[-1], mark=(marks or {}).get(row[-1].text, ""))
    return PageTable(table.caption, table.header, rows, table.heads)


def linked(text: str) -> str:
    """Return a text as escaped HTML in which web addresses are links."""
    from jinja2.utils import urlize
    from markupsafe import Markup

    return Markup(urlize(text, rel="noreferrer"))


def coded(text: str) -> str:
    """Return a text as escaped HTML in which passages in backticks, such as a command, are marked up as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


FOLDED = 20
"""The most tables of further conditions (algorithm x batch norm policy x settings) that a collapsible block holds."""


def further(shown: Sequence[PageTable], others: Sequence[PageTable]) -> list[Block]:
    """Return the tables to show at once, followed by a collapsible block with the tables of the `others`.

    Of many `others` the block holds only the first `FOLDED`, so that a page with hundreds of compared methods stays
    small enough for a browser. `shown` are the tables of the condition (algorithm x batch norm policy x settings) that
    the page is about.
    """
    if not others:
        return [*shown]
    title = counted(len(others), "further condition")
    if len(others) > FOLDED:
        title += f", the first {FOLDED} of them here; all are in the tables to download"
    return [*shown, Fold(title, others[:FOLDED], secondary=True)]


@functools.cache
def _environment() -> Environment:
    """Return the Jinja environment that compiles and renders the page templates."""
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
    """Render a template of the folder `templates` and return the HTML.

    `template` is its file name, and `content` holds its variables. The shared style sheet is added as the variable
    `css`.
    """
    from markupsafe import Markup

    # the style sheet is ours: escaped, its quotes would be lost
    css = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return _environment().get_template(template).render(content | {"css": css})
