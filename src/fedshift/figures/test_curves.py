"""How the sites that are watched fare during training, by rounds and by what was exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, note, short, style, svg
from ._series import by_run, shared_part

if TYPE_CHECKING:
    import pandas as pd

BYTES = 4
"""Of a float on its way."""
_MOVED = ["floats_down", "floats_up"]


class TestCurves(Figure):
    """Test accuracy and loss at the watched sites, by round and by what all clients had sent and received."""

    title = "Test curves"

    def caption(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return "No site was looked at during training: curves need training.watch_every, and an external site."
        sites = sorted(set(results.rounds.loc[results.rounds["split"] == "test", "site"]))
        where = sites[0] if len(sites) == 1 else f"{len(sites)} external sites, each counted once"
        silent = [line for part in found.values() for line in part.values() if not line["bytes"].max() > 0]
        return (
            f"The global network at {where}, mean over runs; nothing was selected by it. In the middle, against what "
            "all clients had received and sent by then, 4 bytes a number, to and from each by itself"
            f"{'; conditions that exchange nothing are left out there' if silent else ''}. "
            "The curve further left at the same height has learnt as much from less traffic."
        )

    def draw(self, results: Results) -> str:
        found = curves(results)
        if not found:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        conditions = list(dict.fromkeys(c for part in found.values() for c in part))
        most = max(line["bytes"].fillna(0).max() for part in found.values() for line in part.values())
        size, unit = unit_of(most)

        def paint(figure: Any) -> None:
            grid = figure.subplots(len(found), 3, sharex="col", squeeze=False)
            for (by_round, by_bytes, loss), (partition, part) in zip(grid, found.items(), strict=True):
                for condition, line in part.items():
                    look = style(conditions.index(condition)) | {"linewidth": 1.6, "label": condition}
                    look["marker"] = "o" if len(line) == 1 else None
                    by_round.plot(line.index, line["accuracy"], **look)
                    loss.plot(line.index, line["loss"], **look)
                    if line["bytes"].max() > 0:
                        by_bytes.plot(line["bytes"] / size, line["accuracy"], **look)
                by_bytes.sharey(by_round)
                by_round.set_title(short(partition, 22) if len(found) > 1 else "")
                by_round.set_ylabel("Test accuracy (%)")
                loss.set_ylabel("Test loss")
            for axes, name in zip(grid[-1], ("Round", f"Exchanged so far ({unit})", "Round"), strict=True):
                axes.set_xlabel(name)
            for axes in (grid[-1][0], grid[-1][2]):
                axes.xaxis.get_major_locator().set_params(integer=True)
            legend(figure)

        height = 0.4 + 2.3 * len(found) + legend_height(conditions, WIDTH)
        return svg(self.name, f"{self.title}: {self.caption(results)}", (WIDTH, height), paint)


def curves(results: Results) -> dict[str, dict[str, pd.DataFrame]]:
    """By partition and condition: accuracy (%) and loss, the mean over sites and then runs, by round.

    The column `bytes` holds what was exchanged up to and including the round.
    """
    import pandas as pd

    rounds = results.rounds
    found: dict[str, dict[str, pd.DataFrame]] = {}
    if rounds.empty:
        return found
    tested = rounds[rounds["split"] == "test"]
    for (partition, condition), chosen in tested.groupby(["held_out", "condition"], sort=False):
        own = rounds[(rounds["held_out"] == partition) & (rounds["condition"] == condition)]
        columns = {"accuracy": 100 * chosen["accuracy"], "loss": chosen["loss"]}
        means = {c: by_run(chosen.assign(**{c: values}), c) for c, values in columns.items()}
        line = pd.DataFrame({c: shared_part(runs).mean(axis=1) for c, runs in means.items() if len(runs)})
        if len(line):
            line = line.reindex(columns=[*columns])
            found.setdefault(str(partition), {})[str(condition)] = line.assign(bytes=exchanged(own).reindex(line.index))
    return found


def exchanged(rounds: pd.DataFrame) -> pd.Series:
    """Bytes that all clients of a run have received and sent by the end of each round, mean over the runs."""
    trained = rounds[rounds["split"] == "train"]
    floats = trained.reindex(columns=_MOVED).sum(axis=1, min_count=1)
    table = (BYTES * floats).groupby([trained["round"], trained["run"]]).sum(min_count=1).unstack("run")
    return table.cumsum().mean(axis=1)


def unit_of(most: float) -> tuple[float, str]:
    """The unit that the largest of some amounts of bytes reads best in: its size and its name."""
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    name = next((u for u, size in reversed(units.items()) if most >= size), "kB")
    return units[name], name
