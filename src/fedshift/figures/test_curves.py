"""Accuracy and loss at watched sites during training, by round and by traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, note, short, style, svg
from ._series import by_run, exchanged, shared_part, unit_of

if TYPE_CHECKING:
    import pandas as pd


class TestCurves(Figure):
    """Test accuracy and loss at the watched sites, by round and by the traffic of all clients so far."""

    title = "Test curves"

    def caption(self, results: Results) -> str:
        panels = curves(results)
        if not panels:
            return "No site was watched during training: this figure needs training.watch_every and an external site."
        sites = sorted(set(results.rounds.loc[results.rounds["split"] == "test", "site"]))
        where = sites[0] if len(sites) == 1 else f"{len(sites)} external sites, each counted once"
        silent = [line for part in panels.values() for line in part.values() if not line["bytes"].max() > 0]
        return (
            f"The global network at {where}, mean over runs; no round was selected by these values. In the middle, "
            "accuracy against the traffic so far: what every client has received and sent, 4 bytes a number"
            f"{'; conditions that exchange nothing are left out there' if silent else ''}. "
            "A curve further left at the same height has learnt as much with less traffic."
        )

    def draw(self, results: Results) -> str:
        panels = curves(results)
        if not panels:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        conditions = list(dict.fromkeys(c for part in panels.values() for c in part))
        most = max(line["bytes"].fillna(0).max() for part in panels.values() for line in part.values())
        size, unit = unit_of(most)

        def paint(figure: Any) -> None:
            grid = figure.subplots(len(panels), 3, sharex="col", squeeze=False)
            for (by_round, by_bytes, loss), (partition, part) in zip(grid, panels.items(), strict=True):
                for condition, line in part.items():
                    look = style(conditions.index(condition)) | {"linewidth": 1.6, "label": condition}
                    look["marker"] = "o" if len(line) == 1 else None
                    by_round.plot(line.index, line["accuracy"], **look)
                    loss.plot(line.index, line["loss"], **look)
                    if line["bytes"].max() > 0:
                        by_bytes.plot(line["bytes"] / size, line["accuracy"], **look)
                by_bytes.sharey(by_round)
                by_round.set_title(short(partition, 22) if len(panels) > 1 else "")
                by_round.set_ylabel("Test accuracy (%)")
                loss.set_ylabel("Test loss")
            for axes, name in zip(grid[-1], ("Round", f"Exchanged so far ({unit})", "Round"), strict=True):
                axes.set_xlabel(name)
            for axes in (grid[-1][0], grid[-1][2]):
                axes.xaxis.get_major_locator().set_params(integer=True)
            legend(figure)

        height = 0.4 + 2.3 * len(panels) + legend_height(conditions, WIDTH)
        return svg(self.name, f"{self.title}: {self.caption(results)}", (WIDTH, height), paint)


def curves(results: Results) -> dict[str, dict[str, pd.DataFrame]]:
    """Return accuracy (%) and loss by round, means over sites and then runs, for each partition and condition.

    The column `bytes` holds the traffic up to and including the round.
    """
    import pandas as pd

    rounds = results.rounds
    panels: dict[str, dict[str, pd.DataFrame]] = {}
    if rounds.empty:
        return panels
    tested = rounds[rounds["split"] == "test"]
    for (partition, condition), chosen in tested.groupby(["held_out", "condition"], sort=False):
        part = rounds[(rounds["held_out"] == partition) & (rounds["condition"] == condition)]
        columns = {"accuracy": 100 * chosen["accuracy"], "loss": chosen["loss"]}
        means = {c: by_run(chosen.assign(**{c: values}), c) for c, values in columns.items()}
        line = pd.DataFrame({c: shared_part(runs).mean(axis=1) for c, runs in means.items() if len(runs)})
        if len(line):
            line = line.reindex(columns=[*columns])
            panels.setdefault(str(partition), {})[str(condition)] = line.assign(
                bytes=exchanged(part).reindex(line.index)
            )
    return panels
