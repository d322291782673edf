"""Every site with every inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, legend, legend_height, short, svg
from ._series import axis, headline, inside

if TYPE_CHECKING:
    import pandas as pd


class Sites(Figure):
    """The headline metric at each site: one dot for each inference, with single seeds as faint dots."""

    title = "Site by site"
    most: int = Field(400, ge=0, description="single seeds are drawn if there are at most this many dots")

    def caption(self, results: Results) -> str:
        shown = _shown(results)
        several = results.scores["held_out"].nunique() > 1
        more = results.scores["shown"].nunique() - len(shown)
        return (
            f"{results.headline.title} on test samples: mean over seeds"
            f"{' (large) and single seeds (faint)' if self._few(results) else ''}. "
            f"{'Each dot is a mean over partitions. ' if several else ''}"
            f"{f'{more} further inferences are left out here; the tables have them. ' if more else ''}"
            "The length of a line is the difference that the choice of the inference makes at that site."
        )

    def _few(self, results: Results) -> bool:
        return int((results.scores["metric"] == results.headline.name).sum()) <= self.most

    def draw(self, results: Results) -> str:
        scores = headline(results)
        conditions, shown = list(dict.fromkeys(scores["condition"])), _shown(results)
        rows = [("internal", s) for s in inside(results)] + [("external", s) for s in results.external]
        columns = min(2, len(conditions)) or 1
        lines = -(-len(conditions) // columns) or 1

        def paint(figure: Any) -> None:
            grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
            for axes, condition in zip(grid.flat, conditions, strict=False):
                chosen = scores[scores["condition"] == condition]
                self._panel(axes, chosen, rows, shown, seeds_too=self._few(results))
                axes.set_title(condition)
            for axes in list(grid.flat)[len(conditions) :]:
                axes.set_visible(False)
            for axes in grid[-1]:
                axes.set_xlabel(axis(results))
            legend(figure)

        narrow = columns == 1 and max(map(len, shown), default=0) < 60
        width = 4.8 if narrow else WIDTH
        height = lines * (0.75 + 0.26 * len(rows)) + 0.15 + legend_height(shown, width)
        return svg(self.name, f"{self.title}: {self.caption(results)}", (width, height), paint)

    def _panel(
        self, axes: Any, scores: pd.DataFrame, rows: list[tuple[str, str]], shown: list[str], seeds_too: bool
    ) -> None:
        """Draw one condition: a row for each site, internal ones on top."""
        seeds = scores.groupby(["role", "site", "shown", "seed"], sort=False)["value"].mean()
        means = seeds.groupby(level=[0, 1, 2], sort=False).mean()
        for y, (role, site) in enumerate(rows):
            spots = [means[(role, site, s)] for s in shown if (role, site, s) in means]
            axes.plot(spots, [y] * len(spots), color=INK, alpha=0.35, linewidth=1.2, zorder=1)
        for n, inference in enumerate(shown):
            style = {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": "none"}
            dots = [(means, {"markersize": 6.5})]
            if seeds_too:
                dots.insert(0, (seeds, {"markersize": 3, "alpha": 0.4}))
            for series, extra in dots:
                chosen = series[series.index.get_level_values("shown") == inference]
                heights = [rows.index(key[:2]) for key in chosen.index]
                axes.plot(chosen, heights, label=inference if series is means else None, **style, **extra)
        internal = sum(role == "internal" for role, _ in rows)
        if 0 < internal < len(rows):
            axes.axhline(internal - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        axes.set_yticks(range(len(rows)), [f"{short(site)}, {role}" for role, site in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)


def _shown(results: Results) -> list[str]:
    return list(dict.fromkeys(results.scores["shown"]))[: len(COLOURS)]
