"""The headline metric at external sites by the options of prediction methods: batch size, momentum, image order."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, LINES, MARKERS, short
from ._series import OPTIONS, apart, axis, centres, headline, over_seeds, over_sites

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "source"
TITLES = {"batch_size": "Images of a test batch", "momentum": "Momentum τ", "order": "Test order"}
NAMES = {"batch_size": "batch sizes", "momentum": "momentum", "order": "orders"}
Looks = dict[tuple[str, str], dict[str, Any]]
"""Label and matplotlib style of each line, by the titles of its condition (algorithm x batch norm policy x settings)
and its inference (prediction method)."""


class TestTime(Figure):
    """The headline metric at external sites against batch size and momentum of an inference, and over test orders.

    An inference is a way to predict a site, such as with statistics of the test batch. A test order is a random order
    of the site's images.
    """

    title = "Options at test time"
    section = "comparison"
    thin: int = Field(
        40,
        ge=0,
        description="largest number of thin lines in a panel, one for each site; with more, no single sites are drawn",
    )
    boxes: int = Field(
        6,
        ge=0,
        description="largest number of sites with boxes of their own; with more, boxes show the mean over sites",
    )

    def caption(self, results: Results) -> str:
        scores = outside(results)
        panels = swept(scores)
        if not panels:
            return "No batch size, momentum or test order of an inference has several values at an external site."
        words = [f"{results.headline.title} at external sites, each counted once, mean over seeds"]
        curves = panels.keys() - {"order"}
        if curves and scores["site"].nunique() > 1 and self._thin(panels):
            words.append("thin: single sites")
        if curves and (scores["inference"] == BASELINE).any():
            words.append("dotted: source, with training statistics")
        if "order" in panels:
            words.append("boxes: quartiles over test orders, with whiskers from the smallest to the largest value")
        fixed = [f"{NAMES[c]} at {options}" for c, part in panels.items() if (options := fixed_options(part))]
        if fixed:
            words.append(f"shown: {', '.join(fixed)}")
        return f"{'; '.join(words)}."

    def _thin(self, panels: dict[str, pd.DataFrame]) -> bool:
        """Return whether lines of single sites are drawn: where at most `self.thin` of them fall into a panel.

        `panels` is the result of `swept`.
        """
        lines = [part.groupby(["condition", "inference", "site"]).ngroups for c, part in panels.items() if c != "order"]
        return max(lines, default=0) <= self.thin

    def draw(self, results: Results) -> str:
        scores = outside(results)
        panels = swept(scores)
        if not panels:
            return self.nothing(results)
        looks = _looks(panels)
        source = over_seeds(over_sites(scores[scores["inference"] == BASELINE], ["condition"]))["mean"]

        def panel(axes: Any, column: str) -> None:
            if column == "order":
                self._orders(axes, panels[column], looks, results)
            else:
                self._curves(axes, panels[column], column, looks, source, self._thin(panels))

        titles, labels = {column: TITLES[column] for column in panels}, [look["label"] for look in looks.values()]
        size, names = (7.8 / len(panels), 2.6), ("", axis(results))
        return self.panels(results, titles, panel, labels, size=size, names=names)

    def _curves(self, axes: Any, part: pd.DataFrame, column: str, looks: Looks, source: pd.Series, thin: bool) -> None:
        """Draw the panel of batch size or momentum (`column`), with a line for each condition and inference.

        A condition is an algorithm with its batch-norm policy and settings; an inference is a prediction method. `part`
        holds the scores, `source` the mean of each condition under the inference `source`, drawn as a dotted line. With
        `thin`, each site has a thin line.
        """
        for (condition, inference), group in part.groupby(["condition", "inference"], sort=False):
            look = looks[str(condition), str(inference)]
            if thin and group["site"].nunique() > 1:
                for _, site in group.groupby("site"):
                    line = curve(site, column)
                    axes.plot(line.index, line, color=look["color"], alpha=0.4, linewidth=0.6)
            line = curve(group, column)
            axes.plot(line.index, line, linewidth=1.6, markersize=4, **look)
        colours = {condition: look["color"] for (condition, _), look in looks.items()}
        for name, colour in colours.items():
            if name in source:
                axes.axhline(source[name], color=colour, linestyle=":", linewidth=1.4)
        if column == "batch_size":
            sizes = sorted(set(part[column]))
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 7 else 0)
            axes.minorticks_off()

    def _orders(self, axes: Any, part: pd.DataFrame, looks: Looks, results: Results) -> None:
        """Draw the panel of test orders: a box over orders for each key of `looks`, side by side at each site.

        Keys are the titles of a condition (algorithm x batch norm policy x settings) and an inference (prediction
        method). With more than `self.boxes` sites, there is one group of boxes for the mean over sites.
        """
        sites = [site for site in results.external if site in set(part["site"])]
        groups = [(short(site, 12), part[part["site"] == site]) for site in sites]
        if len(sites) > self.boxes:
            groups = [("all sites", part)]
        width = 0.7 / len(looks)
        for look in looks.values():  # boxes have no label
            axes.plot([], [], color=look["color"], linestyle=look["linestyle"], label=look["label"])
        for x, (_, group) in enumerate(groups):
            for n, ((condition, inference), look) in enumerate(looks.items()):
                chosen = group[(group["condition"] == condition) & (group["inference"] == inference)]
                if chosen.empty:
                    continue
                place = x + (n - (len(looks) - 1) / 2) * width
                lines = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                styles = dict.fromkeys(("boxprops", "whiskerprops", "capprops"), lines)
                styles["medianprops"] = {"color": INK, "linewidth": 1.2}
                values = [curve(chosen, "order").to_numpy()]
                axes.boxplot(values, positions=[place], widths=0.75 * width, whis=(0, 100), **styles)
        axes.set_xticks(range(len(groups)), [name for name, _ in groups], rotation=30 if len(groups) > 3 else 0)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.grid(axis="x", visible=False)


def _looks(panels: dict[str, pd.DataFrame]) -> Looks:
    """Return the label and style of each line: colour by condition, dashes and marker by inference.

    A condition is an algorithm with its batch-norm policy and settings; an inference is a prediction method. `panels`
    is the result of `swept`.
    """
    every = [part[["condition", "inference"]].itertuples(index=False, name=None) for part in panels.values()]
    lines = dict.fromkeys(itertools.chain.from_iterable(every))
    conditions = list(dict.fromkeys(condition for condition, _ in lines))
    inferences = list(dict.fromkeys(inference for _, inference in lines))
    dashes = LINES[:3]  # dotted is the baseline
    several = len(inferences) > 1
    looks: Looks = {}
    for condition, inference in lines:
        c = conditions.index(condition)
        i = inferences.index(inference)
        looks[condition, inference] = {
            "label": f"{condition}, {inference}" if several else condition,
            "color": COLOURS[c % len(COLOURS)],
            "linestyle": dashes[i % 3],
            "marker": MARKERS[(i + c // len(COLOURS)) % len(MARKERS)],
        }
    return looks


def outside(results: Results) -> pd.DataFrame:
    """Return the scores of the headline metric at external sites, without undefined ones."""
    scores = apart(headline(results))
    return scores[scores["role"] == "external"].dropna(subset=["value"])


def swept(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return, for each option in TITLES, the scores of inferences for which this option alone takes several values.

    An inference is a prediction method. If a study predicts a full grid of options, the other options are fixed where
    this one has most values, if possible at the study's centre.
    """
    import pandas as pd

    panels = {}
    middle = list(centres(scores).values())
    for column in TITLES:
        fixed = [option for option in OPTIONS if option != column]
        parts = []
        for _, rows in scores[scores[column].notna()].groupby("inference", sort=False):
            groups = [group for _, group in rows.groupby(fixed, sort=False, dropna=False)]
            # Of a full grid, the other options are fixed where this one has most values, if possible at the centre.
            best = max(groups, key=lambda group: (group[column].nunique(), group["shown"].isin(middle).any()))
            if best[column].nunique() > 1:
                parts.append(best)
        if parts:
            panels[column] = pd.concat(parts)
    return panels


def fixed_options(part: pd.DataFrame) -> str:
    """Return the options that have one value in all rows of `part`, in words, such as "batches of 32 and τ = 0.1"."""
    words = {"batch_size": "batches of {:g}", "momentum": "τ = {:g}", "order": "test order {:g}"}
    fixed = []
    for column, text in words.items():
        values = part[column].dropna().unique()
        if len(values) == 1:
            fixed.append(text.format(float(values[0])))
    return " and ".join(fixed)


def curve(scores: pd.DataFrame, column: str) -> pd.Series:
    """Return the mean score at each value of an option, in ascending order: the mean over sites, then over seeds.

    `column` is the column of `scores` that holds the option.
    """
    return over_seeds(over_sites(scores.assign(x=scores[column].astype(float)), ["x"]))["mean"].sort_index()
