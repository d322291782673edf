"""How far the features of external sites are from those of internal sites, under each inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, short

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {"a_distance": "Proxy A-distance", "mmd": "MMD², unbiased"}
HOME = "internal sites, each with the others"
MOST = 24
"""Lines of a panel; with more, external sites are averaged."""


class Divergence(Figure):
    """Proxy A-distance and MMD of the last layer's inputs, between each external site and the internal sites.

    TsmoBN and UniFed (corollaries 3.8 and 3.9) argue that test-specific statistics bring both closer.
    """

    title = "Divergence of features between sites"

    def caption(self, results: Results) -> str:
        table = results.divergence
        if table is None or table.empty:
            return "This figure needs a trained run with test images of at least one external and one internal site."
        outside = table[table["role"] == "external"]
        means = outside.groupby("shown", sort=False)["a_distance"].mean()
        words = "; ".join(f"{value:.2f} with {name}" for name, value in means.items())
        home = table.loc[table["role"] == "internal", "a_distance"].mean()
        yardstick = ""
        if home == home:
            yardstick = f", and {home:.2f} between each internal site and the others"
        return (
            "What the last layer sees of up to 200 random test images of a site, beside as many of the internal sites "
            "as trained. The A-distance is 0 if a linear classifier, tested on other patients, cannot tell the two "
            "apart, and 2 if it always can; MMD² compares the whole distributions. Mean A-distance of external sites: "
            f"{words}{yardstick}. Other shares of the classes count as divergence, too. A smaller divergence shows "
            "that images look more alike to the network, and does not prove that they are predicted rightly."
        )

    def draw(self, results: Results) -> str:
        table = results.divergence
        if table is None or table.empty:
            return self.nothing(results)
        lines = places(table)
        names = list(dict.fromkeys(lines["place"]))
        labels = list(dict.fromkeys(lines["label"]))

        def paint(figure: Any) -> None:
            panels = figure.subplots(1, 2, sharey=True)
            for axes, (measure, title) in zip(panels, MEASURES.items(), strict=True):
                for k, label in enumerate(labels):
                    part = lines[lines["label"] == label]
                    colour = INK if label == HOME else COLOURS[k % len(COLOURS)]
                    marker = "|" if label == HOME else MARKERS[k % len(MARKERS)]
                    look = {"color": colour, "marker": marker, "markersize": 11 if label == HOME else 6}
                    heights = [names.index(place) for place in part["place"]]
                    axes.plot(part[measure], heights, label=label, linestyle="none", **look)
                axes.set_title(title)
                axes.axvline(0, color=INK, linewidth=0.6)
            panels[0].set_yticks(range(len(names)), [short(name, 40) for name in names])
            panels[0].set_ylim(len(names) - 0.5, -0.5)

        return self.picture(results, (WIDTH, 0.8 + 0.3 * len(names)), paint, labels)


def places(table: pd.DataFrame) -> pd.DataFrame:
    """Return the means over trainings, and over internal sites, as points: place, label and both measures.

    A place is an external site under a condition; with more than MOST of them, it is a condition.
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
