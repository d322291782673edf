"""Predictions for new images: classes with confidence and scores, or masks with areas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..analysis import estimates
from ..analysis.values import DASH, Table, Value, between, listed, number
from ..core import registry
from ..core.spelling import unified
from ..figures._canvas import COLOURS, WIDTH, short, svg
from ..io.images import COLOURS as LINES
from ..io.images import LARGEST
from ..jobs.apply import Applied
from ..metrics import Metric
from ..tasks import CLASSIFICATION
from .html import Drawn, PageCell, PageTable, Tile, plain
from .phrases import bounds, heading, level

EDGE = 96
"""Pixels along a side of an image on the page."""
MOST = 50
"""Rows of a table on the page; predictions.csv has all."""


class NewImages:
    """The predictions of a run for new images.

    Attributes
    ----------
    table : a row for each image, as `Applied.table` has it
    sites : names in their order; empty where they are not known
    twice : how many rows name an image that an earlier row names
    labelled : how many images have a label
    unit : what intervals resample
    changed : what depends on the other images of a site where an inference works in batches
    edge : the most pixels along a side of an example
    """

    labelled = 0
    unit = "images"
    changed = ""
    edge = EDGE

    def __init__(self, applied: Applied) -> None:
        self.table = applied.table
        self.twice = int(self.table["path"].duplicated().sum())
        self.sites = list(self.table["site"].unique()) if "site" in self.table else []

    def at(self, site: str | None) -> pd.DataFrame:
        """Return the rows of a site, or all rows."""
        return self.table if site is None else self.table[self.table["site"] == site]

    def first(self) -> str:
        """Return the end of the caption of a table of sites that does not have all of them."""
        return f", the first {MOST} of {len(self.sites)}" if len(self.sites) > MOST else ""

    def taken(self) -> str:
        """Return how the images were taken together."""
        return f"of {len(self.sites)} sites" if self.sites else "taken as one site"

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return what the page shows of these predictions; `trained_at` are the sites that took part in training.

        lead (text), tiles, tables, metrics (a table or None), figure, care (sentences), examples_note (text), and
        sorts: heading and description of each sort of examples. Where images have labels, also one_class: all of these
        are of one class.
        """
        raise NotImplementedError


def share(part: float, whole: float) -> str:
    """Return a part in percent; a dash where there is nothing to divide."""
    return f"{100 * part / whole:.1f}" if whole else DASH


NAMED = 3
"""Classes that the first sentence names."""
BINS = 20
"""Bars of a histogram."""


class NewClasses(NewImages):
    """The predicted classes of a run for new images in numbers.

    Attributes
    ----------
    table : a row for each image: predicted, p0, p1, ..., confidence (the probability of the predicted class), site,
        label and cluster, a number for the patient or, where that is unknown, the image. Rows of one image share it
    unit : the unit that intervals resample: patients, or images where no patient is known
    """

    changed = "probabilities"

    def __init__(self, applied: Applied) -> None:
        super().__init__(applied)
        table = applied.table
        self.classes = applied.run.data.dataset.classes
        self.columns = [f"p{k}" for k in range(len(self.classes))]
        self.unit = "images"
        unit = table["path"]
        if "patient" in table:
            self.unit = "patients"
            unit = unified(table["patient"]).fillna(table["path"])
        confidence = table[self.columns].max(axis=1)
        self.table = table.assign(confidence=confidence, cluster=pd.factorize(unit)[0])
        self.labelled = int(table["label"].notna().sum()) if "label" in table else 0
        self.metrics: list[Metric] = [registry.build("metric", m) for m in CLASSIFICATION.metrics]

    def counts(self, column: str = "predicted", site: str | None = None) -> np.ndarray:
        """Return the number of images of each class (classes,), as predicted or as labelled."""
        return np.bincount(self.at(site)[column].dropna().to_numpy(dtype=int), minlength=len(self.classes))

    def scores(self, site: str | None = None) -> list[Value]:
        """Return each metric on the labelled images with its interval; empty values where no image has a label."""
        rows = self.at(site).dropna(subset="label")
        if rows.empty:
            return [Value()] * len(self.metrics)
        label = rows["label"].to_numpy(dtype=int)
        probability = rows[self.columns].to_numpy(dtype=float)
        people, group = rows["cluster"].to_numpy(), ("new images", site or "")
        values = []
        for metric in self.metrics:
            score = estimates.of_metric(metric, label, probability, people, group)
            low, high, *_ = score.bounded(metric.ends)
            values.append(Value(mean=score.mean, low=low, high=high, n=len(rows)))
        return values

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return what the template shows of predicted classes; see `NewImages`."""
        scores = self.scores() if self.labelled else []
        quoted = [f"“{name}”" for name in self.classes]
        return {
            "lead": _lead(self, scores, trained_at),
            "tiles": list(_tiles(self, scores)),
            "tables": [plain(_classes(self)), *([plain(_sites(self))] if len(self.sites) > 1 else [])],
            "metrics": _metrics(self, scores) if scores else None,
            "figure": Drawn(
                "Predicted classes and confidence",
                "Images by predicted class, and by confidence: the probability of the class that was predicted.",
                _figure(self),
            ),
            "care": [
                f"The network knows {listed(quoted)} and nothing else: it gives one of these names to every image, "
                "whatever it shows.",
                "Probabilities are the network's own. Whether they can be trusted as such is not known at a new site.",
            ],
            "examples_note": "Drawn at random from the images that were predicted as each class, as the network sees "
            "them.",
            "one_class": self.labelled and np.count_nonzero(self.counts("label")) < 2,
            "sorts": {k: (f"Predicted {name}", f"An image predicted as {name}") for k, name in enumerate(self.classes)},
        }


def _lead(new: NewClasses, scores: list[Value], trained_at: list[str]) -> str:
    """Return the first sentences: the predicted classes, and the headline metric where labels are known."""
    total = len(new.table)
    counts = new.counts()
    order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
    parts = [f"{new.classes[k]} in {share(counts[k], total)}\N{NO-BREAK SPACE}%" for k in order[:NAMED]]
    if len(order) > NAMED:
        parts.append(f"{len(order) - NAMED} further classes in the rest")
    text = f"{total:,} images: the network predicts {listed(parts)}."
    if not scores:
        return f"{text} Without labels, nothing here says whether that is right."
    first = scores[0]
    metric = new.metrics[0]
    text += f" {metric.title} on the {first.n:,} labelled images is {level(first.mean, metric)}"
    if first.low == first.low:
        text += f" (95% interval {between(first, metric)} over {new.unit})"
    labelled = sum(int(new.counts("label", site).sum()) for site in trained_at)
    if not labelled:
        return f"{text}."
    count = "All" if labelled == first.n else f"{labelled:,}"
    return (
        f"{text}. {count} of them are of {listed(trained_at)}, where the model was trained: this is not a result for "
        "new hospitals."
    )


def _tiles(new: NewClasses, scores: list[Value]) -> Iterator[Tile]:
    total = len(new.table)
    counts = new.counts()
    confidence = new.table["confidence"]
    # of two classes, the second is the one that is looked for
    k = 1 if len(counts) == 2 else int(counts.argmax())
    yield Tile("Images", f"{total:,}", new.taken())
    yield Tile(f"Predicted {short(new.classes[k])}", f"{share(counts[k], total)} %", f"{counts[k]:,} images")
    doubtful = share((confidence < 0.75).sum(), total)
    yield Tile("Median confidence", f"{100 * confidence.median():.1f} %", f"under 75 % in {doubtful} %")
    for value, metric in list(zip(scores, new.metrics, strict=False))[:2]:
        unit = " %" if metric.percent and value.known else ""
        note = f"too few {new.unit}"
        if not value.known:
            note = "not defined here"
        elif value.low == value.low:
            note = f"95% interval {between(value, metric)}"
        yield Tile(metric.title, f"{number(value.mean, metric)}{unit}", note)


def _classes(new: NewClasses) -> Table:
    """Return the number of images of each predicted class, and of each label where there are any."""
    counts = new.counts()
    confidence = new.table.groupby(new.table["predicted"].astype(int))["confidence"].mean()
    columns = {
        "Class": new.classes,
        "Predicted": [f"{n:,}" for n in counts],
        "Share (%)": [share(n, len(new.table)) for n in counts],
        "Mean confidence (%)": [f"{100 * confidence[k]:.1f}" if n else DASH for k, n in enumerate(counts)],
    }
    if new.labelled:
        columns["Labelled"] = [f"{n:,}" for n in new.counts("label")]
    caption = "Images by predicted class; confidence is the probability of that class"
    return Table(caption, tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _sites(new: NewClasses) -> Table:
    """Return the predicted classes at each site."""
    rows = []
    for site in new.sites[:MOST]:
        table = new.at(site)
        shares = (share(n, len(table)) for n in new.counts(site=site))
        rows.append((str(site), f"{len(table):,}", *shares, f"{100 * table['confidence'].mean():.1f}"))
    header = ("Site", "Images", *(f"{name} (%)" for name in new.classes), "Mean confidence (%)")
    return Table(f"Predicted classes at each site{new.first()}", header, tuple(rows))


def _metrics(new: NewClasses, scores: list[Value]) -> PageTable:
    """Return all metrics on the labelled images, together and at each site."""
    by_site = {"All images": scores}
    if len(new.sites) > 1:
        by_site |= {str(site): new.scores(site) for site in new.sites[:MOST]}
    rows = []
    for name, values in by_site.items():
        pairs = zip(values, new.metrics, strict=True)
        cells = [PageCell(number(value.mean, metric), bounds(value, metric)) for value, metric in pairs]
        rows.append([PageCell(name), PageCell(f"{values[0].n:,}"), *cells])
    caption = f"Metrics{new.first()}; below, the 95% interval over {new.unit}"
    return PageTable(caption, ("Site", "Labelled images", *map(heading, new.metrics)), rows, 1)


def _figure(new: NewClasses) -> str:
    """Return a figure of the predicted classes and of the confidence in them."""
    counts = new.counts()
    least = 1 / len(new.classes)
    order = np.argsort(-counts, kind="stable")[:MOST]

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.barh([short(new.classes[k]) for k in order], counts[order], color=COLOURS[0])
        left.invert_yaxis()
        left.set(xlabel="images", title="Predicted class")
        right.hist(100 * new.table["confidence"], bins=BINS, range=(100 * least, 100), color=COLOURS[0])
        right.set(xlabel="confidence (%)", ylabel="images", title="Confidence")

    title = "Images by predicted class, and by the probability of that class"
    return svg("applied", title, (WIDTH, 1.4 + max(1.2, 0.24 * len(order))), paint)


class NewMasks(NewImages):
    """The predicted masks of a run for new images.

    Attributes
    ----------
    structures : the name of each structure with the column of its share of an image
    """

    changed = "outlines"
    edge = 192

    def __init__(self, applied: Applied) -> None:
        super().__init__(applied)
        columns = [name for name in map(str, self.table) if name.startswith("share_")]
        self.structures = {name.removeprefix("share_"): name for name in columns}
        self.is_cut = applied.scaled > 0 and not applied.run.data.dataset.padded

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return what the template shows of predicted masks; see `NewImages`."""
        names = listed(list(self.structures))
        pairs = zip(self.structures, itertools.cycle(LINES), strict=False)
        colours = listed([f"{name} {colour}" for name, colour in pairs])
        return {
            "lead": self._lead(),
            "tiles": list(self._tiles()),
            "tables": [plain(self._areas()), *([plain(self._by_site())] if len(self.sites) > 1 else [])],
            "metrics": None,
            "figure": Drawn(
                "Predicted areas",
                "Images by the predicted area of each structure, as a share of the image; images in which the "
                "structure is not predicted are left out.",
                self._figure(),
            ),
            "care": [
                f"The network outlines {names} and nothing else: it may outline what is something else, and miss what "
                "is there.",
                "How good outlines are at a new site is not known without masks drawn by a reader.",
                "Areas are counted in pixels of each image's file, and are not in millimetres.",
                *(["The network saw no pixel that was cut off: there, a mask is background."] if self.is_cut else []),
            ],
            "examples_note": f"Drawn at random, with the predicted outlines: {colours}. The folder overlays has every "
            f"image so, of at most {LARGEST:,} pixels along a side.",
            "sorts": {
                0: ("No structure is predicted", "An image without a predicted structure"),
                1: ("A structure is predicted", "An image with the outline of what is predicted"),
            },
        }

    def _found(self, name: str, site: str | None = None) -> Any:
        """Return the shares of a structure (k,), in percent, in the images in which it is predicted."""
        shares = self.at(site)[self.structures[name]]
        return 100 * shares[shares > 0]

    def _lead(self) -> str:
        total = len(self.table)
        parts = []
        for name in self.structures:
            found = self._found(name)
            text = f"{name} in {share(len(found), total)}\N{NO-BREAK SPACE}%"
            if len(found):
                text += f" (in the median, {found.median():.1f}\N{NO-BREAK SPACE}% of such an image)"
            parts.append(text)
        return (
            f"{total:,} images: the network outlines {listed(parts)}. Without masks drawn by a reader, nothing here "
            "says whether that is right."
        )

    def _tiles(self) -> Iterator[Tile]:
        total = len(self.table)
        yield Tile("Images", f"{total:,}", self.taken())
        for name in list(self.structures)[:2]:
            found = self._found(name)
            yield Tile(f"{short(name)} predicted", f"{share(len(found), total)} %", f"{len(found):,} images")
        empty = int((self.table[list(self.structures.values())] == 0).all(axis=1).sum())
        yield Tile("No structure", f"{share(empty, total)} %", f"{empty:,} images")

    def _areas(self) -> Table:
        """Return in how many images each structure is predicted, and how large it is there."""
        rows = []
        for name in self.structures:
            found = self._found(name)
            sizes = [f"{value:.2f}" for value in found.quantile([0, 0.5, 1])] if len(found) else [DASH] * 3
            rows.append((name, f"{len(found):,}", share(len(found), len(self.table)), *sizes))
        header = ("Structure", "Images with it", "Share (%)", "Smallest area (%)", "Median (%)", "Largest (%)")
        return Table("Predicted structures; areas are shares of such an image", header, tuple(rows))

    def _by_site(self) -> Table:
        """Return the same at each site, for the share of images and the median area."""
        rows = []
        for site in self.sites[:MOST]:
            total = len(self.at(site))
            cells = [str(site), f"{total:,}"]
            for name in self.structures:
                found = self._found(name, site)
                cells += [share(len(found), total), f"{found.median():.2f}" if len(found) else DASH]
            rows.append(tuple(cells))
        header = ["Site", "Images"]
        for name in self.structures:
            header += [f"{name}: images (%)", f"{name}: median area (%)"]
        return Table(f"Predicted structures at each site{self.first()}", tuple(header), tuple(rows))

    def _figure(self) -> str:
        """Return a figure of the areas of each structure."""

        def paint(figure: Any) -> None:
            grid = figure.subplots(1, len(self.structures), squeeze=False)[0]
            for axes, name in zip(grid, self.structures, strict=True):
                axes.hist(self._found(name), bins=BINS, color=COLOURS[0])
                axes.set(xlabel="area (% of the image)", title=short(name))
                axes.yaxis.get_major_locator().set_params(integer=True)
            grid[0].set_ylabel("images")

        return svg("applied", "Images by the predicted area of each structure", (WIDTH, 2.6), paint)
