"""The validation metric by round and by traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..core import registry
from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, note, style, svg
from ._series import by_partition, by_run, exchanged, of_same_sites, unit_of

if TYPE_CHECKING:
    import pandas as pd

    from ..metrics import Metric


class Validated(NamedTuple):
    """A value that each round was validated by: its column in the rounds, its title, and a factor for percent."""

    column: str
    title: str
    factor: float


class ConvergenceByTraffic(Figure):
    """The validation metric by round, and by the traffic of all clients so far: means over clients and runs."""

    title = "Convergence by traffic"

    def caption(self, results: Results) -> str:
        lines = curves(results)
        if not lines:
            return "No run has validated a round yet."
        silent = [condition for condition, line in lines.items() if not line["bytes"].max() > 0]
        left = "; conditions that exchange nothing are left out there" if silent else ""
        return (
            f"{validated_by(results).title} by round and, on the right, by the traffic so far: what all clients have "
            f"received and sent, 4 bytes a number{left}. Mean over clients and runs, up to the end of the shortest. "
            "On the right, a curve further left at the same height has learnt as much with less traffic: methods whose "
            "rounds cost unlike amounts can be compared there."
        )

    def draw(self, results: Results) -> str:
        lines, heading = curves(results), f"{self.title}: {self.caption(results)}"
        if not lines:
            return note(self.name, heading)
        size, unit = unit_of(max(line["bytes"].fillna(0).max() for line in lines.values()))

        def paint(figure: Any) -> None:
            by_round, by_bytes = figure.subplots(1, 2, sharey=True)
            for n, (condition, line) in enumerate(lines.items()):
                look = style(n) | {"linewidth": 1.8, "label": condition, "marker": "o" if len(line) == 1 else None}
                by_round.plot(line.index, line["value"], **look)
                if line["bytes"].max() > 0:
                    by_bytes.plot(line["bytes"] / size, line["value"], **look)
            by_round.set(xlabel="Round", ylabel=validated_by(results).title)
            by_round.xaxis.get_major_locator().set_params(integer=True)
            by_bytes.set(xlabel=f"Exchanged so far ({unit})", xlim=(0, None))
            legend(figure)

        return svg(self.name, heading, (WIDTH, 2.8 + legend_height(lines, WIDTH)), paint)


def validated_by(results: Results) -> Validated:
    """Return the metric by which all runs select a round, where it was logged; accuracy otherwise."""
    names = {str(run.get("training.select_by") or "accuracy") for run in results.settings.values()}
    scores = results.rounds.get("score")
    (name,) = names if len(names) == 1 else ("accuracy",)
    if scores is None or scores.isna().all() or name in ("accuracy", "loss"):
        return Validated("accuracy", "Validation accuracy (%)", 100)
    metric: Metric = registry.build("metric", name)
    title = metric.title if metric.title.isupper() else metric.title[:1].lower() + metric.title[1:]
    unit, factor = (" (%)", 100) if metric.percent else ("", 1)
    return Validated("score", f"Validation {title}{unit}", factor)


def curves(results: Results) -> dict[str, pd.DataFrame]:
    """Return the columns `value` and `bytes` by round for each condition, until its first run ends.

    `value` is the validation metric, mean over clients and then runs; `bytes` is the traffic up to and including the
    round, mean over runs.
    """
    if results.rounds.empty:
        return {}
    column, _, factor = validated_by(results)
    rounds = by_partition(results.rounds) if of_same_sites(results.rounds) else results.rounds
    lines: dict[str, pd.DataFrame] = {}
    for condition, part in rounds.groupby("condition", sort=False):
        chosen = part[(part["split"] == "val") & part[column].notna()]
        runs = by_run(chosen, column).dropna()
        if len(runs):
            line = factor * runs.mean(axis=1).to_frame("value")
            lines[str(condition)] = line.assign(bytes=exchanged(part).reindex(line.index))
    return lines
