"""Drawing of figures as SVG: readable on light and dark backgrounds, with unique ids, and the same bytes each time."""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

INK = "#010203"
"""A colour that stands for the page's text colour: `_tag` replaces it by `currentColor` in the SVG."""
COLOURS = ("#1f7fc4", "#cf5c00", "#00906a", "#b5568f", "#997000", "#777777")
"""Colours that colour-blind readers can distinguish; their contrast is at least 3.9 on white and on dark grey
(#111)."""
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "D", "s", "^", "v", "P")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
WIDTH = 8.4
"""Width in inches of a figure that fills the width of the page."""
_POINTS = 72 * WIDTH
_REM = 60
"""Width on the page, in rem, of a figure of WIDTH inches. Narrower figures shrink in proportion, so that their text has
the same size."""
_LONGEST = 90
_STYLE = {
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "path.simplify_threshold": 0.3,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedshift",
    "text.color": INK,
    "text.parse_math": False,  # a site may well be called $x
    "xtick.color": INK,
    "ytick.color": INK,
}


def svg(name: str, title: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Draw a matplotlib figure with `draw(figure)` and return it as one <svg> element.

    `size` is the width and height in inches. `title` describes the figure to readers who cannot see it. `name` is put
    before every id of the element, so that ids are unique on a page with several figures.
    """
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    text = _saved(size, draw, {}, format="svg", metadata=metadata).decode()
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style .*?</style>", "", body, flags=re.S)
    body = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], name), body)
    return frame(name, title, (72 * size[0], 72 * size[1]), re.sub(r"\s*\n\s*", "\n", body))


def pdf(size: tuple[float, float], draw: Callable[[Figure], None]) -> bytes:
    """Draw a matplotlib figure with `draw(figure)` and return it as a PDF file, in which text stays text.

    `size` is the width and height in inches.
    """
    return _saved(size, draw, {"pdf.fonttype": 42}, format="pdf", metadata={"CreationDate": None})


def _saved(size: tuple[float, float], draw: Callable[[Figure], None], style: dict[str, Any], **options: Any) -> bytes:
    """Draw a matplotlib figure and return the bytes of its file.

    `size` is in inches. `style` are further matplotlib settings, and `options` are those of `Figure.savefig`, such as
    the format.
    """
    import matplotlib
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with matplotlib.rc_context(_STYLE | style):  # type: ignore[arg-type]
        # A figure that pyplot does not know is drawn by the canvas of the format that it is saved in.
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(out, **options)
    return out.getvalue()


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and line style of each name's line, for matplotlib's `plot`. The first 24 lines all differ."""
    # 6 colours and 4 dashes in step repeat after 12 lines; n // 12 shifts the dashes by one there.
    return {
        name: {"color": COLOURS[n % len(COLOURS)], "linestyle": LINES[(n + n // 12) % len(LINES)]}
        for n, name in enumerate(dict.fromkeys(names))
    }


def marks(names: Iterable[Any], size: float) -> dict[Any, dict[str, Any]]:
    """Return the colour and marker of each name's dots, for matplotlib's `plot`. Markers are `size` points high.

    After six names, colours and markers repeat.
    """
    looks = itertools.cycle(zip(COLOURS, MARKERS, strict=True))
    return {
        name: {"color": colour, "marker": marker, "markersize": size, "linestyle": "none"}
        for name, (colour, marker) in zip(dict.fromkeys(names), looks, strict=False)
    }


def titles(names: Iterable[str]) -> dict[str, str]:
    """Return a mapping from each name to the title of its panel: the name, shortened to 28 characters."""
    return {name: short(name) for name in names}


def short(text: str, length: int = 28) -> str:
    """Return `text`, or its beginning and end with an ellipsis between them if it is longer than `length` characters.

    Names of sites and methods often begin alike, so that the end tells them apart.
    """
    end = (length - 1) // 2
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[len(text) - end :]}"


def legend(figure: Figure) -> None:
    """Add a legend below the panels of a matplotlib figure. A label that several panels share is listed once."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        labels = [_broken(label) for label in handles]
        figure.legend(
            list(handles.values()), labels, loc="outside lower left", ncols=_columns(labels, figure.get_figwidth())
        )


def _broken(label: str) -> str:
    """Return a legend's label in lines of at most _LONGEST characters, shortened if there were more than three."""
    lines = short(label, 3 * _LONGEST).splitlines()
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _LONGEST))


def legend_height(labels: Iterable[str], width: float) -> float:
    """Return the height in inches of the legend with these labels in a figure of `width` inches; 0 without labels."""
    shown = [_broken(label) for label in labels]
    if not shown:
        return 0.0
    lines = -(-len(shown) // _columns(shown, width))
    return 0.1 + 0.2 * lines + 0.15 * sum(label.count("\n") for label in shown)


def _columns(labels: Iterable[str], width: float) -> int:
    """Return the number of columns, 1 to 4, of a legend with these labels in a figure of `width` inches."""
    longest = max(len(line) for label in labels for line in label.splitlines())
    return max(1, min(4, int(width / (0.5 + 0.068 * longest))))


def legend_width(labels: Iterable[str]) -> float:
    """Return the width in inches of a legend with these labels in one column; 0 without labels."""
    return max((0.7 + 0.076 * len(line) for label in labels for line in _broken(label).splitlines()), default=0)


def grid(figure: Figure, count: int, columns: int, **shared: Any) -> list[Any]:
    """Return matplotlib axes for `count` panels in rows of `columns`. Unused places of the last row stay empty.

    `shared` goes to `figure.subplots`, such as `sharey=True`.
    """
    places = list(figure.subplots(-(-count // columns), columns, squeeze=False, **shared).flat)
    for axes in places[count:]:
        axes.set_visible(False)
    return places[:count]


def lines(axes: Any, table: pd.DataFrame, x: str, y: str, looks: Mapping[str, Mapping[str, Any]], **look: Any) -> None:
    """Draw a line of column `y` over column `x` for each key of `looks`: the rows whose column `line` equals the key.

    `looks` maps the name of a line to its matplotlib style, and `look` is the style that all lines share. A name
    without any value in column `y` is skipped. A line of a single point is drawn as a dot.
    """
    for name, own in looks.items():
        curve = table[table["line"] == name]
        if curve[y].notna().any():
            marker = {"marker": "o"} if len(curve) == 1 else {}
            axes.plot(curve[x], curve[y], label=name, **marker | look | dict(own))


def rows(axes: Any, names: Sequence[str]) -> None:
    """Label the y axis with the names of rows. Row n of `names` is drawn at y = n, with row 0 at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def round_axis(axes: Any) -> None:
    """Label the x axis as the number of the round, with ticks at whole numbers only."""
    axes.set_xlabel("Round")
    axes.xaxis.get_major_locator().set_params(integer=True)


def logarithmic(axis: Any) -> None:
    """Make a matplotlib x or y axis logarithmic, with tick labels as plain numbers (0.01 instead of a power of ten)."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: "")


def note(name: str, title: str) -> str:
    """Return an <svg> element that says "Nothing to draw.". Its `title` gives the reason; `name` makes ids unique."""
    body = '<text x="0" y="24" fill="currentColor" font-size="11">Nothing to draw.</text>'
    return frame(name, title, (_POINTS, 40), body)


def _tag(tag: str, name: str) -> str:
    """Return an SVG tag of matplotlib adapted to the page.

    Numbers have two digits, ids begin with `name`, the font is the page's, and INK becomes the page's text colour.
    """
    tag = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), tag)
    tag = re.sub(r'(?<=\sid=")|(?<=url\(#)|(?<=href="#)', f"{name}-", tag)
    return re.sub(r" font-family: 'DejaVu Sans'[^;\"]*;?", "", tag).replace(INK, "currentColor")


def frame(name: str, title: str, size: tuple[float, float], body: str) -> str:
    """Return an <svg> element of `size` (width and height in points) with the content `body`.

    `title` describes the element to readers who cannot see it; `name` makes the title's id unique on the page.
    """
    box = f"0 0 {size[0]:g} {size[1]:g}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" style="--width:{_REM * size[0] / _POINTS:.4g}rem" role="img" aria-labelledby="{name}-title" '
        f'font-family="{FONT}" stroke-linejoin="round" stroke-linecap="butt">\n'
        f'<title id="{name}-title">{escape(title)}</title>\n{body.strip()}\n</svg>\n'
    )
