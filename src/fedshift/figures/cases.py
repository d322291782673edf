"""Every case of each site, sorted by its Dice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..core.spelling import plural
from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, panels, short

if TYPE_CHECKING:
    import pandas as pd

LOOKS = (("both masks", COLOURS[0], MARKERS[0]), ("missed", COLOURS[1], MARKERS[4]), ("false alarm", COLOURS[3], "X"))
"""What a dot is, its colour and its shape."""


class Cases(Figure):
    """A dot for each patient at each site, sorted by Dice: a mean hides a few cases that fail altogether."""

    tasks: ClassVar[tuple[str, ...]] = ("segmentation",)
    title = "Cases by Dice"
    section = "sites"

    def caption(self, results: Results) -> str:
        return (
            f"A dot for each {results.unit}, or image of an unknown one, from the worst to the best, by the first "
            "training of the named condition. A missed structure and a false alarm have Dice 0, and other marks; where "
            "there are several structures, Dice is their mean. The line is the mean of the dots. Without a structure "
            "and a prediction of it there is no dot."
        )

    def draw(self, results: Results) -> str:
        table = results.cases()
        places = list(table[["role", "site"]].drop_duplicates().itertuples(index=False, name=None))
        if not places:
            return self.nothing(results)
        columns = min(3, len(places))
        rows = -(-len(places) // columns)

        def paint(figure: Any) -> None:
            grid = panels(figure, len(places), columns, sharey=True)
            for axes, (role, site) in zip(grid, places, strict=True):
                _panel(axes, table[(table["role"] == role) & (table["site"] == site)], plural(results.unit))
            for axes in grid[::columns]:
                axes.set_ylabel("Dice (%)")

        width = WIDTH if columns == 3 else 0.6 + 2.6 * columns
        return self.picture(results, (width, 0.4 + 2.8 * rows), paint, [name for name, *_ in LOOKS])


def _panel(axes: Any, table: pd.DataFrame, units: str) -> None:
    """Draw the cases of one site, and say in its title how many fail altogether."""
    cases = table.sort_values(["dice", "false_alarm", "case"]).reset_index(drop=True)
    kinds = {"missed": cases["missed"], "false alarm": cases["false_alarm"] & ~cases["missed"]}
    kinds["both masks"] = ~(cases["missed"] | cases["false_alarm"])
    for name, colour, marker in LOOKS:
        dots = cases[kinds[name]]
        look = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 4, "label": name}
        axes.plot(dots.index + 1, 100 * dots["dice"], **look)
    mean = 100 * cases["dice"].mean()
    axes.axhline(mean, color=INK, linewidth=1, alpha=0.6)
    fails = f"missed {cases['missed'].sum()}, false alarms {cases['false_alarm'].sum()}"
    axes.set_title(f"{short(cases['site'][0])}, {cases['role'][0]}\nmean {mean:.1f} %\n{fails}")
    axes.set(xlabel=f"{units}, worst first", xlim=(0, len(cases) + 1), ylim=(-4, 104))
    axes.xaxis.get_major_locator().set_params(integer=True)
