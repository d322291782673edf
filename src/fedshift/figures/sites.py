"""Every site with every inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, panels, short
from ._series import axis, headline, inside

if TYPE_CHECKING:
    import pandas as pd


class Sites(Figure):
    """The headline metric at each site: one dot for each inference, with single seeds as faint dots."""

    title = "Means and single trainings"
    section = "sites"
    most: int = Field(400, ge=0, description="single seeds are drawn if there are at most this many dots")

    def caption(self, results: Results) -> str:
        dots = "mean over seeds"
        if self._few(results):
            dots += " (large) and single seeds (faint)"
        words = [f"{results.headline.title} on test samples: {dots}."]
        if results.scores["held_out"].nunique() > 1:
            words.append("Each dot is a mean over partitions.")
        more = results.scores["shown"].nunique() - len(_shown(results))
        if more:
            words.append(f"{more} further inferences are left out here; the tables have them.")
        words.append("The length of a line is the difference that the choice of the inference makes at that site.")
        return " ".join(words)

    def _few(self, results: Results) -> bool:
        return int((results.scores["metric"] == results.headline.name).sum()) <= self.most

    def draw(self, results: Results) -> str:
        scores = headline(results)
        shown = _shown(results)
        conditions = list(dict.fromkeys(scores["condition"]))
        places = [("internal", site) for site in inside(results)] + [("external", site) for site in results.external]
        columns = min(2, len(conditions)) or 1
        rows = -(-len(conditions) // columns) or 1

        def paint(figure: Any) -> None:
            grid = panels(figure, len(conditions) or 1, columns, sharex=True, sharey=True)
            for axes, condition in zip(grid, conditions, strict=False):
                chosen = scores[scores["condition"] == condition]
                self._panel(axes, chosen, places, shown, seeds_too=self._few(results))
                axes.set_title(condition)
            for axes in figure.axes[-columns:]:
                axes.set_xlabel(axis(results))

        width = WIDTH
        if columns == 1 and max(map(len, shown), default=0) < 60:
            width = 4.8
        height = rows * (0.75 + 0.26 * len(places)) + 0.15
        return self.picture(results, (width, height), paint, shown)

    def _panel(
        self, axes: Any, scores: pd.DataFrame, places: list[tuple[str, str]], shown: list[str], seeds_too: bool
    ) -> None:
        """Draw one condition: a row for each site, internal ones on top."""
        seeds = scores.groupby(["role", "site", "shown", "seed"], sort=False)["value"].mean()
        means = seeds.groupby(level=[0, 1, 2], sort=False).mean()
        for y, (role, site) in enumerate(places):
            spots = [means[(role, site, s)] for s in shown if (role, site, s) in means]
            axes.plot(spots, [y] * len(spots), color=INK, alpha=0.35, linewidth=1.2, zorder=1)
        for n, inference in enumerate(shown):
            style = {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": "none"}
            dots = [(means, {"markersize": 6.5, "label": inference})]
            if seeds_too:
                dots.insert(0, (seeds, {"markersize": 3, "alpha": 0.4}))
            for series, look in dots:
                chosen = series[series.index.get_level_values("shown") == inference]
                heights = [places.index(key[:2]) for key in chosen.index]
                axes.plot(chosen, heights, **style, **look)
        internal = sum(role == "internal" for role, _ in places)
        if 0 < internal < len(places):
            axes.axhline(internal - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        axes.set_yticks(range(len(places)), [f"{short(site)}, {role}" for role, site in places])
        axes.set_ylim(len(places) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)


def _shown(results: Results) -> list[str]:
    """Return the inferences that are drawn: as many as there are colours."""
    return list(dict.fromkeys(results.scores["shown"]))[: len(COLOURS)]
