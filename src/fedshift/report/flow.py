"""The flow diagram of a study as SVG: from the table of images over what is left out to the splits of each site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ..figures._canvas import frame, short
from .phrases import counted

WIDTH = 360.0
"""The width of the diagram, which fits a telephone: its letters have there the size that they are drawn in."""
MOST = 24
"""Sites of a side that are listed. The table has all."""
_INSIDE, _GAP, _LINE, _PAD = 210.0, 8.0, 15.0, 8.0
_LETTERS = 14
"""Letters of a site's name."""


@dataclass(frozen=True)
class Reason:
    """Images that are left out, and why."""

    words: str
    images: int


@dataclass(frozen=True)
class Side:
    """The sites of a role: images, patients (empty where unknown), and the images of each split at each site."""

    title: str
    images: int
    people: str
    sites: list[tuple[str, list[int]]]
    splits: tuple[str, ...]

    @property
    def lines(self) -> list[tuple[str, str]]:
        """What is listed: each site with the images of its splits."""
        shown = [(short(site, _LETTERS), " / ".join(f"{n:,}" for n in counts)) for site, counts in self.sites[:MOST]]
        more = len(self.sites) - MOST
        if more > 0:
            shown.append((f"{more} more sites", ""))
        return shown


@dataclass(frozen=True)
class Flow:
    """Images and patients of the table (empty where they are unknown), what is left out of it, and where others go."""

    images: int
    people: str
    left_out: list[Reason]
    sides: list[Side]


def described(flow: Flow) -> str:
    """Return the diagram in words, for readers who cannot see it."""
    parts = [f"Flow of images. Table: {', '.join(_totals(flow))}."]
    parts.append(f"Left out: {', '.join(f'{r.images:,} {r.words}' for r in flow.left_out) or 'none'}.")
    for side in flow.sides:
        sites = "; ".join(
            f"{site} {', '.join(f'{split} {n:,}' for split, n in zip(side.splits, counts, strict=True))}"
            for site, counts in side.sites
        )
        parts.append(f"{side.title}: {', '.join(_totals(side))} ({sites}).")
    return " ".join(parts)


def svg(name: str, flow: Flow) -> str:
    """Return the diagram; `name` makes its ids unique."""
    body = list(_box(0, 0, WIDTH, ["Table of images", ", ".join(_totals(flow))]))
    top = 2 * _LINE + _PAD
    reasons = [f"{reason.images:,} {reason.words}" for reason in flow.left_out]
    lines = ["Left out", *(short(text, 46) for text in reasons or ["none"])]
    body += _arrow(_INSIDE / 2 - 20, top, top + len(lines) * _LINE + 4 * _PAD)
    body += _arrow_right(_INSIDE / 2 - 20, top + _PAD + _LINE, _INSIDE / 2 + 4)
    body += _box(_INSIDE / 2 + 4, top + _PAD, WIDTH - _INSIDE / 2 - 4, lines, dashed=True)
    top += len(lines) * _LINE + 4 * _PAD
    heights = []
    x = 0.0
    for n, side in enumerate(flow.sides):
        width = WIDTH
        if len(flow.sides) > 1:
            width = (_INSIDE, WIDTH - _INSIDE - _GAP)[n]
        heads = [side.title, *_totals(side), f"{' / '.join(side.splits)} images"]
        body += _box(x, top, width, heads, side.lines)
        heights.append((len(heads) + len(side.lines)) * _LINE + _PAD)
        x += width + _GAP
    return frame(name, described(flow), (WIDTH, top + max(heights, default=0.0) + 2), "\n".join(body))


def _totals(part: Flow | Side) -> list[str]:
    """Return the numbers of images and of patients, where these are known."""
    return [*filter(None, (counted(part.images, "image"), part.people))]


def _box(
    x: float, y: float, width: float, heads: list[str], lines: Sequence[tuple[str, str]] = (), dashed: bool = False
) -> Iterator[str]:
    """Yield a box with lines of text at its left, the first of them bold, and then with pairs at both sides."""
    height = (len(heads) + len(lines)) * _LINE + _PAD
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    yield (
        f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{width - 1:g}" height="{height:g}" rx="4" fill="none" '
        f'stroke="currentColor" stroke-opacity="0.5"{dashes}/>'
    )
    for n, text in enumerate(heads):
        weight = ' font-weight="600"' if n == 0 else ""
        yield _text(x + _PAD, y + (n + 1) * _LINE, text, weight)
    for n, (left, right) in enumerate(lines, len(heads)):
        yield _text(x + _PAD, y + (n + 1) * _LINE, left)
        yield _text(x + width - _PAD, y + (n + 1) * _LINE, right, ' text-anchor="end"')


def _text(x: float, y: float, text: str, look: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="10.5" fill="currentColor"{look}>{escape(text)}</text>'


def _arrow(x: float, top: float, bottom: float) -> Iterator[str]:
    """Yield an arrow that points down."""
    yield (
        f'<path d="M{x:g} {top:g}V{bottom - 1:g}m-3 -5l3 5l3 -5" fill="none" stroke="currentColor" '
        'stroke-opacity="0.7"/>'
    )


def _arrow_right(left: float, y: float, right: float) -> Iterator[str]:
    """Yield an arrow that points to the right."""
    yield (
        f'<path d="M{left:g} {y:g}H{right - 1:g}m-5 -3l5 3l-5 3" fill="none" stroke="currentColor" '
        'stroke-opacity="0.7"/>'
    )
