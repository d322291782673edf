"""Calibration curves of the external sites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from ._base import Figure, Results
from ._canvas import COLOURS, INK, MARKERS, WIDTH, legend, legend_height, note, short, svg

if TYPE_CHECKING:
    import pandas as pd

Series = tuple[str, str]
"""The titles of a condition and of an inference."""


class Calibration(Figure):
    """Observed frequency against predicted probability at each external site, over a histogram of the probabilities."""

    title = "Calibration at external sites"
    samples: int = Field(10, ge=1, description="points of fewer samples are not drawn")
    patients: int = Field(3, ge=1, description="points of fewer patients are not drawn")

    def caption(self, results: Results) -> str:
        rows = _external(results)
        if rows is None:
            return "Calibration has been measured at no external site."
        shown, of = _series(rows), str(rows["of"].iloc[0])
        more = len(rows.drop_duplicates(["condition", "shown"])) - len(shown)
        what = f"class {of}" if of in results.classes else "the most probable class"
        outcome = f"that are {of}" if of in results.classes else "where it is right"
        return (
            f"Share of the samples {outcome}, against the predicted probability of {what}, in bins of equal counts: "
            "on the dotted line, both agree; below it, the probability is too high. Mean over trainings, with 95% "
            f"intervals over patients; points of fewer than {self.samples} samples or {self.patients} patients are "
            f"left out. Below each curve: how many samples have that probability ({' with '.join(shown[0])}), "
            f"{f'those that are {of}' if of in results.classes else 'those where it is right'} in the darker colour."
            f"{' Of several partitions that leave out a site, the first is drawn.' if _several(rows) else ''}"
            f"{f' {more} further curves are left out here.' if more else ''}"
        )

    def draw(self, results: Results) -> str:
        rows = _external(results)
        if rows is None:
            return note(self.name, f"{self.title}: {self.caption(results)}")
        sites, shown = [site for site in results.external if site in set(rows["site"])], _series(rows)
        columns = min(3, len(sites))
        lines = -(-len(sites) // columns)

        def paint(figure: Any) -> None:
            grid = figure.subplots(
                2 * lines, columns, sharex=True, squeeze=False, gridspec_kw={"height_ratios": [3, 1] * lines}
            )
            for n in range(lines * columns):
                curve, bars = grid[n // columns * 2][n % columns], grid[n // columns * 2 + 1][n % columns]
                if n < len(sites):
                    self._panel(curve, bars, rows[rows["site"] == sites[n]], shown)
                    curve.set_title(short(sites[n]))
                else:
                    curve.set_visible(False)
                    bars.set_visible(False)
                if n % columns == 0:
                    curve.set_ylabel("Observed share")
                    bars.set_ylabel("Samples")
            for axes in grid[-1]:
                axes.set_xlabel("Predicted probability")
            legend(figure)

        labels = [", ".join(one) for one in shown]
        width = min(WIDTH, 0.6 + 2.6 * columns) if columns < 3 else WIDTH
        height = 3.2 * lines + 0.3 + legend_height(labels, width)
        return svg(self.name, f"{self.title}: {self.caption(results)}", (width, height), paint)

    def _panel(self, curve: Any, bars: Any, rows: pd.DataFrame, shown: list[Series]) -> None:
        """Draw the curves of one site, and beneath them the histogram of the first series."""
        curve.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=0.9, alpha=0.6)
        for n, one in enumerate(shown):
            points = _of(rows[rows["quantity"] == "point"], one).sort_values("bin")
            few = (points["n"] < self.samples) | (points["patients"] < self.patients)
            p, share, low, high = (points[name].mask(few).to_numpy(float) for name in ("p", "mean", "low", "high"))
            style = {"color": COLOURS[n], "marker": MARKERS[n], "markersize": 4, "linewidth": 1.0}
            curve.plot(p, share, label=", ".join(one), **style)
            curve.vlines(p, low, high, color=COLOURS[n], linewidth=0.9, alpha=0.55)
        curve.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        under: Any = 0.0
        for value, alpha in ((0, 0.35), (1, 0.85)):
            bar = _of(rows[rows["quantity"] == f"histogram_{value}"], shown[0]).sort_values("bin")
            heights = bar["mean"].to_numpy(float)
            bars.bar(bar["p"], heights, width=0.8 / max(len(bar), 1), bottom=under, color=COLOURS[0], alpha=alpha)
            under = under + heights if len(heights) else under
        bars.grid(axis="x", visible=False)


def _external(results: Results) -> pd.DataFrame | None:
    """Return the rows of calibration.csv that this figure draws; None if there are none."""
    if results.calibration is None:
        return None
    drawn = results.calibration["quantity"].isin(["point", "histogram_0", "histogram_1"])
    rows = results.calibration[drawn & (results.calibration["role"] == "external")]
    return rows if len(rows) and np.isin(rows["site"], results.external).any() else None


def _series(rows: pd.DataFrame) -> list[Series]:
    """Return the curves that are drawn: as many as there are colours."""
    return list(dict.fromkeys(zip(rows["condition"], rows["shown"], strict=True)))[: len(COLOURS)]


def _of(rows: pd.DataFrame, one: Series) -> pd.DataFrame:
    """Return the rows of a curve; where several partitions leave out a site, those of the first one."""
    rows = rows[(rows["condition"] == one[0]) & (rows["shown"] == one[1])]
    return rows[rows["condition_id"] == rows["condition_id"].iloc[0]] if len(rows) else rows


def _several(rows: pd.DataFrame) -> bool:
    """Return whether a site is external in several partitions."""
    return int(rows.groupby(["site", "condition", "shown"])["condition_id"].nunique().max()) > 1
