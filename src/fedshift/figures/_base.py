"""The base of all figures of a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ..core.registry import Plugin
from ._canvas import WIDTH, grid, legend, legend_height, legend_width, note, svg

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


class FigureTable(NamedTuple):
    """A table of text that a figure gives the page in the place of a picture.

    Attributes
    ----------
    header : names of the columns
    rows : the texts of each row
    heads : number of columns, the first ones, that name what a row is about
    best : places (row, column) of the numbers that are the best of their column
    """

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    heads: int
    best: frozenset[tuple[int, int]]


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


def _none(each: int) -> Any:
    return {}


def _empty(*columns: str) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns=list(columns))


no_cases = partial(_empty, "role", "site", "case", "dice", "missed", "false_alarm")
"""The cases of results without predicted masks: none."""
no_curves = partial(_empty, "condition", "shown", "held_out", "site", "false_positives", "sensitivity")
"""The ROC curves of results without predictions: none."""


@dataclass(frozen=True)
class Results:
    """The numbers and images that a figure may draw.

    Titles for people are in the columns `condition` and `shown` (the inference) of every table. The functions read
    predictions or images, which takes long, so that `caption` should call none but `images`.

    Attributes
    ----------
    scores : scores.csv with the ids `condition_id` and `inference_id`
    rounds : rounds.parquet of all runs, with the columns run, seed, condition_id, condition and held_out
    internal, external : sites in the order of the study; with several partitions, a site may be both
    headline : metric that the study leads with
    classes : names of the classes
    positive : the positive class of two; empty for the second
    synthetic : whether the images are invented
    unit : what intervals resample, as the study names it, in the singular: patient, lesion, ...
    settings : every setting of each run, by the id of the run and then by the setting's dotted path
        (`training.batch_size`, `data.dataset.classes_per_client`, `partition.limit.train`, ...)
    tables : further files of results by name: summary, calibration, and, where the study asks for them, net_benefit and
        divergence
    ranking : ranks of the conditions over sites
    images : function that returns at most so many random images of each site (n, height, width, channels), uint8, and
        their classes (n,), sorted by class; none where the data are not images of two dimensions
    mistakes : function that returns at most so many mistakes of each external site
    outlines : function that returns, for a task with masks, at most so many images of each site with the lowest Dice
    cases : function that returns, for a task with masks, a row for each patient with a Dice: role, site, case (its
        first image), dice, missed and false_alarm (bool, of any structure)
    curves : function that returns the mean ROC curve of each condition, inference and site
    """

    scores: pd.DataFrame
    rounds: pd.DataFrame
    internal: tuple[str, ...]
    external: tuple[str, ...]
    headline: Metric
    classes: tuple[str, ...]
    positive: str = ""
    synthetic: bool = False
    unit: str = "patient"
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    ranking: Ranking | None = None
    images: Callable[[int], Mapping[str, tuple[np.ndarray, np.ndarray]]] = _none
    mistakes: Callable[[int], Sequence[SiteMistakes]] = _none
    outlines: Callable[[int], Sequence[SiteOutlines]] = _none
    cases: Callable[[], pd.DataFrame] = no_cases
    curves: Callable[[], pd.DataFrame] = no_curves

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites in the order of the study, each once: internal ones first."""
        return tuple(dict.fromkeys((*self.internal, *self.external)))


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

    def panels(
        self,
        results: Results,
        titles: Mapping[Any, str],
        draw: Callable[[Any, Any], None],
        labels: Iterable[str] = (),
        columns: int = 3,
        size: tuple[float, float] = (2.6, 2.4),
        names: tuple[str, str] = ("", ""),
        **shared: Any,
    ) -> str:
        """Return as SVG a panel for each key of `titles`, whose title stands above it, with a legend of `labels` below.

        `draw` is called with the matplotlib axes and the key of each panel. There are at most `columns` panels in a
        row, each of `size` (width and height in inches). `names` are those of the x and y axes, which stand at the rim,
        and `shared` goes to matplotlib's `subplots`, such as `sharey=True`.
        """
        labels = list(labels)
        columns = min(columns, len(titles))

        def paint(figure: Any) -> None:
            panels = grid(figure, len(titles), columns, **shared)
            for axes in panels[-columns:]:
                axes.set_xlabel(names[0])
                axes.tick_params(labelbottom=True)
            for axes in panels[::columns]:
                axes.set_ylabel(names[1])
            for axes, (key, title) in zip(panels, titles.items(), strict=True):
                axes.set_title(title)
                draw(axes, key)

        width = min(WIDTH, max(0.6 + size[0] * columns, legend_width(labels)))
        return self.picture(results, (width, 0.4 + size[1] * -(-len(titles) // columns)), paint, labels)

    def table(self, results: Results) -> FigureTable | None:
        """Return the table that stands on the page in the place of the picture; None, the default, for the picture."""
        return None
