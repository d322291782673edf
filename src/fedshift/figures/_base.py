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
    """The numbers and images that a figure may draw.

    Attributes
    ----------
    scores, summary : pandas.DataFrame
        scores.csv and summary.csv with the ids `condition_id` and `inference_id`, and with their titles for people in
        the columns `condition` and `shown`
    rounds : pandas.DataFrame
        rounds.parquet of all runs, with the columns run, seed, condition_id, condition and held_out
    patches : dict[str, numpy.ndarray]
        a few images of each site (n, height, width, channels), uint8
    internal, external : tuple[str, ...]
        the sites in the order of the study; with several partitions, a site may be both
    headline : Metric
        the metric that the study leads with
    classes : tuple[str, ...]
        names of the classes
    synthetic : bool
        whether the images are invented
    settings : Mapping[str, Mapping[str, Any]]
        every setting of each run, by the id of the run and then by the setting's dotted path
        (`training.batch_size`, `data.dataset.classes_per_client`, `partition.limit.train`, ...)
    calibration : pandas.DataFrame | None
        calibration.csv, with titles as in `scores`
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
    calibration: pd.DataFrame | None = None


class Figure(Plugin):
    """A picture for the page.

    A plug-in sets `title`, the heading of the figure, and overrides `caption` and `draw`.
    """

    kind: ClassVar[str] = "figure"
    title: ClassVar[str] = ""

    def caption(self, results: Results) -> str:
        """Return one or two sentences that are true of these results."""
        return ""

    def draw(self, results: Results) -> str:
        """Return the figure as SVG text."""
        raise TypeError(f"{type(self).__name__} draws nothing")
