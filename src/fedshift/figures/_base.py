"""The base class of the figures of a study's page, and the results that a figure gets."""

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
    """The mean ranks of a study's conditions over sites, by the headline metric; rank 1 is the best.

    A condition is an algorithm with a batch-norm policy and settings.

    Attributes
    ----------
    names : titles of the conditions
    role : role of the sites at which conditions are ranked: internal or external
    sites : number of these sites
    ranks : mean rank of each condition, in the order of `names`; empty where ranks are not compared
    critical : critical difference of Nemenyi's test at the 5 % level; NaN where ranks are not compared
    p : p value of the test of Iman and Davenport, whose null hypothesis is that all conditions perform alike
    related : True if each external site was held out from a training of its own, so that trainings share sites
    why_not : clause that says why ranks are not compared, such as too few sites; empty where they are
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
    """A table that a figure puts on the page instead of a picture.

    Attributes
    ----------
    header : names of the columns
    rows : rows of the table, each with a text for every column
    heads : number of leading columns that name what a row is about, such as the algorithm
    best : positions (row, column), from 0, of the numbers that are the best of their column
    """

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    heads: int
    best: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction for one image.

    Attributes
    ----------
    image : prepared image (height, width, channels), uint8
    true, predicted : index of the true class and of the predicted class
    probability : probability of the predicted class, mean over trainings
    """

    image: np.ndarray
    true: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class SiteMistakes:
    """The most confident wrong predictions at one external site.

    Attributes
    ----------
    site : name of the site
    condition, inference : titles of the condition (algorithm x batch norm policy x settings) and of the inference
        (prediction method) that predicted the site
    trainings : number of trainings over which probabilities are averaged
    wrong : number of wrongly predicted images, mean over trainings, rounded
    total : number of predicted images of the site
    worst : the mistakes that are shown, the most confident one first
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
    """An image with its reference mask and its predicted mask.

    Attributes
    ----------
    image : prepared image (height, width, channels), uint8
    reference, predicted : mask of each structure (structures, height, width), bool
    dice : Dice coefficient, mean over the structures that occur in the reference or in the prediction
    """

    image: np.ndarray
    reference: np.ndarray
    predicted: np.ndarray
    dice: float


@dataclass(frozen=True)
class SiteOutlines:
    """The images of one site whose predicted masks have the lowest Dice.

    Attributes
    ----------
    site, role : name of the site, and its role: internal or external
    condition, inference : titles of the condition (algorithm x batch norm policy x settings) and of the inference
        (prediction method) that predicted the site
    seed : seed of the training that predicted the site
    total : number of the site's test images with a defined Dice
    worst : the images that are shown, the lowest Dice first
    """

    site: str
    role: str
    condition: str
    inference: str
    seed: int
    total: int
    worst: tuple[OutlinedImage, ...]


def _none(each: int) -> Any:
    """Return an empty mapping: the default of `Results.images`, `mistakes` and `outlines`."""
    return {}


def _empty(*columns: str) -> pd.DataFrame:
    """Return a data frame with these columns and no rows."""
    import pandas as pd

    return pd.DataFrame(columns=list(columns))


no_cases = partial(_empty, "role", "site", "case", "dice", "missed", "false_alarm")
"""Return an empty table of cases: the default of `Results.cases`, for results without predicted masks."""
no_curves = partial(_empty, "condition", "shown", "held_out", "site", "false_positives", "sensitivity")
"""Return an empty table of ROC curves: the default of `Results.curves`, for results without predictions."""


@dataclass(frozen=True)
class Results:
    """All results of a study that a figure can draw: tables of numbers, names, settings and images.

    In the tables, the column `condition` holds titles of conditions (algorithm x batch norm policy x settings), and the
    column `shown` holds titles of inferences (prediction methods). The attributes that are functions read predictions
    or images, which takes long: of these, `Figure.caption` should call `images` alone.

    Attributes
    ----------
    scores : scores.csv, with the ids `condition_id` and `inference_id`: a row for each run, inference, site and metric
    rounds : rounds.parquet of all runs together, with the columns run, seed, condition_id, condition and held_out (the
        name of the partition of sites)
    internal, external : names of the internal and of the external sites, in the order of the study; with several
        partitions, a site may be both
    headline : the metric that the study reports first
    classes : names of the classes
    positive : name of the positive class of two; empty where it is the second class
    synthetic : whether the images are synthetic
    unit : what confidence intervals resample, a singular noun of the study: patient, lesion, ...
    settings : settings of each run, by the id of the run and then by the dotted path of the setting
        (`training.batch_size`, `data.dataset.classes_per_client`, `partition.limit.train`, ...)
    tables : further tables of results by name: summary and calibration; net_benefit and divergence where the study asks
        for them
    ranking : mean ranks of the conditions over sites; None without any scores
    images : function that returns, for each site, at most the given number of random images (n, height, width,
        channels), uint8, and their classes (n,), sorted by class; empty where the data are not two-dimensional images
    mistakes : function that returns at most the given number of mistakes of each external site
    outlines : function that returns, for segmentation, at most the given number of images of each site: those with the
        lowest Dice; empty for other tasks
    cases : function that returns, for segmentation, a row for each patient with a defined Dice: role, site, case (name
        of the patient's first image), dice, missed and false_alarm (bool: whether any structure is missed or falsely
        predicted)
    curves : function that returns the ROC curve of each condition, inference and site, mean over trainings
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
        """The names of all sites in the order of the study, internal ones first. A site with both roles occurs once."""
        return tuple(dict.fromkeys((*self.internal, *self.external)))


class Figure(Plugin):
    """A figure of a study's page.

    A plug-in sets `title`, the heading of the figure, and overrides `caption` and `draw`. It may override `parts` and
    `table`; its `draw` can call `picture`, `panels` and `nothing`. `shows_images` is True for a figure that shows
    images of the data set: a page without such a figure contains no images. `section` is the id of the section of the
    page that the figure belongs to. By default, and where the page has no such section, it stands in the section with
    all other figures.
    """

    kind: ClassVar[str] = "figure"
    title: ClassVar[str] = ""
    section: ClassVar[str] = "figures"
    shows_images: ClassVar[bool] = False

    def caption(self, results: Results) -> str:
        """Return a caption of one or two sentences, whose numbers and statements hold for `results`."""
        return ""

    def draw(self, results: Results) -> str:
        """Return the figure as the text of an <svg> element."""
        raise TypeError(f"{type(self).__name__} draws nothing")

    def parts(self, svg: str) -> list[tuple[str, str]]:
        """Return the parts of a drawn figure that a reader opens one by one: a title and an <svg> element for each.

        `svg` is the text that `draw` returned. The default, no parts, shows the figure as a whole.
        """
        return []

    def heading(self, results: Results) -> str:
        """Return the figure's title and caption as one text, for readers who cannot see the figure."""
        return f"{self.title}: {self.caption(results)}"

    def nothing(self, results: Results) -> str:
        """Return an <svg> element that says that there is nothing to draw; the caption must give the reason."""
        return note(self.name, self.heading(results))

    def picture(
        self,
        results: Results,
        size: tuple[float, float],
        paint: Callable[[Any], None],
        labels: Iterable[str] = (),
    ) -> str:
        """Return an <svg> element of a matplotlib figure that `paint(figure)` draws.

        `size` is the width and height in inches. `labels` are the labels of the lines and bars that `paint` draws. With
        any labels, a legend stands below the figure, whose height grows by that of the legend.
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
        """Return a grid of panels, one for each key of `titles`, as an <svg> element, with a legend of `labels` below.

        `titles` maps the key of each panel to the text above it. `draw(axes, key)` draws a panel on matplotlib axes. A
        row has at most `columns` panels, each of `size` (width and height in inches). `names` are the labels of the x
        and y axes, which stand below the last row and left of the first column. `shared` goes to matplotlib's
        `subplots`, such as `sharey=True`.
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
        """Return the table that replaces the picture on the page; None, the default, shows the picture."""
        return None
