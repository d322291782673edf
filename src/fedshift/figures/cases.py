"""The Dice of every patient at each site, sorted."""

from __future__ import annotations

from typing import Any, ClassVar

from ..core.spelling import plural
from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, short

LOOKS = {
    "both masks": {"color": COLOURS[0], "marker": MARKERS[0]},
    "missed": {"color": COLOURS[1], "marker": MARKERS[4]},
    "false alarm": {"color": COLOURS[3], "marker": "X"},
}
"""Colour and marker of each kind of dot. `missed` is a structure without a prediction; `false alarm` is a prediction
without a structure."""


class Cases(Figure):
    """A dot for each patient at each site, sorted by Dice: a mean hides a few cases that fail altogether.

    It is for segmentation, and draws `Results.cases`.
    """

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
        if table.empty:
            return self.nothing(results)
        kinds = {"both masks": ~(table["missed"] | table["false_alarm"]), "missed": table["missed"]}
        table = table.assign(dice=100 * table["dice"], kind="false alarm")
        for name, chosen in kinds.items():
            table.loc[chosen, "kind"] = name
        places = dict.fromkeys(table[["role", "site"]].itertuples(index=False, name=None), "")

        def panel(axes: Any, place: tuple[str, str]) -> None:
            role, site = place
            here = table[(table["role"] == role) & (table["site"] == site)]
            here = here.sort_values(["dice", "false_alarm", "case"]).reset_index(drop=True)
            for name, look in LOOKS.items():
                dots = here[here["kind"] == name]
                axes.plot(dots.index + 1, dots["dice"], label=name, linestyle="none", markersize=4, **look)
            axes.axhline(here["dice"].mean(), color=INK, linewidth=1, alpha=0.6)
            fails = f"missed {here['missed'].sum()}, false alarms {here['false_alarm'].sum()}"
            axes.set_title(f"{short(site)}, {role}\nmean {here['dice'].mean():.1f} %\n{fails}")
            axes.set(xlim=(0, len(here) + 1), ylim=(-4, 104))
            axes.xaxis.get_major_locator().set_params(integer=True)

        names = f"{plural(results.unit)}, worst first", "Dice (%)"
        return self.panels(results, places, panel, LOOKS, size=(2.6, 2.8), names=names, sharey=True)
