"""Accuracy and loss at watched sites during training, by round and by traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._base import Figure, Results
from ._canvas import WIDTH, round_axis, short, style
from ._series import SILENT, by_run, exchanged, most_exchanged, sends, shared_part, unit_of

if TYPE_CHECKING:
    import pandas as pd


class TestCurves(Figure):
    """Test accuracy and loss at the watched sites, by round and by the traffic of all clients so far."""

    title = "Test curves"
    section = "training"

    def caption(self, results: Results) -> str:
        panels = curves(results)
        if not panels:
            return "No site was watched during training: this figure needs training.watch_every and an external site."
        sites = set(results.rounds.loc[results.rounds["split"] == "test", "site"])
        where = sites.pop() if len(sites) == 1 else f"{len(sites)} external sites, each counted once"
        left = "" if all(sends(line) for part in panels.values() for line in part.values()) else SILENT
        return (
            f"The global network at {where}, mean over runs; no round was selected by these values. In the middle, "
            f"accuracy against the traffic so far: what every client has received and sent, 4 bytes a number{left}. "
            "A curve further left at the same height has learnt as much with less traffic."
        )

    def draw(self, results: Results) -> str:
        panels = curves(results)
        if not panels:
            return self.nothing(results)
        conditions = list(dict.fromkeys(condition for part in panels.values() for condition in part))
        size, unit = unit_of(most_exchanged(line for part in panels.values() for line in part.values()))

        def paint(figure: Any) -> None:
            grid = figure.subplots(len(panels), 3, sharex="col", squeeze=False)
            for (by_round, by_bytes, loss), (partition, part) in zip(grid, panels.items(), strict=True):
                for condition, line in part.items():
                    look = style(conditions.index(condition), points=len(line)) | {"linewidth": 1.6}
                    by_round.plot(line.index, line["accuracy"], label=condition, **look)
                    loss.plot(line.index, line["loss"], label=condition, **look)
                    if sends(line):
                        by_bytes.plot(line["bytes"] / size, line["accuracy"], label=condition, **look)
                by_bytes.sharey(by_round)
                if len(panels) > 1:
                    by_round.set_title(short(partition, 22))
                by_round.set_ylabel("Test accuracy (%)")
                loss.set_ylabel("Test loss")
            by_round, by_bytes, loss = grid[-1]
            by_bytes.set_xlabel(f"Exchanged so far ({unit})")
            for axes in (by_round, loss):
                round_axis(axes)

        return self.picture(results, (WIDTH, 0.4 + 2.3 * len(panels)), paint, conditions)


def curves(results: Results) -> dict[str, dict[str, pd.DataFrame]]:
    """Return accuracy (%) and loss by round, means over sites and then runs, for each partition and condition.

    The column `bytes` holds the traffic up to and including the round.
    """
    import pandas as pd

    rounds = results.rounds
    panels: dict[str, dict[str, pd.DataFrame]] = {}
    if rounds.empty:
        return panels
    for (partition, condition), part in rounds.groupby(["held_out", "condition"], sort=False):
        tested = part[part["split"] == "test"]
        tested = tested.assign(accuracy=100 * tested["accuracy"])
        means = {column: by_run(tested, column) for column in ("accuracy", "loss")}
        # A column without any value is missing in the table of runs, and is NaN in the line.
        line = pd.DataFrame({c: shared_part(runs).mean(axis=1) for c, runs in means.items() if len(runs)})
        if len(line):
            line = line.reindex(columns=list(means)).assign(bytes=exchanged(part).reindex(line.index))
            panels.setdefault(str(partition), {})[str(condition)] = line
    return panels
