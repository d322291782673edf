"""The base of all figures of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..core.registry import Plugin
from ._canvas import legend, legend_height, note, svg

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from ..metrics import Metric


class Ranking(NamedTuple):
    """The mean ranks of conditions over sites; 1 is the best.

    Attributes
    ----------
    names : titles of the conditions
    role, sites : role of the sites, and their number
    ranks : mean rank of each condition; empty where ranks are not compared
    critical : critical difference of Nemenyi's test at 5 %
    p : p value of Iman and Davenport's test that all ranks are alike
    related : whether each site was held out from another training
    why_not : reason why ranks are not compared
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
    image : prepared image (height, width, channels), uint8
    true, predicted : the two classes
    probability : probability of the predicted class, mean over trainings
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
    site : name of the site
    condition, inference : titles of the condition and the inference that predicted
    trainings : number of trainings over which probabilities are averaged
    wrong : number of images that a training predicts wrongly, its mean over trainings
    total : number of all images
    worst : mistakes that are shown
    """

    site: str
    condition: str
    inference: str
    trainings: int
    wrong: int
    total: int
    worst: tuple[Mistake, ...]


@dataclass(frozen=True)
class OutlinedImage:
    """A predicted mask beside its reference.

    Attributes
    ----------
    image : prepared image (height, width, channels), uint8
    reference, predicted : each structure's mask (structures, height, width), bool
    dice : mean over the structures that are there or predicted
    """

    image: np.ndarray
    reference: np.ndarray
    predicted: np.ndarray
    dice: float


@dataclass(frozen=True)
class SiteOutlines:
    """The images of a site with the lowest Dice, the worst first.

    Attributes
    ----------
    site, role : name of the site, and internal or external
    condition, inference : titles of the condition and the inference that predicted
    seed : seed of the training that predicted
    total : number of the site's test images that have a Dice
    worst : images that are shown
    """

    site: str
    role: str
    condition: str
    inference: str
    seed: int
    total: int
    worst: tuple[OutlinedImage, ...]


def no_outlines(each: int) -> tuple[SiteOutlines, ...]:
    """Return nothing: the outlines of results without predicted masks."""
    return ()


def no_cases() -> pd.DataFrame:
    """Return no case: those of results without predicted masks."""
    import pandas as pd

    return pd.DataFrame(columns=["role", "site", "case", "dice", "missed", "false_alarm"])


def no_mistakes(each: int) -> tuple[SiteMistakes, ...]:
    """Return nothing: the mistakes of results without predictions."""
    return ()


def no_images(each: int) -> dict[str, np.ndarray]:
    """Return nothing: the images of results without prepared data."""
    return {}


def no_curves() -> pd.DataFrame:
    """Return no ROC curve: those of results without predictions."""
    import pandas as pd

    return pd.DataFrame(columns=["condition", "shown", "held_out", "site", "false_positives", "sensitivity"])


@dataclass(frozen=True)
class Results:
    """The numbers and images that a figure may draw.

    Attributes
    ----------
    scores, summary : scores.csv and summary.csv with the ids `condition_id` and `inference_id`, and with their titles
        for people in the columns `condition` and `shown`
    rounds : rounds.parquet of all runs, with the columns run, seed, condition_id, condition and held_out
    patches : a few images of each site (n, height, width, channels), uint8, sorted by class
    labels : classes (n,) of these images, where they are known
    internal, external : sites in the order of the study; with several partitions, a site may be both
    headline : metric that the study leads with
    classes : names of the classes
    synthetic : whether the images are invented
    settings : every setting of each run, by the id of the run and then by the setting's dotted path
        (`training.batch_size`, `data.dataset.classes_per_client`, `partition.limit.train`, ...)
    images : function that returns at most so many random images of each site, as in `patches`
    mistakes : function that reads the predictions and returns at most so many mistakes of each external site; costly,
        so that `caption` should not call it
    outlines : function that reads the predictions and returns, for a task with masks, at most so many images of each
        site with the lowest Dice; costly as well
    cases : function that reads the predictions and returns, for a task with masks, a row for each patient with a Dice:
        role, site, case (its first image), dice, missed and false_alarm (bool, of any structure); costly as well
    positive : the positive class of two; empty for the second
    curves : function that reads the predictions and returns the mean ROC curve of each condition, inference and site,
        with titles as in `scores`; costly, so that `caption` should not call it
    benefits : net_benefit.csv with titles as in `scores`; None where the study asks for no decision curve
    divergence : divergence.csv with titles as in `scores`; None where the study does not ask for the figure
    ranking : ranks of the conditions over sites
    calibration : calibration.csv with titles as in `scores`
    unit : what intervals resample, as the study names it, in the singular: patient, lesion, ...
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
    images: Callable[[int], Mapping[str, np.ndarray]] = no_images
    mistakes: Callable[[int], Sequence[SiteMistakes]] = no_mistakes
    outlines: Callable[[int], Sequence[SiteOutlines]] = no_outlines
    cases: Callable[[], pd.DataFrame] = no_cases
    positive: str = ""
    curves: Callable[[], pd.DataFrame] = no_curves
    benefits: pd.DataFrame | None = None
    divergence: pd.DataFrame | None = None
    ranking: Ranking | None = None
    calibration: pd.DataFrame | None = None
    unit: str = "patient"


class Figure(Plugin):
    """A picture for the page.

    A plug-in sets `title`, the heading of the figure, and overrides `caption` and `draw`; the other methods are help.
    `shows_images` is True for a figure that shows images of the data. A page whose figures show none has no images.
    `section` is the id of the page's section that shows it; by default, and where a page lacks that section, it stands
    among the other figures.
    """

    kind: ClassVar[str] = "figure"
    title: ClassVar[str] = ""
    section: ClassVar[str] = "figures"
    shows_images: ClassVar[bool] = False

    def caption(self, results: Results) -> str:
        """Return one or two sentences that are true of these results."""
        return ""

    def draw(self, results: Results) -> str:
        """Return the figure as SVG text."""
        raise TypeError(f"{type(self).__name__} draws nothing")

    def parts(self, svg: str) -> list[tuple[str, str]]:
        """Return title and SVG text of each part of a drawn figure that a reader opens by itself.

        By default there are none, and the figure is shown whole.
        """
        return []

    def heading(self, results: Results) -> str:
        """Return title and caption: what describes the figure to readers who cannot see it."""
        return f"{self.title}: {self.caption(results)}"

    def nothing(self, results: Results) -> str:
        """Return the SVG that is shown where there is nothing to draw; the caption says why."""
        return note(self.name, self.heading(results))

    def picture(
        self,
        results: Results,
        size: tuple[float, float],
        paint: Callable[[Any], None],
        labels: Iterable[str] = (),
    ) -> str:
        """Return as SVG what `paint` draws on a matplotlib figure of `size` (width and height in inches).

        Where there are `labels`, those of lines and bars, a legend is added below; the figure becomes higher by it.
        """
        labels = list(labels)
        width, height = size

        def paint_with_legend(figure: Any) -> None:
            paint(figure)
            if labels:
                legend(figure)

        size = (width, height + legend_height(labels, width))
        return svg(self.name, self.heading(results), size, paint_with_legend)
