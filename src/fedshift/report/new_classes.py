"""Predicted classes of new images: counts, confidence, and metrics where labels are known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..analysis import estimates
from ..analysis.table import Table
from ..analysis.values import DASH, Value, between, listed, number
from ..core import registry
from ..core.spelling import unified
from ..figures._canvas import COLOURS, WIDTH, short, svg
from ..jobs.apply import Applied
from ..metrics import Metric
from ..tasks import CLASSIFICATION
from .html import Drawn, PageCell, PageTable, Tile, plain
from .new_images import MOST, NewImages, share
from .phrases import bounds, heading, level

NAMED = 3
"""Classes that the first sentence names."""
BINS = 20


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
