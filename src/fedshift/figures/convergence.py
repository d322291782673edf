"""Validation accuracy and training loss by round."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import WIDTH, legend, legend_height, style, svg
from ._series import by_partition, by_run, of_same_sites


class Convergence(Figure):
    """Validation accuracy and training loss by round: means over clients and runs, with single runs as thin lines."""

    title = "Convergence"
    most: int = Field(24, ge=0, description="single runs are drawn if there are at most this many")

    def caption(self, results: Results) -> str:
        if results.rounds.empty:
            return "No run has finished a round yet."
        last = results.rounds.groupby("run")["round"].max()
        rounds = f"{last.min()}" if last.min() == last.max() else f"{last.min()} to {last.max()}"
        return (
            f"Mean over clients and runs{', and each run (thin),' if len(last) <= self.most else ''} over {rounds} "
            "rounds; the mean ends with its shortest run. Read this figure first: a condition whose accuracy still "
            "rises at the end has not converged."
        )

    def draw(self, results: Results) -> str:
        panels = (("val", "accuracy", "Validation accuracy (%)"), ("train", "loss", "Training loss"))
        rounds = by_partition(results.rounds) if of_same_sites(results.rounds) else results.rounds
        conditions = list(dict.fromkeys(rounds["condition"])) if len(rounds) else []

        def paint(figure: Any) -> None:
            for axes, (split, column, name) in zip(figure.subplots(1, 2), panels, strict=True):
                axes.set_title(name)
                axes.set_xlabel("Round")
                axes.xaxis.get_major_locator().set_params(integer=True)
                for n, condition in enumerate(conditions):
                    chosen = rounds[(rounds["condition"] == condition) & (rounds["split"] == split)]
                    if chosen.empty or chosen[column].isna().all():
                        continue
                    runs = by_run(chosen, column) * (100 if column == "accuracy" else 1)
                    look = style(n)
                    if runs.shape[1] > 1 and rounds["run"].nunique() <= self.most:
                        axes.plot(runs.index, runs, linewidth=0.6, alpha=0.4, color=look["color"])
                    mean = runs.dropna().mean(axis=1)
                    axes.plot(mean.index, mean, linewidth=1.8, label=condition, **look)
            legend(figure)

        size = (WIDTH, 2.8 + legend_height(conditions, WIDTH))
        return svg(self.name, f"{self.title}: {self.caption(results)}", size, paint)
