"""ROC curves at each site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import INK, lines, short, styles, titles
from ._series import by_partition, sites_of

if TYPE_CHECKING:
    import pandas as pd


class Roc(Figure):
    """The sensitivity at every threshold against the share of negatives that are flagged, at each site.

    The figure needs a study of two classes, and is empty for others.

    Curves of several trainings are averaged vertically: the mean sensitivity at equal shares of flagged negatives
    (Fawcett, Pattern Recognit Lett 2006;27:861).
    """

    title = "ROC curve"
    section = "operating-point"
    most: int = Field(
        6, ge=1, description="number of curves that are drawn at a site, each a condition under one inference"
    )

    def caption(self, results: Results) -> str:
        if len(results.classes) != 2:
            return "A ROC curve needs two classes."
        where = "external" if results.external else "internal"
        negative, positive = _classes(results)
        more = _curves(results)["line"].nunique() - self.most
        left_out = f" Further curves left out here: {more}." if more > 0 else ""
        return (
            f"Every threshold at once, at each {where} site: the share of {positive} that is flagged "
            f"(sensitivity), against the share of {negative} that is flagged too. The dotted line is a "
            "guess. Mean over trainings. A threshold that was chosen at home may sit anywhere on the curve of another "
            f"site; a site of one class has no curve.{left_out}"
        )

    def draw(self, results: Results) -> str:
        import pandas as pd

        table = _curves(results)
        if table.empty:
            return self.nothing(results)
        looks = dict(list(styles(table["line"]).items())[: self.most])
        # A curve begins at zero, however steeply it rises there.
        starts = table.drop_duplicates(["site", "line"]).assign(false_positives=0.0, sensitivity=0.0)
        table = pd.concat([starts, table]).sort_values("false_positives", kind="stable")

        def panel(axes: Any, site: str) -> None:
            axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=0.9, alpha=0.6)
            lines(axes, table[table["site"] == site], "false_positives", "sensitivity", looks, linewidth=1.3)
            axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))

        sites = titles(sites_of(results, table))
        x, y = (short(f"Share of {name} flagged", 40) for name in _classes(results))
        return self.panels(results, sites, panel, looks, names=(x, y), sharex=True, sharey=True)


def _curves(results: Results) -> pd.DataFrame:
    """Return the points of all ROC curves; the column `line` names condition, partition and inference of a curve."""
    table = by_partition(results.curves())
    return table.assign(line=table["condition"] + ", " + table["shown"] if len(table) else "")


def _classes(results: Results) -> tuple[str, str]:
    """Return the names of the negative and of the positive class, of two classes."""
    positive = results.positive or results.classes[-1]
    return next(name for name in results.classes if name != positive), positive
