"""Calibration curves of the external sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..core.spelling import plural
from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, short

if TYPE_CHECKING:
    import pandas as pd

Series = tuple[str, str]
"""The titles of a condition and of an inference."""


class Calibration(Figure):
    """Observed frequency against predicted probability at each external site, over a histogram of the probabilities."""

    title = "Calibration at external sites"
    section = "calibration"
    samples: int = Field(10, ge=1, description="points of fewer samples are not drawn")
    patients: int = Field(3, ge=1, description="points of fewer patients are not drawn")

    def caption(self, results: Results) -> str:
        rows = _external(results)
        if rows is None:
            return "Calibration has been measured at no external site."
        series = _series(rows)
        more = len(series) - len(COLOURS)
        predicted = "the most probable class"
        right = "where it is right"
        positive = str(rows["of"].iloc[0])
        if positive in results.classes:
            predicted = f"class {positive}"
            right = f"that are {positive}"
        units = plural(results.unit)
        words = [
            f"Share of the samples {right}, against the predicted probability of {predicted}, in bins of equal counts: "
            "on the dotted line, both agree; below it, the probability is too high. Mean over trainings, with 95% "
            f"intervals over {units}; points of fewer than {self.samples} samples or {self.patients} {units} are "
            f"left out. Below each curve: how many samples have that probability ({' with '.join(series[0])}), those "
            f"{right} in the darker colour."
        ]
        if _several(rows):
            words.append("Of several partitions that leave out a site, the first is drawn.")
        if more > 0:
            words.append(f"{more} further curves are left out here.")
        return " ".join(words)

    def draw(self, results: Results) -> str:
        rows = _external(results)
        if rows is None:
            return self.nothing(results)
        sites = [site for site in results.external if site in set(rows["site"])]
        shown = _series(rows)[: len(COLOURS)]
        columns = min(3, len(sites))
        lines = -(-len(sites) // columns)

        def paint(figure: Any) -> None:
            ratios = {"height_ratios": [3, 1] * lines}
            grid = figure.subplots(2 * lines, columns, sharex=True, squeeze=False, gridspec_kw=ratios)
            for axes in grid.flat:
                axes.set_visible(False)
            for n, site in enumerate(sites):
                curve, bars = grid[n // columns * 2 : n // columns * 2 + 2, n % columns]
                curve.set_visible(True)
                bars.set_visible(True)
                self._panel(curve, bars, rows[rows["site"] == site], shown)
                curve.set_title(short(site))
                if n % columns == 0:
                    curve.set_ylabel("Observed share")
                    bars.set_ylabel("Samples")
            for axes in grid[-1]:
                axes.set_xlabel("Predicted probability")

        width = WIDTH if columns == 3 else 0.6 + 2.6 * columns
        labels = [", ".join(titles) for titles in shown]
        return self.picture(results, (width, 3.2 * lines + 0.3), paint, labels)

    def _panel(self, curve: Any, bars: Any, rows: pd.DataFrame, shown: list[Series]) -> None:
        """Draw the curves of one site, and beneath them the histogram of the first series."""
        curve.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=0.9, alpha=0.6)
        for n, titles in enumerate(shown):
            points = _of(rows[rows["quantity"] == "point"], titles).sort_values("bin")
            # A share of few samples or patients says nothing, and in small studies it could point to a patient.
            few = (points["n"] < self.samples) | (points["patients"] < self.patients)
            p, share, low, high = (points[name].mask(few).to_numpy(float) for name in ("p", "mean", "low", "high"))
            style = {"color": COLOURS[n], "marker": MARKERS[n], "markersize": 4, "linewidth": 1.0}
            curve.plot(p, share, label=", ".join(titles), **style)
            curve.vlines(p, low, high, color=COLOURS[n], linewidth=0.9, alpha=0.55)
        curve.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        under: Any = 0.0
        for value, alpha in ((0, 0.35), (1, 0.85)):
            bar = _of(rows[rows["quantity"] == f"histogram_{value}"], shown[0]).sort_values("bin")
            heights = bar["mean"].to_numpy(float)
            bars.bar(bar["p"], heights, width=0.8 / max(len(bar), 1), bottom=under, color=COLOURS[0], alpha=alpha)
            if len(heights):
                under = under + heights
        bars.grid(axis="x", visible=False)


def _external(results: Results) -> pd.DataFrame | None:
    """Return the rows of calibration.csv that this figure draws; None if there are none."""
    if results.calibration is None:
        return None
    drawn = results.calibration["quantity"].isin(["point", "histogram_0", "histogram_1"])
    rows = results.calibration[drawn & (results.calibration["role"] == "external")]
    return rows if rows["site"].isin(results.external).any() else None


def _series(rows: pd.DataFrame) -> list[Series]:
    """Return the curves that may be drawn, in the order of the study. As many are drawn as there are colours."""
    return list(dict.fromkeys(zip(rows["condition"], rows["shown"], strict=True)))


def _of(rows: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Return the rows of a curve; where several partitions leave out a site, those of the first one."""
    condition, inference = series
    rows = rows[(rows["condition"] == condition) & (rows["shown"] == inference)]
    return rows[rows["condition_id"].isin(rows["condition_id"].head(1))]


def _several(rows: pd.DataFrame) -> bool:
    """Return whether a site is external in several partitions."""
    return int(rows.groupby(["site", "condition", "shown"])["condition_id"].nunique().max()) > 1
