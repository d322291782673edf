"""The training loss of every client by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import logarithmic, styles, titles
from ._series import by_condition, by_partition, shared_part

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = {
    "averaged": "The averaged model, with the client's own batch norm, on the client's training images",
    "train": "Mean over the local steps of a round, before averaging; batch norm uses the batch's statistics",
}
"""How the training loss is measured in each split of rounds.parquet, as words of the caption."""
MEAN = "Mean over clients"
DECADES = 2
_POINTS = 480
"""Approximate limit on the points of all lines of one colour, so that many clients do not make the page heavy."""


class LossBySite(Figure):
    """Training loss by round: a panel for each client and one for their mean, a line for each condition.

    A condition is an algorithm with a batch-norm policy and settings.
    """

    title = "Training loss by client"
    section = "training"
    most: int = Field(24, ge=1, description="number of clients that have a panel: the first ones of the study")
    bands: int = Field(4, ge=0, description="the range over runs is drawn if there are at most this many conditions")

    def caption(self, results: Results) -> str:
        by_site = losses(results, self.most)
        if not by_site:
            return "No run has finished a round yet."
        conditions = next(iter(by_site.values()))
        measured = _MEASURED[_split(results)]
        if any(table.shape[1] > 1 for panel in by_site.values() for table in panel.values()):
            measured += ", mean over runs"
            if len(conditions) <= self.bands:
                measured += " (line) and their range (band)"
        if is_wide(by_site):
            measured += "; logarithmic scale"
        words = [f"{measured}."]
        if left_out := len(_sites(results)) - len(by_site.keys() - {MEAN}):
            words.append(f"{left_out} further clients have no panel, but count in the mean.")
        words.append(
            "If the loss falls at some clients and stays high at others, the condition fits the clients unequally well."
        )
        return " ".join(words)

    def draw(self, results: Results) -> str:
        by_site = losses(results, self.most)
        if not by_site:
            return self.nothing(results)
        looks = styles(condition for panel in by_site.values() for condition in panel)
        columns, height = (3, 2.3) if len(by_site) <= 6 else (4, 1.8)
        wide = is_wide(by_site)

        def panel(axes: Any, site: str) -> None:
            axes.xaxis.get_major_locator().set_params(integer=True)
            for condition, runs in by_site[site].items():
                look = looks[condition]
                if runs.shape[1] > 1 and len(looks) <= self.bands:
                    low, high = runs.min(axis=1), runs.max(axis=1)
                    axes.fill_between(runs.index, low, high, color=look["color"], alpha=0.18, linewidth=0)
                axes.plot(runs.index, runs.mean(axis=1), linewidth=1.4, label=condition, **look)
            if wide:
                logarithmic(axes.yaxis)
                axes.minorticks_off()

        size, names = (7.8 / min(columns, len(by_site)), height), ("Round", "Training loss")
        return self.panels(results, titles(by_site), panel, looks, columns, size, names, sharex=True)


def losses(results: Results, most: int) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the training loss by client and condition, as tables with a row for each round and a column for each run.

    A condition is an algorithm with its batch-norm policy and settings. The first `most` clients are returned, then
    MEAN, the mean over all clients. Centralised training on pooled data has no clients: it occurs in MEAN only.
    """
    rounds = by_partition(results.rounds)
    if not rounds.empty:
        rounds = rounds[(rounds["split"] == _split(results)) & rounds["loss"].notna()]
    if rounds.empty:
        return {}
    by_site = {}
    sites = _sites(results)
    points = max(30, _POINTS // (len(sites) + 1))
    for name in [*sites[:most], MEAN]:
        chosen = rounds if name == MEAN else rounds[rounds["site"] == name]
        by_site[name] = {c: shared_part(runs) for c, runs in by_condition(chosen, "loss", points).items()}
    # With one client its panel shows the mean as well, unless another condition pools the data.
    if len(sites) == 1 and set(by_site[MEAN]) == set(by_site[sites[0]]):
        del by_site[MEAN]
    return by_site


def _split(results: Results) -> str:
    """Return the split of rounds.parquet whose loss is drawn: `averaged` if every run has it, `train` otherwise.

    `averaged` is the loss of the averaged model on a client's training images, `train` the mean over local steps.
    """
    rounds = results.rounds
    evaluated = set(rounds.loc[rounds["split"] == "averaged", "run"])
    return "averaged" if evaluated == set(rounds["run"]) else "train"


def _sites(results: Results) -> list[str]:
    """Return the names of the clients that have trained in any run, in the order of the study."""
    trained = set(results.rounds.loc[results.rounds["split"] == "train", "site"])
    return [site for site in results.internal if site in trained]


def is_wide(by_site: dict[str, dict[str, pd.DataFrame]]) -> bool:
    """Return whether the mean losses of any panel span more than DECADES powers of ten; all are logarithmic then.

    `by_site` is the result of `losses`.
    """
    spans = ([v for runs in panel.values() for v in runs.mean(axis=1) if v > 0] for panel in by_site.values())
    return any(values and max(values) > 10**DECADES * min(values) for values in spans)
