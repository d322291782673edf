"""Training loss of every client by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, logarithmic, note, short, style, svg
from ._series import by_partition, by_run, shared_part

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = {
    "averaged": "The averaged model, with the client's own batch norm, on the client's training images",
    "train": "Mean over the local steps of a round, before averaging; batch norm uses the batch's statistics",
}
"""Meaning of each split of the table of rounds, for the caption."""
MEAN = "Mean over clients"
DECADES = 2


class LossBySite(Figure):
    """Training loss by round: a panel for each client and one for their mean, a line for each condition."""

    title = "Training loss by client"
    most: int = Field(24, ge=1, description="number of clients that have a panel: the first ones of the study")
    bands: int = Field(4, ge=0, description="the range over runs is drawn if there are at most this many conditions")

    def caption(self, results: Results) -> str:
        by_site = panels(results, self.most)
        if not by_site:
            return "No run has finished a round yet."
        lines = list(next(iter(by_site.values())))
        several = any(table.shape[1] > 1 for panel in by_site.values() for table in panel.values())
        left_out = len(_sites(results)) - len([site for site in by_site if site != MEAN])
        return (
            f"{_MEASURED[_split(results)]}"
            f"{', mean over runs' if several else ''}"
            f"{' (line) and their range (band)' if several and len(lines) <= self.bands else ''}"
            f"{'; logarithmic scale' if is_wide(by_site) else ''}. "
            f"{f'{left_out} further clients have no panel, but count in the mean. ' if left_out else ''}"
            "If the loss falls at some clients and stays high at others, the condition fits the clients unequally well."
        )

    def draw(self, results: Results) -> str:
        by_site = panels(results, self.most)
        if not by_site:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        conditions = list(dict.fromkeys(c for panel in by_site.values() for c in panel))
        columns = min(len(by_site), 3 if len(by_site) <= 6 else 4)
        rows, wide = -(-len(by_site) // columns), is_wide(by_site)

        def paint(figure: Any) -> None:
            grid = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
            for axes, (site, panel) in zip(grid, by_site.items(), strict=False):
                for condition, runs in panel.items():
                    look = style(conditions.index(condition))
                    if runs.shape[1] > 1 and len(conditions) <= self.bands:
                        low, high = runs.min(axis=1), runs.max(axis=1)
                        axes.fill_between(runs.index, low, high, color=look["color"], alpha=0.18, linewidth=0)
                    axes.plot(runs.index, runs.mean(axis=1), linewidth=1.4, label=condition, **look)
                axes.set_title(short(site, 24))
                if wide:
                    logarithmic(axes.yaxis)
                    axes.minorticks_off()
                axes.xaxis.get_major_locator().set_params(integer=True)
            for n, axes in enumerate(grid):
                axes.set_visible(n < len(by_site))
                if n + columns >= len(by_site):
                    axes.set_xlabel("Round")
                    axes.tick_params(labelbottom=True)
                if n % columns == 0:
                    axes.set_ylabel("Training loss")
            legend(figure)

        size = (WIDTH, 0.3 + (2.3 if columns < 4 else 1.8) * rows + legend_height(conditions, WIDTH))
        return svg(self.name, f"{self.title}: {self.caption(results)}", size, paint)


def panels(results: Results, most: int) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the training loss by client (MEAN last) and condition: a row for each round, a column for each run.

    A condition that pools all data has no clients: it is in MEAN only.
    """
    rounds = by_partition(results.rounds)
    rounds = rounds[(rounds["split"] == _split(results)) & rounds["loss"].notna()] if len(rounds) else rounds
    sites = _sites(results)
    by_site: dict[str, dict[str, pd.DataFrame]] = {}
    points = max(30, 480 // (len(sites) + 1))
    for name in [*sites[:most], MEAN] if len(rounds) else ():
        chosen = rounds if name == MEAN else rounds[rounds["site"] == name]
        by_site[name] = {
            str(c): shared_part(by_run(part, "loss", points)) for c, part in chosen.groupby("condition", sort=False)
        }
    if len(sites) == 1 and set(by_site[MEAN]) == set(by_site[sites[0]]):
        del by_site[MEAN]
    return by_site


def _split(results: Results) -> str:
    """Return the split whose loss is drawn: after averaging if every run evaluates it, else that of local steps."""
    rounds = results.rounds
    if rounds.empty:
        return "train"
    evaluated = set(rounds.loc[rounds["split"] == "averaged", "run"])
    return "averaged" if evaluated == set(rounds["run"]) else "train"


def _sites(results: Results) -> list[str]:
    """Return the clients that have trained, in the order of the study."""
    rounds = results.rounds
    trained = set(rounds.loc[rounds["split"] == "train", "site"]) if len(rounds) else set()
    return [site for site in results.internal if site in trained]


def is_wide(by_site: dict[str, dict[str, pd.DataFrame]]) -> bool:
    """Return whether the losses of any panel span more than two decades: all panels are then logarithmic."""
    for panel in by_site.values():
        values = [v for runs in panel.values() for v in runs.mean(axis=1) if v > 0]
        if values and max(values) > 10**DECADES * min(values):
            return True
    return False
