"""The base of all figures of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..core.registry import Plugin

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..metrics import Metric


class Ranking(NamedTuple):
    """The mean ranks of conditions over sites; 1 is the best.

    Attributes
    ----------
    names : tuple[str, ...]
        the titles of the conditions
    role, sites : str, int
        the role of the sites, and their number
    ranks : tuple[float, ...]
        the mean rank of each condition; empty where there is none
    critical : float
        the critical difference of Nemenyi's test at 5 %
    p : float
        that of Iman and Davenport's test that all ranks are alike
    related : bool
        whether each site was held out from another training
    why_not : str
        the reason why ranks are not compared
    """

    names: tuple[str, ...]
    role: str
    sites: int
    ranks: tuple[float, ...] = ()
    critical: float = float("nan")
    p: float = float("nan")
    related: bool = False
    why_not: str = ""


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction of one image.

    Attributes
    ----------
    image : numpy.ndarray
        the prepared image (height, width, channels), uint8
    true, predicted : int
        the two classes
    probability : float
        the probability of the predicted class, mean over trainings
    """

    image: np.ndarray
    true: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class SiteMistakes:
    """The most confident wrong predictions of an external site, the worst first.

    Attributes
    ----------
    site : str
        the name of the site
    condition, inference : str
        titles of the condition and the inference that predicted
    trainings : int
        the number of trainings over which probabilities are averaged
    wrong, total : int
        images with a wrong prediction, and all images
    worst : tuple[Mistake, ...]
        the mistakes that are shown
    """

    site: str
    condition: str
    inference: str
    trainings: int
    wrong: int
    total: int
    worst: tuple[Mistake, ...]


def no_mistakes(each: int) -> tuple[SiteMistakes, ...]:
    """Return nothing: the mistakes of results without predictions."""
    return ()


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
        a few images of each site (n, height, width, channels), uint8, sorted by class
    labels : dict[str, numpy.ndarray]
        the classes (n,) of these images, where they are known
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
    mistakes : Callable[[int], Sequence[SiteMistakes]]
        reads the predictions and returns at most so many mistakes of each external site; costly, so that `caption`
        should not call it
    benefits : pandas.DataFrame or None
        net_benefit.csv with the columns `condition` and `shown`; None where the study asks for no decision curve
    ranking : Ranking | None
        the ranks of the conditions over sites
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
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    mistakes: Callable[[int], Sequence[SiteMistakes]] = no_mistakes
    benefits: pd.DataFrame | None = None
    ranking: Ranking | None = None
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
