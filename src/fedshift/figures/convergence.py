"""The validation metric and the training loss by round."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ._base import Figure, Results
from ._canvas import round_axis, styles
from ._series import by_condition, by_line, validated_by


class Convergence(Figure):
    """The validation metric and training loss by round: means over clients and runs, with single runs as thin lines."""

    title = "Convergence"
    section = "training"
    most: int = Field(24, ge=0, description="largest number of runs with which single runs are drawn as thin lines")

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
            "figure first: a condition whose curve still moves at the end has not converged."
        )

    def draw(self, results: Results) -> str:
        rounds = by_line(results.rounds)
        if rounds.empty:
            return self.nothing(results)
        looks = styles(rounds["condition"])
        thin = rounds["run"].nunique() <= self.most
        metric, title, percent = validated_by(results)
        panels = {("val", metric, percent): title, ("train", "loss", 1): "Training loss"}

        def panel(axes: Any, key: tuple[str, str, float]) -> None:
            split, column, factor = key
            round_axis(axes)
            for condition, runs in by_condition(rounds[rounds["split"] == split], column).items():
                runs = factor * runs
                if thin and runs.shape[1] > 1:
                    axes.plot(runs.index, runs, linewidth=0.6, alpha=0.4, color=looks[condition]["color"])
                # Beyond the end of the shortest run, the mean would jump, since it is over other runs.
                mean = runs.dropna().mean(axis=1)
                axes.plot(mean.index, mean, linewidth=1.8, label=condition, **looks[condition])

        return self.panels(results, panels, panel, looks, size=(3.9, 2.4))
