"""Calibration curves of the external sites, each over a histogram of the predicted probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..core.spelling import plural
from ._base import Figure, Results
from ._canvas import COLOURS, INK, legend_width, marks, short
from ._series import sites_of

if TYPE_CHECKING:
    import pandas as pd

Series = tuple[str, str]
"""A curve: the titles of its condition (algorithm x batch norm policy x settings) and inference (prediction method)."""


class Calibration(Figure):
    """Observed frequency against predicted probability at each external site, over a histogram of the probabilities.

    Probabilities are those of the positive class of two, or of the predicted class. The numbers come from
    calibration.csv; as many curves are drawn as there are colours.
    """

    title = "Calibration at external sites"
    section = "calibration"
    samples: int = Field(
        10, ge=1, description="smallest number of samples in a point of a curve; points with fewer are not drawn"
    )
    patients: int = Field(
        3, ge=1, description="smallest number of patients in a point of a curve; points with fewer are not drawn"
    )

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
            words.append(f"Further curves left out here: {more}.")
        return " ".join(words)

    def draw(self, results: Results) -> str:
        table = _external(results)
        if table is None:
            return self.nothing(results)
        sites = sites_of(results, table)
        looks = marks(_series(table)[: len(COLOURS)], 4)
        columns = min(3, len(sites))
        lines = -(-len(sites) // columns)

        def paint(figure: Any) -> None:
            ratios = {"height_ratios": [3, 1] * lines}
            places = figure.subplots(2 * lines, columns, sharex=True, squeeze=False, gridspec_kw=ratios)
            for axes in places.flat:
                axes.set_visible(False)
            for n, site in enumerate(sites):
                curve, bars = places[n // columns * 2 : n // columns * 2 + 2, n % columns]
                here = table[table["site"] == site]
                self._curves(curve, here, looks)
                _histogram(bars, here, next(iter(looks)))
                curve.set(visible=True, title=short(site), ylabel="" if n % columns else "Observed share")
                bars.set(visible=True, ylabel="" if n % columns else "Samples")
            for axes in places[-1]:
                axes.set_xlabel("Predicted probability")

        labels = [", ".join(titles) for titles in looks]
        return self.picture(results, (max(0.6 + 2.6 * columns, legend_width(labels)), 3.2 * lines + 0.3), paint, labels)

    def _curves(self, axes: Any, table: pd.DataFrame, looks: dict[Series, dict[str, Any]]) -> None:
        """Draw all calibration curves of one site, with confidence intervals as vertical lines.

        `table` holds the site's rows of calibration.csv, and `looks` the matplotlib style of each curve. Points of too
        few samples or patients are left out.
        """
        axes.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=0.9, alpha=0.6)
        for titles, look in looks.items():
            points = _of(table[table["quantity"] == "point"], titles).sort_values("bin")
            # A share of few samples or patients says nothing, and in small studies it could point to a patient.
            few = (points["n"] < self.samples) | (points["patients"] < self.patients)
            p, share, low, high = (points[name].mask(few).to_numpy(float) for name in ("p", "mean", "low", "high"))
            axes.plot(p, share, label=", ".join(titles), **look | {"linestyle": "-", "linewidth": 1.0})
            axes.vlines(p, low, high, color=look["color"], linewidth=0.9, alpha=0.55)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def _histogram(axes: Any, table: pd.DataFrame, titles: Series) -> None:
    """Draw the histogram of the predicted probabilities of one curve at a site, as stacked bars.

    `table` holds the site's rows of calibration.csv, and `titles` names the curve. The darker bars count the samples
    that are positive, or predicted correctly.
    """
    under: Any = 0.0
    for value, alpha in ((0, 0.35), (1, 0.85)):
        bar = _of(table[table["quantity"] == f"histogram_{value}"], titles).sort_values("bin")
        heights = bar["mean"].to_numpy(float)
        axes.bar(bar["p"], heights, width=0.8 / max(len(bar), 1), bottom=under, color=COLOURS[0], alpha=alpha)
        if len(heights):
            under = under + heights
    axes.grid(axis="x", visible=False)


def _external(results: Results) -> pd.DataFrame | None:
    """Return the rows of calibration.csv with curves and histograms of external sites, or None if it has none."""
    table = results.tables.get("calibration")
    if table is None:
        return None
    drawn = table["quantity"].isin(["point", "histogram_0", "histogram_1"])
    rows = table[drawn & (table["role"] == "external") & table["site"].isin(results.external)]
    return rows if len(rows) else None


def _series(rows: pd.DataFrame) -> list[Series]:
    """Return the names of the calibration curves in `rows` of calibration.csv, in the order of the study.

    A name consists of the titles of the condition (algorithm x batch norm policy x settings) and of the inference
    (prediction method). Callers draw as many curves as there are colours.
    """
    return list(dict.fromkeys(zip(rows["condition"], rows["shown"], strict=True)))


def _of(rows: pd.DataFrame, series: Series) -> pd.DataFrame:
    """Return the rows of one calibration curve, `series`, of a site.

    Where the site is external in several partitions, these are the rows of the first partition.
    """
    condition, inference = series
    rows = rows[(rows["condition"] == condition) & (rows["shown"] == inference)]
    return rows[rows["condition_id"].isin(rows["condition_id"].head(1))]


def _several(rows: pd.DataFrame) -> bool:
    """Return whether any site is external in several partitions, so that one algorithm has several curves there."""
    return int(rows.groupby(["site", "condition", "shown"])["condition_id"].nunique().max()) > 1
