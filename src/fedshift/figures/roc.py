"""ROC curves site by site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import INK, WIDTH, short, site_panels, style
from ._series import by_partition, sites_of

if TYPE_CHECKING:
    import pandas as pd


class Roc(Figure):
    """Sensitivity against the share of negatives that are flagged, at every threshold, site by site. For two classes.

    Curves of trainings are averaged at equal shares of negatives (Fawcett, Pattern Recognit Lett 2006;27:861).
    """

    title = "ROC curve"
    section = "operating-point"
    most: int = Field(6, ge=1, description="curves of a site that are drawn, each a condition under one inference")

    def caption(self, results: Results) -> str:
        if len(results.classes) != 2:
            return "A ROC curve needs two classes."
        where = "external" if results.external else "internal"
        return (
            f"Every threshold at once, at each {where} site: the share of {_positive(results)} that is flagged "
            f"(sensitivity), against the share of {_negative(results)} that is flagged too. The dotted line is a "
            "guess. Mean over trainings. A threshold that was chosen at home may sit anywhere on the curve of another "
            "site; a site of one class has no curve."
        )

    def draw(self, results: Results) -> str:
        table = by_partition(results.curves())
        if table.empty:
            return self.nothing(results)
        table = table.assign(line=table["condition"] + ", " + table["shown"])
        sites = sites_of(results, table)
        lines = list(dict.fromkeys(table["line"]))[: self.most]
        columns = min(3, len(sites))
        rows = -(-len(sites) // columns)

        def paint(figure: Any) -> None:
            classes = _negative(results), _positive(results)
            negative, positive = (short(f"Share of {name} flagged", 40) for name in classes)
            site_panels(figure, table, sites, lambda axes, part: _panel(axes, part, lines), (negative, positive))

        width = WIDTH if columns == 3 else 0.6 + 2.6 * columns
        return self.picture(results, (width, 0.5 + 2.4 * rows), paint, lines)


def _panel(axes: Any, table: pd.DataFrame, lines: list[str]) -> None:
    """Draw the curves of one site, and the line of a guess. A curve begins at zero, however steeply it rises there."""
    axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=0.9, alpha=0.6)
    for n, line in enumerate(lines):
        curve = table[table["line"] == line].sort_values("false_positives")
        if len(curve):
            x = [0.0, *curve["false_positives"]]
            axes.plot(x, [0.0, *curve["sensitivity"]], label=line, linewidth=1.3, **style(n))
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _positive(results: Results) -> str:
    return results.positive or results.classes[-1]


def _negative(results: Results) -> str:
    return next(name for name in results.classes if name != _positive(results))
