"""Decision curves: the net benefit of a model by threshold probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..core.spelling import plural
from ._base import Figure, Results
from ._canvas import INK, lines, styles, titles
from ._series import by_partition, sites_of

if TYPE_CHECKING:
    import pandas as pd


class DecisionCurve(Figure):
    """Net benefit of the models, of treating all and of treating none, over the study's range of thresholds.

    At the threshold t, net benefit is TP / n - FP / n * t / (1 - t) (Vickers and Elkin, Med Decis Making 2006;26:565):
    the share of true positives, minus the share of false positives times the odds t / (1 - t) at which a treatment is
    just worthwhile. The range of thresholds is the study's `decision_range`. It needs two classes. A model is a
    condition (algorithm x batch norm policy x settings) under one inference (prediction method).
    """

    title = "Decision curve"
    section = "operating-point"
    most: int = Field(6, ge=1, description="number of models that are drawn, each a condition under one inference")

    def caption(self, results: Results) -> str:
        table = _shown(results)
        if table.empty:
            return "There is no net benefit to show: it needs two classes, and predictions."
        prevalence = table.groupby("site")["prevalence"].first()
        shares = ", ".join(f"{site} {100 * prevalence[site]:.1f} %" for site in sites_of(results, table))
        more = table["line"].nunique() - self.most
        left_out = f"{more} further models are left out here. " if more > 0 else ""
        return (
            f"Net benefit over thresholds from {table['threshold'].min():g} to {table['threshold'].max():g}, the range "
            "that the study declares. A model is worth using where it is above treating all and treating none; its "
            f"line is thick where the whole 95% interval of that difference over {plural(results.unit)} and trainings "
            "is above zero. "
            f"{left_out}Net benefit depends on prevalence, which is that of the test samples: {shares}. Probabilities "
            "are used as the models give them, without recalibration."
        )

    def draw(self, results: Results) -> str:
        table = _shown(results)
        if table.empty:
            return self.nothing(results)
        looks = dict(list(styles(table["line"]).items())[: self.most])
        defaults = {"Treat all": "--", "Treat none": ":"}

        def panel(axes: Any, site: str) -> None:
            here = table[table["site"] == site].sort_values("threshold")
            lines(axes, here, "threshold", "model", looks, linewidth=1.2)
            lines(
                axes, here.assign(model=here["model"].where(here["low"] > 0)), "threshold", "model", looks, linewidth=3
            )
            # Treating all or none does not depend on the model: the rows of any line hold both.
            first = here[here["line"] == here["line"].iloc[0]]
            for (name, dashes), y in zip(defaults.items(), (first["all"], 0 * first["threshold"]), strict=True):
                axes.plot(first["threshold"], y, label=name, color=INK, linewidth=0.9, linestyle=dashes)
            # The y axis stops slightly below 0, where all curves are useless.
            top = max(here["prevalence"].max(), 0.05)
            low, high = axes.get_ylim()
            axes.set_ylim(min(-0.1 * top, max(low, -0.5 * top)), max(high, top))

        sites = titles(sites_of(results, table))
        names = "Threshold probability", "Net benefit"
        return self.panels(results, sites, panel, [*looks, *defaults], names=names, sharex=True, sharey=True)


def _shown(results: Results) -> pd.DataFrame:
    """Return the rows of net_benefit.csv at external sites, or at internal sites if there are no external ones.

    The column `line` holds the name of each model: its inference (prediction method), preceded by its condition
    (algorithm x batch norm policy x settings) if there are several.
    """
    import pandas as pd

    table = by_partition(results.tables.get("net_benefit", pd.DataFrame()))
    if table.empty:
        return table
    if (table["role"] == "external").any():
        table = table[table["role"] == "external"]
    if table["condition"].nunique() == 1:
        return table.assign(line=table["shown"])
    return table.assign(line=table["condition"] + ", " + table["shown"])
