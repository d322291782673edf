"""The validation metric by round and by traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import registry
from ._base import Figure, Results
from ._canvas import WIDTH, round_axis, style
from ._series import SILENT, by_line, by_run, exchanged, most_exchanged, sends, unit_of

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics import Metric


class _Validated(NamedTuple):
    """A value that each round was validated by: its column in the rounds, its title, and a factor for percent."""

    column: str
    title: str
    factor: float


class ConvergenceByTraffic(Figure):
    """The validation metric by round, and by the traffic of all clients so far: means over clients and runs."""

    title = "Convergence by traffic"
    section = "training"

    def caption(self, results: Results) -> str:
        lines = curves(results)
        if not lines:
            return "No run has validated a round yet."
        left = "" if all(map(sends, lines.values())) else SILENT
        return (
            f"{validated_by(results).title} by round and, on the right, by the traffic so far: what all clients have "
            f"received and sent, 4 bytes a number{left}. Mean over clients and runs, up to the end of the shortest. "
            "On the right, a curve further left at the same height has learnt as much with less traffic: methods whose "
            "rounds cost unlike amounts can be compared there."
        )

    def draw(self, results: Results) -> str:
        lines = curves(results)
        if not lines:
            return self.nothing(results)
        size, unit = unit_of(most_exchanged(lines.values()))

        def paint(figure: Any) -> None:
            by_round, by_bytes = figure.subplots(1, 2, sharey=True)
            for n, (condition, line) in enumerate(lines.items()):
                look = style(n, points=len(line)) | {"linewidth": 1.8, "label": condition}
                by_round.plot(line.index, line["value"], **look)
                if sends(line):
                    by_bytes.plot(line["bytes"] / size, line["value"], **look)
            by_round.set_ylabel(validated_by(results).title)
            round_axis(by_round)
            by_bytes.set(xlabel=f"Exchanged so far ({unit})", xlim=(0, None))

        return self.picture(results, (WIDTH, 2.8), paint, lines)


def validated_by(results: Results) -> _Validated:
    """Return the metric by which all runs select a round, where it was logged; accuracy otherwise."""
    names = {str(run.get("training.select_by") or "accuracy") for run in results.settings.values()}
    scores = results.rounds.get("score")
    logged = scores is not None and scores.notna().any()
    # The rounds have a column for accuracy; the loss is a metric of selection that no figure shows as one.
    if not logged or len(names) != 1 or names <= {"accuracy", "loss"}:
        return _Validated("accuracy", "Validation accuracy (%)", 100)
    metric: Metric = registry.build("metric", names.pop())
    title = metric.title
    if not title.isupper():
        title = title[:1].lower() + title[1:]
    if metric.percent:
        return _Validated("score", f"Validation {title} (%)", 100)
    return _Validated("score", f"Validation {title}", 1)


def curves(results: Results) -> dict[str, pd.DataFrame]:
    """Return the columns `value` and `bytes` by round for each condition, until its first run ends.

    `value` is the validation metric, mean over clients and then runs; `bytes` is the traffic up to and including the
    round, mean over runs.
    """
    lines: dict[str, pd.DataFrame] = {}
    if results.rounds.empty:
        return lines
    column, _, factor = validated_by(results)
    for condition, part in by_line(results.rounds).groupby("condition", sort=False):
        chosen = part[(part["split"] == "val") & part[column].notna()]
        runs = by_run(chosen, column).dropna()
        if len(runs):
            line = factor * runs.mean(axis=1).to_frame("value")
            lines[str(condition)] = line.assign(bytes=exchanged(part).reindex(line.index))
    return lines
