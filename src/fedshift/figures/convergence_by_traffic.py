"""The validation metric by round and by the traffic between clients and server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _series
from ._base import Figure, Results
from ._canvas import lines, styles
from ._series import OVER, SILENT, by_line, sends, traffic, traffic_axis, validated_by

if TYPE_CHECKING:
    import pandas as pd


class ConvergenceByTraffic(Figure):
    """The validation metric by round, and by the traffic of all clients so far: means over clients and runs.

    Traffic is the number of bytes that all clients together have received and sent, 4 for each float.
    """

    title = "Convergence by traffic"
    section = "training"

    def caption(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return "No run has validated a round yet."
        left = "" if all(map(sends, found.values())) else SILENT
        return (
            f"{validated_by(results).title} by round and, on the right, by the traffic so far: what all clients have "
            f"received and sent, 4 bytes a number{left}. Mean over clients and runs, up to the end of the shortest. "
            "On the right, a curve further left at the same height has learnt as much with less traffic: methods whose "
            "rounds cost unlike amounts can be compared there."
        )

    def draw(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return self.nothing(results)
        looks = styles(found)
        table, unit = traffic(found, "line")

        def panel(axes: Any, x: str) -> None:
            lines(axes, table, x, "value", looks, linewidth=1.8)
            traffic_axis(axes, x, unit)

        size, names = (3.9, 2.4), ("", validated_by(results).title)
        return self.panels(results, OVER, panel, looks, size=size, names=names, sharey=True)


def curves(results: Results) -> dict[str, pd.DataFrame]:
    """Return the history of the validation metric for each condition (algorithm x batch norm policy x settings).

    Each is a table by round. Its columns are `value`, the metric, mean over clients and runs, and `bytes`, the traffic
    so far; see `_series.curves`. Return an empty mapping if no run has finished a round.
    """
    if results.rounds.empty:
        return {}
    column, _, factor = validated_by(results)
    rounds = by_line(results.rounds)
    return _series.curves(rounds.assign(value=rounds[column]), "val", {"value": factor})
