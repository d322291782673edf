"""Scores inside and outside of the federation."""

from __future__ import annotations

from typing import Any

from fedshift.figures import Figure, Results
from fedshift.figures._canvas import COLOURS, WIDTH


class InsideOutside(Figure):
    """A bar for the mean headline score of internal sites, and one for external sites."""

    title = "Inside and outside"

    def caption(self, results: Results) -> str:
        return f"Mean {results.headline.title} over sites, conditions, inferences and seeds."

    def draw(self, results: Results) -> str:
        scores = results.scores
        chosen = scores[scores["metric"] == results.headline.name] if len(scores) else scores
        if chosen.empty or chosen["value"].isna().all():
            return self.nothing(results)
        means = chosen.groupby("role")["value"].mean().dropna()

        def paint(figure: Any) -> None:
            axes = figure.subplots()
            axes.barh(list(means.index), list(means), color=COLOURS[0])
            axes.set_xlabel(results.headline.title)

        return self.picture(results, (WIDTH, 1.6), paint)
