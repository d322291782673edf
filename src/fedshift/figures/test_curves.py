"""Test accuracy and loss during training at the sites that a study watches, by round and by traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _series
from ._base import Figure, Results
from ._canvas import lines, short, styles
from ._series import SILENT, sends, traffic, traffic_axis

if TYPE_CHECKING:
    import pandas as pd

_PANELS = {
    ("accuracy", "round"): "Test accuracy (%)",
    ("accuracy", "exchanged"): "Test accuracy (%)",
    ("loss", "round"): "Test loss",
}
"""Title of each panel of a partition, by its columns for the y and the x axis."""


class TestCurves(Figure):
    """Test accuracy and loss at the watched sites, by round and by the traffic of all clients so far.

    Sites are watched by the setting `training.watch_every`; no round is selected by these values.
    """

    title = "Test curves"
    section = "training"

    def caption(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return "No site was watched during training: this figure needs training.watch_every and an external site."
        sites = set(results.rounds.loc[results.rounds["split"] == "test", "site"])
        where = sites.pop() if len(sites) == 1 else f"{len(sites)} external sites, each counted once"
        left = "" if all(map(sends, found.values())) else SILENT
        return (
            f"The global network at {where}, mean over runs; no round was selected by these values. In the middle, "
            f"accuracy against the traffic so far: what every client has received and sent, 4 bytes a number{left}. "
            "A curve further left at the same height has learnt as much with less traffic."
        )

    def draw(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return self.nothing(results)
        looks = styles(condition for _, condition in found)
        table, unit = traffic(found, "partition", "line")
        partitions = dict.fromkeys(partition for partition, _ in found)
        above = {one: f"{short(one, 22)}\n" if len(partitions) > 1 else "" for one in partitions}
        titles = {(one, *key): above[one] + title for one in partitions for key, title in _PANELS.items()}

        def panel(axes: Any, key: tuple[str, str, str]) -> None:
            partition, y, x = key
            lines(axes, table[table["partition"] == partition], x, y, looks, linewidth=1.6)
            traffic_axis(axes, x, unit)

        return self.panels(results, titles, panel, looks)


def curves(results: Results) -> dict[tuple[str, str], pd.DataFrame]:
    """Return the history of test accuracy (%), test loss and traffic in bytes for each partition and condition.

    A partition is a split of the study's sites; a condition is an algorithm with its batch-norm policy and settings.
    Each history is a table by round with the columns accuracy, loss and bytes; see `_series.curves`.
    """
    if results.rounds.empty:
        return {}
    return _series.curves(results.rounds, "test", {"accuracy": 100, "loss": 1}, by=["held_out", "condition"])
