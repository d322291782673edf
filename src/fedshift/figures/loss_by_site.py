"""Training loss of every client, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, logarithmic, note, short, style, svg
from ._series import by_partition, by_run, shared_part

if TYPE_CHECKING:
    import pandas as pd

MEAN = "Mean over clients"
DECADES = 2


class LossBySite(Figure):
    """Training loss per round: a panel for each client and one for their mean, a line for each condition."""

    title = "Training loss by client"
    most: int = Field(24, ge=1, description="clients that get a panel, the first ones of the study")
    bands: int = Field(4, ge=0, description="the range over runs is drawn where there are at most so many conditions")

    def caption(self, results: Results) -> str:
        found = panels(results, self.most)
        if not found:
            return "No run has reported a round yet."
        lines = list(next(iter(found.values())))
        several = any(table.shape[1] > 1 for panel in found.values() for table in panel.values())
        left_out = len(_sites(results)) - len([site for site in found if site != MEAN])
        return (
            f"Mean over each client's batches in a round, with the network it trains"
            f"{', mean over runs' if several else ''}"
            f"{' (line) and their range (band)' if several and len(lines) <= self.bands else ''}"
            f"{'; logarithmic scale' if is_wide(found) else ''}. "
            f"{f'{left_out} further clients have no panel, but count in the mean. ' if left_out else ''}"
            "A condition whose loss falls at some clients and stays high at others fits the federation unevenly."
        )

    def draw(self, results: Results) -> str:
        found = panels(results, self.most)
        if not found:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        conditions = list(dict.fromkeys(c for panel in found.values() for c in panel))
        columns = min(len(found), 3 if len(found) <= 6 else 4)
        rows, wide = -(-len(found) // columns), is_wide(found)

        def paint(figure: Any) -> None:
            grid = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
            for axes, (site, panel) in zip(grid, found.items(), strict=False):
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
                axes.set_visible(n < len(found))
                if n + columns >= len(found):
                    axes.set_xlabel("Round")
                    axes.tick_params(labelbottom=True)
                if n % columns == 0:
                    axes.set_ylabel("Training loss")
            legend(figure)

        size = (WIDTH, 0.3 + (2.3 if columns < 4 else 1.8) * rows + legend_height(conditions, WIDTH))
        return svg(self.name, f"{self.title}: {self.caption(results)}", size, paint)


def panels(results: Results, most: int) -> dict[str, dict[str, pd.DataFrame]]:
    """By client, MEAN last, and by condition: the training loss, a row for each round and a column for each run.

    Where all data are pooled there are no clients: such a condition is in MEAN only.
    """
    rounds = by_partition(results.rounds)
    rounds = rounds[(rounds["split"] == "train") & rounds["loss"].notna()] if len(rounds) else rounds
    sites = _sites(results)
    found: dict[str, dict[str, pd.DataFrame]] = {}
    points = max(30, 480 // (len(sites) + 1))
    for name in [*sites[:most], MEAN] if len(rounds) else ():
        chosen = rounds if name == MEAN else rounds[rounds["site"] == name]
        found[name] = {
            str(c): shared_part(by_run(of, "loss", points)) for c, of in chosen.groupby("condition", sort=False)
        }
    if len(sites) == 1 and set(found[MEAN]) == set(found[sites[0]]):
        del found[MEAN]
    return found


def _sites(results: Results) -> list[str]:
    """The clients that have trained, in the order of the study."""
    rounds = results.rounds
    trained = set(rounds.loc[rounds["split"] == "train", "site"]) if len(rounds) else set()
    return [site for site in results.internal if site in trained]


def is_wide(found: dict[str, dict[str, pd.DataFrame]]) -> bool:
    """Whether losses in any panel range over more than two decades: all panels then have a logarithmic scale."""
    for panel in found.values():
        values = [v for runs in panel.values() for v in runs.mean(axis=1) if v > 0]
        if values and max(values) > 10**DECADES * min(values):
            return True
    return False
