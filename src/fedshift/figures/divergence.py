"""Divergence between the features of external and of internal sites, under each prediction method (inference)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._base import Figure, Results
from ._canvas import INK, marks, rows, short

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {"a_distance": "Proxy A-distance", "mmd": "MMD², unbiased"}
HOME = "internal sites, each with the others"
AT_HOME = {"color": INK, "marker": "|", "markersize": 11, "linestyle": "none"}
MOST = 24
"""Largest number of rows of a panel with a row for each external site; with more, a row is a mean over external
sites."""


class Divergence(Figure):
    """Proxy A-distance and MMD of the last layer's inputs, between each external site and the internal sites.

    TsmoBN and UniFed (corollaries 3.8 and 3.9) argue that test-specific batch-norm statistics reduce both. The figure
    draws divergence.csv.
    """

    title = "Divergence of features between sites"

    def caption(self, results: Results) -> str:
        table = results.tables.get("divergence")
        if table is None or table.empty:
            return "This figure needs a trained run with test images of at least one external and one internal site."
        outside = table[table["role"] == "external"]
        means = outside.groupby("shown", sort=False)["a_distance"].mean()
        words = "; ".join(f"{value:.2f} with {name}" for name, value in means.items())
        home = table.loc[table["role"] == "internal", "a_distance"].mean()
        yardstick = f", and {home:.2f} between each internal site and the others" if home == home else ""
        return (
            "What the last layer sees of up to 200 random test images of a site, beside as many of the internal sites "
            "as trained. The A-distance is 0 if a linear classifier, tested on other patients, cannot tell the two "
            "apart, and 2 if it always can; MMD² compares the whole distributions. Mean A-distance of external sites: "
            f"{words}{yardstick}. Other shares of the classes count as divergence, too. A smaller divergence shows "
            "that images look more alike to the network, and does not prove that they are predicted rightly."
        )

    def draw(self, results: Results) -> str:
        table = results.tables.get("divergence")
        if table is None or table.empty:
            return self.nothing(results)
        dots = places(table)
        names = list(dict.fromkeys(dots["place"]))
        looks = marks(dict.fromkeys(dots["label"]), 6) | {HOME: AT_HOME}

        def panel(axes: Any, measure: str) -> None:
            for label, part in dots.groupby("label", sort=False):
                axes.plot(part[measure], [names.index(place) for place in part["place"]], label=label, **looks[label])
            axes.axvline(0, color=INK, linewidth=0.6)
            rows(axes, [short(name, 40) for name in names])
            axes.grid(axis="y")

        size = (3.9, 0.4 + 0.3 * len(names))
        return self.panels(results, MEASURES, panel, dict.fromkeys(dots["label"]), size=size, sharey=True)


def places(table: pd.DataFrame) -> pd.DataFrame:
    """Return the points of the figure: a table with the columns place, label, a_distance and mmd, mean over trainings.

    `place` is the row of a point: an external site under a condition (algorithm x batch norm policy x settings), or a
    condition alone if there would be more than MOST rows. `label` is the inference (prediction method); HOME marks the
    mean divergence between each internal site and the others.
    """
    import pandas as pd

    outside = table[table["role"] == "external"]
    several = table["condition"].nunique() > 1
    by_site = len(outside[["condition", "site"]].drop_duplicates()) <= MOST
    words = outside["condition"] if several or not by_site else outside["site"]
    if several and by_site:
        words = outside["condition"] + ": " + outside["site"]
    measures = list(MEASURES)
    points = outside.assign(place=words).rename(columns={"shown": "label"})
    home = table[table["role"] == "internal"].groupby("condition", sort=False)[measures].mean()
    at_home = points.drop_duplicates("place")[["place", "condition"]].join(home, on="condition").dropna(subset=measures)
    means = points.groupby(["place", "label"], sort=False)[measures].mean().reset_index()
    return pd.concat([means, at_home.assign(label=HOME)], ignore_index=True)
