"""Validation accuracy and training loss by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, round_axis, style
from ._series import by_line, by_run

if TYPE_CHECKING:
    import pandas as pd

_PANELS = (("val", "accuracy", 100, "Validation accuracy (%)"), ("train", "loss", 1, "Training loss"))
"""Split, column, factor and title of each panel."""


class Convergence(Figure):
    """Validation accuracy and training loss by round: means over clients and runs, with single runs as thin lines."""

    title = "Convergence"
    section = "training"
    most: int = Field(24, ge=0, description="single runs are drawn if there are at most this many")

    def caption(self, results: Results) -> str:
        if results.rounds.empty:
            return "No run has finished a round yet."
        last = results.rounds.groupby("run")["round"].max()
        rounds = " to ".join(dict.fromkeys([str(last.min()), str(last.max())]))
        drawn = "Mean over clients and runs"
        if len(last) <= self.most:
            drawn += ", and each run (thin),"
        return (
            f"{drawn} over {rounds} rounds; the mean ends with its shortest run. Read this "
            "figure first: a condition whose accuracy still rises at the end has not converged."
        )

    def draw(self, results: Results) -> str:
        rounds = by_line(results.rounds)
        conditions = list(dict.fromkeys(rounds["condition"])) if len(rounds) else []

        def paint(figure: Any) -> None:
            for axes, (split, column, factor, name) in zip(figure.subplots(1, 2), _PANELS, strict=True):
                axes.set_title(name)
                round_axis(axes)
                for n, condition in enumerate(conditions):
                    chosen = rounds[(rounds["condition"] == condition) & (rounds["split"] == split)]
                    if chosen[column].notna().any():
                        thin = rounds["run"].nunique() <= self.most
                        _line(axes, factor * by_run(chosen, column), condition, style(n), thin)

        return self.picture(results, (WIDTH, 2.8), paint, conditions)


def _line(axes: Any, runs: pd.DataFrame, condition: str, look: dict[str, Any], thin: bool) -> None:
    """Draw the mean over runs, up to the end of the shortest one, and single runs as thin lines if asked to."""
    if thin and runs.shape[1] > 1:
        axes.plot(runs.index, runs, linewidth=0.6, alpha=0.4, color=look["color"])
    # Beyond the end of the shortest run, the mean would jump, since it is over other runs.
    mean = runs.dropna().mean(axis=1)
    axes.plot(mean.index, mean, linewidth=1.8, label=condition, **look)
