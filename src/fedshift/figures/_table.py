"""A table of numbers in shaded cells, drawn as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._canvas import COLOURS, WIDTH, short

FEW = 6
"""The most columns that leave room for standard deviations beside the numbers."""
ROW = 0.25
"""Height of a line, inches."""
_LABEL = 40


class Cell(NamedTuple):
    """A number as text, with a shade from 0 (the worst) to 1 (the best), or None for no shade."""

    text: str
    shade: float | None


def head(columns: Sequence[str], across: int) -> float:
    """Return the height of the names of columns, in inches."""
    return 0.25 if _level(columns, across) else 0.2 + 0.05 * max(map(len, columns))


def _level(columns: Sequence[str], across: int) -> bool:
    """Return whether the names of columns fit side by side."""
    return 0.075 * across * max(map(len, columns)) < 0.5 * WIDTH


def table(
    axes: Any, rows: Sequence[tuple[str, Sequence[Cell | None]]], columns: Sequence[str], across: int, top: float
) -> None:
    """Draw rows of a label and cells; a row without cells is a heading.

    There is room for `across` columns. `top` is the height of the names of columns, in inches. The best number of a
    column is bold.
    """
    from matplotlib.patches import Rectangle

    labels = [short(label, _LABEL) for label, _ in rows]
    part = min(0.45, (0.15 + 0.075 * max(map(len, labels))) / WIDTH)
    left = across * part / (1 - part)
    size = 8.5 if across <= 12 else 7.5
    for y, (label, (_, cells)) in enumerate(zip(labels, rows, strict=True)):
        axes.text(-left, y, label, va="center", fontsize=8.5, fontweight="normal" if cells else "bold")
        for x, cell in enumerate(cells):
            if cell is None:
                continue
            if cell.shade is not None:
                colour = (COLOURS[0], 0.04 + 0.4 * cell.shade)
                axes.add_patch(Rectangle((x + 0.02, y - 0.46), 0.96, 0.92, facecolor=colour, linewidth=0))
            text = axes.text(x + 0.5, y, cell.text, ha="center", va="center", fontsize=size)
            if cell.shade == 1:
                text.set_fontweight("bold")
    # Names that do not fit side by side are slanted; the last of them sticks out at the right.
    level = _level(columns, across)
    look = {"ha": "center", "rotation": 0} if level else {"ha": "left", "rotation": 40}
    for x, name in enumerate(columns):
        start = x + 0.5 if level else x + 0.35
        axes.text(start, -0.62, name, va="bottom", rotation_mode="anchor", fontsize=8.5, **look)
    axes.set_xlim(-left, across + 0.6 * (not level))
    axes.set_ylim(len(rows) - 0.5, -0.5 - top / ROW)
    axes.set_axis_off()
