"""The effect of options of an inference at external sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, LINES, MARKERS, WIDTH, legend, legend_height, note, short, svg
from ._series import OPTIONS, apart, axis, centres, headline, known, over_seeds, over_sites

if TYPE_CHECKING:
    import pandas as pd

BASELINE = "source"
TITLES = {"batch_size": "Images of a test batch", "momentum": "Momentum τ", "order": "Test order"}
NAMES = {"batch_size": "batch sizes", "momentum": "momentum", "order": "orders"}


class TestTime(Figure):
    """The headline metric at external sites against batch size and momentum of an inference, and over test orders."""

    title = "Options at test time"
    thin: int = Field(40, ge=0, description="single sites are drawn if there are at most this many thin lines")
    boxes: int = Field(6, ge=0, description="boxes are drawn for each site if there are at most this many sites")

    def caption(self, results: Results) -> str:
        scores = outside(results)
        panels = swept(scores)
        if not panels:
            return "No batch size, momentum or test order of an inference has several values at an external site."
        words = [f"{results.headline.title} at external sites, each counted once, mean over seeds"]
        curves = [c for c in panels if c != "order"]
        if curves and scores["site"].nunique() > 1 and self._thin(panels):
            words.append("thin: single sites")
        if curves and BASELINE in set(scores["inference"]):
            words.append("dotted: source, with training statistics")
        if "order" in panels:
            words.append("boxes: quartiles over test orders, with whiskers from the smallest to the largest value")
        fixed = [f"{NAMES[c]} at {fixed_options(part)}" for c, part in panels.items() if fixed_options(part)]
        words += [f"shown: {', '.join(fixed)}"] if fixed else []
        return f"{'; '.join(words)}."

    def _thin(self, panels: dict[str, pd.DataFrame]) -> bool:
        lines = [part.groupby(["condition", "inference", "site"]).ngroups for c, part in panels.items() if c != "order"]
        return max(lines, default=0) <= self.thin

    def draw(self, results: Results) -> str:
        scores = outside(results)
        panels = swept(scores)
        if not panels:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        every = [part[["condition", "inference"]] for part in panels.values()]
        lines = list(dict.fromkeys(key for part in every for key in part.itertuples(index=False, name=None)))
        several = len({inference for _, inference in lines}) > 1
        labels = {key: f"{key[0]}, {key[1]}" if several else key[0] for key in lines}
        source = over_seeds(over_sites(scores[scores["inference"] == BASELINE], ["condition"]))["mean"]

        def paint(figure: Any) -> None:
            grid = figure.subplots(1, len(panels), squeeze=False)
            for axes, (column, part) in zip(grid.flat, panels.items(), strict=True):
                looks = {key: _look(key, lines) | {"label": labels[key]} for key in lines}
                if column == "order":
                    self._orders(axes, part, looks, results)
                else:
                    self._curves(axes, part, column, looks, source, self._thin(panels))
                axes.set_title(TITLES[column])
            grid[0, 0].set_ylabel(axis(results))
            legend(figure)

        size = (WIDTH, 3.0 + legend_height([*labels.values()], WIDTH))
        return svg(self.name, f"{self.title}: {self.caption(results)}", size, paint)

    def _curves(
        self,
        axes: Any,
        part: pd.DataFrame,
        column: str,
        looks: dict[tuple[str, str], dict[str, Any]],
        source: pd.Series,
        thin: bool,
    ) -> None:
        for (condition, inference), group in part.groupby(["condition", "inference"], sort=False):
            look = looks[str(condition), str(inference)]
            if thin and group["site"].nunique() > 1:
                for _, site in group.groupby("site"):
                    line = curve(site, column)
                    axes.plot(line.index, line, color=look["color"], alpha=0.4, linewidth=0.6)
            line = curve(group, column)
            axes.plot(line.index, line, linewidth=1.6, markersize=4, **look)
        for condition in dict.fromkeys(condition for condition, _ in looks):
            if condition in source:
                colour = next(look["color"] for key, look in looks.items() if key[0] == condition)
                axes.axhline(source[condition], color=colour, linestyle=":", linewidth=1.4)
        if column == "batch_size":
            sizes = sorted(set(part[column]))
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45 if len(sizes) > 7 else 0)
            axes.minorticks_off()

    def _orders(
        self, axes: Any, part: pd.DataFrame, looks: dict[tuple[str, str], dict[str, Any]], results: Results
    ) -> None:
        """Draw boxes side by side at each site, or one group of boxes for the mean over sites."""
        sites = [s for s in results.external if s in set(part["site"])]
        groups = [part[part["site"] == s] for s in sites] if len(sites) <= self.boxes else [part]
        names = [short(s, 12) for s in sites] if len(sites) <= self.boxes else ["all sites"]
        width = 0.7 / len(looks)
        for look in looks.values():  # boxes have no label
            axes.plot([], [], color=look["color"], linestyle=look["linestyle"], label=look["label"])
        for x, group in enumerate(groups):
            for n, ((condition, inference), look) in enumerate(looks.items()):
                chosen = group[(group["condition"] == condition) & (group["inference"] == inference)]
                if chosen.empty:
                    continue
                at = x + (n - (len(looks) - 1) / 2) * width
                lines = {"color": look["color"], "linestyle": look["linestyle"], "linewidth": 1.2}
                axes.boxplot(
                    [curve(chosen, "order").to_numpy()],
                    positions=[at],
                    widths=0.75 * width,
                    whis=(0, 100),
                    boxprops=lines,
                    whiskerprops=lines,
                    capprops=lines,
                    medianprops={"color": INK, "linewidth": 1.2},
                )
        axes.set_xticks(range(len(groups)), names, rotation=30 if len(groups) > 3 else 0)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.grid(axis="x", visible=False)


def _look(key: tuple[str, str], lines: list[tuple[str, str]]) -> dict[str, Any]:
    """Return the look of a line: colour by condition, dashes and marker by inference."""
    condition, inference = (list(dict.fromkeys(k[n] for k in lines)).index(key[n]) for n in (0, 1))
    dashes = LINES[:3]  # dotted is the baseline
    look = {"color": COLOURS[condition % len(COLOURS)], "linestyle": dashes[inference % 3]}
    return look | {"marker": MARKERS[(inference + condition // len(COLOURS)) % len(MARKERS)]}


def outside(results: Results) -> pd.DataFrame:
    """Return the scores of the headline metric at external sites."""
    scores = apart(headline(results))
    return scores[scores["role"] == "external"].dropna(subset=["value"])


def swept(scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return by option the scores, of all inferences, in which this option alone has several values."""
    import pandas as pd

    panels = {}
    middle = set(centres(scores).values())
    for column in TITLES:
        parts = []
        for _, rows in scores[scores[column].notna()].groupby("inference", sort=False):
            rest = list(zip(*(known(rows[c]) for c in OPTIONS if c != column), strict=True))
            groups = [group for _, group in rows.groupby(pd.Series(rest, index=rows.index), sort=False)]
            best = max(groups, key=lambda group: (group[column].nunique(), bool(middle & set(group["shown"]))))
            parts += [best] if best[column].nunique() > 1 else []
        if parts:
            panels[column] = pd.concat(parts)
    return panels


def fixed_options(part: pd.DataFrame) -> str:
    """Return in words the options that have one value for all inferences of a panel."""
    words = {"batch_size": "batches of {:g}", "momentum": "τ = {:g}", "order": "test order {:g}"}
    fixed = []
    for column, text in words.items():
        values = set(known(part[column])) - {None}
        fixed += [text.format(float(v)) for v in values] if len(values) == 1 else []
    return " and ".join(fixed)


def curve(scores: pd.DataFrame, column: str) -> pd.Series:
    """Return the mean over sites and then seeds at each value of an option, in rising order."""
    by_value = over_sites(scores.assign(x=scores[column].astype(float)), ["x"])
    return over_seeds(by_value)["mean"].sort_index()
