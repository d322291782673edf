"""The base of all figures of a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.registry import Plugin

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..metrics import Metric


@dataclass(frozen=True)
class Results:
    """What a figure may draw from.

    `scores`, `summary` : as in scores.csv and summary.csv, with the columns `condition` and `shown` added:
        what to call the condition and the inference
    `rounds` : rounds.parquet of all runs, with the columns run, seed, condition and held_out added
    `patches` : a few images of each site (n, height, width, channels), uint8
    `internal`, `external` : the sites in the order of the study; with several partitions, a site may be both
    `headline` : the metric that the study leads with
    `classes` : names of the classes
    `synthetic` : whether the images are made up
    `settings` : of each run by its id, every setting by its dotted path (`training.batch_size`,
        `data.dataset.classes_per_client`, `partition.limit.train`, ...)
    """

    scores: pd.DataFrame
    summary: pd.DataFrame
    rounds: pd.DataFrame
    patches: dict[str, np.ndarray]
    internal: tuple[str, ...]
    external: tuple[str, ...]
    headline: Metric
    classes: tuple[str, ...]
    synthetic: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Figure(Plugin):
    """A picture for the page.

    A plug-in sets `title`, the heading of the figure, and overrides `caption` and `draw`.
    """

    kind: ClassVar[str] = "figure"
    title: ClassVar[str] = ""

    def caption(self, results: Results) -> str:
        """Return one or two sentences about these results: what is drawn, and what to conclude from it."""
        return ""

    def draw(self, results: Results) -> str:
        """Return the figure as SVG text."""
        raise TypeError(f"{type(self).__name__} draws nothing")
