"""The headline metric at every site, under every prediction method (inference)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, marks, rows, short
from ._series import axis, headline, inside


class Sites(Figure):
    """The headline metric at each site: one dot for each inference, with single seeds as faint dots.

    An inference is a way to predict a site with a trained network.
    """

    title = "Means and single trainings"
    section = "sites"
    most: int = Field(400, ge=0, description="largest number of dots with which single seeds are drawn")

    def caption(self, results: Results) -> str:
        dots = "mean over seeds"
        if self._few(results):
            dots += " (large) and single seeds (faint)"
        words = [f"{results.headline.title} on test samples: {dots}."]
        if results.scores["held_out"].nunique() > 1:
            words.append("Each dot is a mean over partitions.")
        if more := results.scores["shown"].nunique() - len(_shown(results)):
            words.append(f"{more} further inferences are left out here; the tables have them.")
        words.append("The length of a line is the difference that the choice of the inference makes at that site.")
        return " ".join(words)

    def _few(self, results: Results) -> bool:
        """Return whether there are few enough scores to draw the scores of single seeds."""
        return int((results.scores["metric"] == results.headline.name).sum()) <= self.most

    def draw(self, results: Results) -> str:
        scores = headline(results)
        if scores.empty:
            return self.nothing(results)
        shown = marks(_shown(results), 6.5)
        places = [("internal", site) for site in inside(results)] + [("external", site) for site in results.external]
        conditions = {name: name for name in scores["condition"]}

        def panel(axes: Any, condition: str) -> None:
            keys = ["role", "site", "shown"]
            seeds = scores[scores["condition"] == condition].groupby([*keys, "seed"], sort=False)["value"].mean()
            means = seeds.groupby(level=keys, sort=False).mean()
            for y, place in enumerate(places):
                spots = [means[*place, name] for name in shown if (*place, name) in means]
                axes.plot(spots, [y] * len(spots), color=INK, alpha=0.35, linewidth=1.2, zorder=1)
            for name, look in shown.items():
                dots = [(means, look | {"label": name})]
                if self._few(results):
                    dots.insert(0, (seeds, look | {"markersize": 3, "alpha": 0.4}))
                for values, own in dots:
                    chosen = values[values.index.get_level_values("shown") == name]
                    axes.plot(chosen, [places.index(key[:2]) for key in chosen.index], **own)
            rows(axes, [f"{short(site)}, {role}" for role, site in places])
            internal = sum(role == "internal" for role, _ in places)
            if 0 < internal < len(places):
                axes.axhline(internal - 0.5, color=INK, linewidth=0.6, alpha=0.5)

        size, names = (3.9, 0.75 + 0.26 * len(places)), (axis(results), "")
        return self.panels(results, conditions, panel, shown, 2, size, names, sharex=True, sharey=True)


def _shown(results: Results) -> list[str]:
    """Return the titles of the inferences (prediction methods) that are drawn: as many as there are colours."""
    return list(dict.fromkeys(results.scores["shown"]))[: len(COLOURS)]
