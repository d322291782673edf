"""The page of a trained run applied to new images: one HTML file that works offline and without JavaScript."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ..analysis import estimates
from ..analysis.values import DASH, NAN, Table, Value, between, listed, number
from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..core.spelling import unified
from ..figures._canvas import COLOURS, WIDTH, short, svg
from ..figures._images import png
from ..io.images import COLOURS as LINES
from ..io.images import LARGEST
from ..io.paths import RunFiles
from ..io.tables import read_table
from ..io.text import write_text
from ..jobs.apply import Applied, images_of_study
from ..jobs.image_files import LOOKS, looks
from ..jobs.prepare import LARGE, WHOLE_SLIDES
from ..jobs.run_images import RunImages
from ..metrics import Metric
from ..study.plan import VALIDATION, inference_id
from ..study.published import BASELINE
from ..tasks import CLASSIFICATION
from .history import Trained, facts
from .html import (
    Block,
    Concern,
    Concerns,
    Drawn,
    Facts,
    Heading,
    Lead,
    Light,
    Lights,
    Note,
    PageCell,
    PageTable,
    Section,
    Tile,
    Tiles,
    linked,
    plain,
    render,
)
from .phrases import bounds, chosen_by, counted, first_line, heading, in_percent, level, verb

MOST = 50
"""The most rows of a table on the page; predictions.csv has all."""


class NewImages:
    """A run's predictions for new images, summarised for their page. Subclasses handle classes and masks.

    Attributes
    ----------
    table : one row for each image, as in `Applied.table`
    sites : site names in order of appearance; empty if they are not known
    twice : number of rows whose image is already in an earlier row
    labelled : number of images with a label
    unit : what intervals resample, in the plural: patients or images
    changed : what depends on other images of a site if inference works in batches, such as probabilities
    edge : the largest side of an example image on the page, in pixels
    """

    labelled = 0
    unit = "images"
    changed = ""
    edge = 96

    def __init__(self, applied: Applied) -> None:
        self.table = applied.table
        self.twice = int(self.table["path"].duplicated().sum())
        self.sites = list(self.table["site"].unique()) if "site" in self.table else []

    def at(self, site: str | None) -> pd.DataFrame:
        """Return the rows of one site; all rows for None."""
        return self.table if site is None else self.table[self.table["site"] == site]

    def first(self) -> str:
        """Return `, the first N of M` to end the caption of a table of sites; '' if the table lists all sites."""
        return f", the first {MOST} of {len(self.sites)}" if len(self.sites) > MOST else ""

    def taken(self) -> str:
        """Return how images were grouped for inference: `of 3 sites`, or `taken as one site` if sites are not known."""
        return f"of {len(self.sites)} sites" if self.sites else "taken as one site"

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return the parts of the page that depend on the kind of prediction, by name.

        `trained_at` lists the sites of these images that took part in training. The names are lead (text), tiles,
        tables, metrics (a table or None), figure, care (sentences), examples_note (text), and sorts: heading and
        alternative text for each kind of example image. For class predictions there is also one_class: whether all
        labels are of one class.
        """
        raise NotImplementedError


def share(part: float, whole: float) -> str:
    """Return `part` as a percentage of `whole`, without the sign; a dash if `whole` is 0."""
    return f"{100 * part / whole:.1f}" if whole else DASH


NAMED = 3
"""The most classes that the first sentence names."""
BINS = 20
"""Number of bars in a histogram."""


class NewClasses(NewImages):
    """A run's predicted classes for new images, summarised for their page.

    Attributes
    ----------
    table : as in `NewImages`, with two more columns: `confidence`, the probability of the predicted class, and
        `cluster`, a number for the patient or, where unknown, the image
    """

    changed = "probabilities"

    def __init__(self, applied: Applied) -> None:
        super().__init__(applied)
        table = applied.table
        self.classes = applied.run.data.dataset.classes
        self.columns = [f"p{k}" for k in range(len(self.classes))]
        unit = table["path"]
        if "patient" in table:
            self.unit = "patients"
            unit = unified(table["patient"]).fillna(table["path"])
        confidence = table[self.columns].max(axis=1)
        self.table = table.assign(confidence=confidence, cluster=pd.factorize(unit)[0])
        self.labelled = int(table["label"].notna().sum()) if "label" in table else 0
        self.metrics: list[Metric] = [registry.build("metric", m) for m in CLASSIFICATION.metrics]

    def counts(self, column: str = "predicted", site: str | None = None) -> np.ndarray:
        """Return the number of images of each class, shape (classes,), int.

        `column` is "predicted" or "label", and `site` restricts the count to one site.
        """
        return np.bincount(self.at(site)[column].dropna().to_numpy(dtype=int), minlength=len(self.classes))

    def scores(self, site: str | None = None) -> list[Value]:
        """Return each metric with its interval on the labelled images of a site, or of all sites for None.

        The values are empty if no image has a label.
        """
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
        """Return the page's parts about predicted classes; see `NewImages.shown`."""
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
    """Return the introduction: how often each class is predicted and, for labelled images, the first metric.

    `scores` are the values of the metrics, and `trained_at` lists the images' sites that took part in training.
    """
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
    total, counts, confidence = len(new.table), new.counts(), new.table["confidence"]
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
    """Return a table with the number of images predicted as each class and, if there are labels, labelled as it."""
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
    """Return a table with the share of each predicted class at each site."""
    rows = []
    for site in new.sites[:MOST]:
        table = new.at(site)
        shares = (share(n, len(table)) for n in new.counts(site=site))
        rows.append((str(site), f"{len(table):,}", *shares, f"{100 * table['confidence'].mean():.1f}"))
    header = ("Site", "Images", *(f"{name} (%)" for name in new.classes), "Mean confidence (%)")
    return Table(f"Predicted classes at each site{new.first()}", header, tuple(rows))


def _metrics(new: NewClasses, scores: list[Value]) -> PageTable:
    """Return a table of all metrics on the labelled images, overall and for each site.

    `scores` are the overall values of the metrics.
    """
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
    """Return a figure, as SVG, of the counts of predicted classes and a histogram of confidence."""
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
    """A run's predicted segmentation masks for new images, summarised for their page.

    Attributes
    ----------
    structures : maps each structure to the table's column with its share of the image area
    """

    changed = "outlines"
    edge = 192

    def __init__(self, applied: Applied) -> None:
        super().__init__(applied)
        columns = [name for name in map(str, self.table) if name.startswith("share_")]
        self.structures = {name.removeprefix("share_"): name for name in columns}
        self.is_cut = applied.scaled > 0 and not applied.run.data.dataset.padded

    def shown(self, trained_at: list[str]) -> dict[str, Any]:
        """Return the page's parts about predicted masks; see `NewImages.shown`."""
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
        """Return the area of a structure in percent of the image, for the images in which it is predicted.

        The result has shape (k,), one value for each such image of `site`, or of all sites for None.
        """
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
        """Return a table that says in how many images each structure is predicted, and how large it is there."""
        rows = []
        for name in self.structures:
            found = self._found(name)
            sizes = [f"{value:.2f}" for value in found.quantile([0, 0.5, 1])] if len(found) else [DASH] * 3
            rows.append((name, f"{len(found):,}", share(len(found), len(self.table)), *sizes))
        header = ("Structure", "Images with it", "Share (%)", "Smallest area (%)", "Median (%)", "Largest (%)")
        return Table("Predicted structures; areas are shares of such an image", header, tuple(rows))

    def _by_site(self) -> Table:
        """Return a table with, for each site, the share of images that show a structure and its median area."""
        rows = []
        for site in self.sites[:MOST]:
            total = len(self.at(site))
            cells = {"Site": str(site), "Images": f"{total:,}"}
            for name in self.structures:
                found = self._found(name, site)
                cells[f"{name}: images (%)"] = share(len(found), total)
                cells[f"{name}: median area (%)"] = f"{found.median():.2f}" if len(found) else DASH
            rows.append(cells)
        body = tuple(tuple(cells.values()) for cells in rows)
        return Table(f"Predicted structures at each site{self.first()}", tuple(rows[0]), body)

    def _figure(self) -> str:
        """Return a figure, as SVG, with a histogram of the predicted areas of each structure."""

        def paint(figure: Any) -> None:
            grid = figure.subplots(1, len(self.structures), squeeze=False)[0]
            for axes, name in zip(grid, self.structures, strict=True):
                axes.hist(self._found(name), bins=BINS, color=COLOURS[0])
                axes.set(xlabel="area (% of the image)", title=short(name))
                axes.yaxis.get_major_locator().set_params(integer=True)
            grid[0].set_ylabel("images")

        return svg("applied", "Images by the predicted area of each structure", (WIDTH, 2.6), paint)


def write(applied: Applied) -> Path:
    """Write page.html beside predictions.csv and return its path."""
    out = applied.out / "page.html"
    write_text(out, render("applied.html.j2", context(applied)))
    return out


def context(applied: Applied) -> dict[str, Any]:
    """Return the variables of the template applied.html.j2, among them the page's sections."""
    run = applied.run
    outcome = NewMasks(applied) if run.data.task.has_masks else NewClasses(applied)
    trained_at = [site for site in outcome.sites if site in run.partition.internal]
    shown = outcome.shown(trained_at)
    made = [
        _predictions(applied, outcome, shown, trained_at),
        _metrics_section(shown["metrics"]),
        _examples(applied, outcome, shown),
        _how(applied),
        _model(applied),
    ]
    unreadable = tuple(applied.unreadable.items())[:MOST]
    title = f"Files that could not be read, {len(unreadable)} of {len(applied.unreadable)}"
    return {
        "run": run,
        "source": applied.source.resolve().name,
        "images": len(outcome.table),
        "synthetic": run.data.synthetic,
        "missing": (),
        "unreadable": plain(Table(title, ("File", "Why"), unreadable, 2)) if unreadable else None,
        "left_out": len(applied.unreadable),
        "sections": [section for section in made if section is not None],
    }


def _predictions(applied: Applied, outcome: NewImages, shown: dict[str, Any], trained_at: list[str]) -> Section:
    """Return the section with the predictions: how far to trust the model here, what it predicts, and warnings.

    `outcome` summarises the predictions, and `shown` is the result of its method `shown`.
    """
    images = images_of_study(applied.run, applied.folder)
    alike, looks = likeness(applied, images)
    care = [*shown["care"], *_care(applied, outcome, shown.get("one_class", False), trained_at)]
    blocks: list[Block] = [
        Lights(list(filter(None, [at_home(applied, images), outside(applied, images), alike]))),
        Lead(shown["lead"]),
        Tiles(shown["tiles"]),
        shown["figure"],
        *shown["tables"],
        *([looks] if looks else []),
        Heading("Read with care"),
        Concerns([Concern("caveat", sentence) for sentence in care]),
    ]
    return Section("predictions", "Predictions", blocks, short="Predictions")


def _care(applied: Applied, outcome: NewImages, one_class: bool, trained_at: list[str]) -> Iterator[str]:
    """Yield warnings about these images and this inference method, such as resized images or too small batches.

    `one_class` says that all labels are of one class, and `trained_at` lists sites that took part in training.
    `outcome` summarises the predictions.
    """
    if applied.scaled:
        fitted = "their shorter side was scaled, and the centre cut out"
        if applied.run.data.dataset.padded:
            fitted = "their longer side was scaled, and black added to make them square"
        yield (
            f"{applied.scaled:,} images were not of the run's size: {fitted}. A magnification other than that of the "
            "training images is a shift of its own."
        )
    if applied.large:
        are = verb(applied.large, "are")
        yield f"{counted(applied.large, 'image')} {are} more than {LARGE} times {WHOLE_SLIDES}."
    if applied.inference.score_columns()["batch_size"]:
        yield (
            f"Batch norm took its statistics from these images, batch by batch: an image's {outcome.changed} depend on "
            "the others of its site, and on batch size and order. Other images, or one alone, would be predicted "
            "otherwise."
        )
        size = getattr(applied.inference, "batch_size", 0)
        sizes = {site: len(outcome.at(site)) for site in outcome.sites} or {"": len(outcome.table)}
        if few := [site for site in sorted(sizes) if sizes[site] < size][:MOST]:
            where = f" at {listed(few)}" if outcome.sites else ""
            yield f"Fewer images than a batch of {size}{where}: statistics of so few are rough."
    if trained_at:
        yield f"{listed(trained_at)} took part in training, maybe with these very images."
    if outcome.labelled:
        if unlabelled := len(outcome.table) - outcome.labelled:
            yield f"{unlabelled:,} images have no label, and count in no metric."
        if one_class:
            yield "All labels are of one class: metrics that need others have no value."
        if outcome.unit == "images":
            yield "Patients are unknown: intervals treat images as independent, and are too narrow if they are not."
    if outcome.twice:
        yield f"{outcome.twice:,} images are listed again, and were predicted and counted each time."


def _metrics_section(table: PageTable | None) -> Section | None:
    """Return the section with metrics on labelled images; None if there is no table of them."""
    if table is None:
        return None
    unit = "patients" if "patients" in table.caption else "images"
    note = f"Intervals say how a value would vary with other {unit} of the same sites; the model is fixed."
    return Section("metrics", "Metrics", [table, Note(note)], short="Metrics")


def _examples(applied: Applied, outcome: NewImages, shown: dict[str, Any]) -> Section | None:
    """Return the section with example images of each kind, such as predicted class; None if examples are disabled.

    `outcome` summarises the predictions, and `shown` is the result of its method `shown`.
    """
    blocks: list[Block] = [
        Markup("{} The page holds these images: to pass it on without them, use <code>--no-examples</code>.").format(
            shown["examples_note"]
        )
    ]
    for sort, images in applied.examples.items():
        heading, described = shown["sorts"][sort]
        shape = Markup('<img src="data:image/png;base64,{}" alt="{}">\n')
        tags = (shape.format(png(image, outcome.edge), described) for image in images)
        blocks += [Heading(heading), Markup().join(tags)]
    return Section("examples", "Examples", blocks, short="Examples") if applied.examples else None


def _how(applied: Applied) -> Section:
    """Return the section on how predictions were made: network, inference method with settings, and transforms."""
    inference = applied.inference
    network = "the global one"
    if inference.client:
        network = f"that of client {inference.client}, with the tensors that stayed there"
    fields = type(inference).model_fields
    settings = [
        f"{name} = {json.dumps(value)}: {fields[name].description}"
        for name, value in inference.described().items()
        if name != "client"  # which the row of the network names
    ]
    transforms = [t.label for t in (*applied.run.data.prepare, *applied.run.transforms) if t.when != "train"]
    rows = [
        ("Network", [network]),
        ("Batch norm statistics", [f"{inference.display_name}: {first_line(inference)}"]),
        ("Settings", settings),
        ("Transforms", transforms or ["none"]),
    ]
    return Section("how", "How they were made", [Facts(rows)], short="How they were made")


def _model(applied: Applied) -> Section:
    """Return the section on the model: its training data, algorithm, sites, rounds and software."""
    run, manifest = applied.run, applied.manifest
    data = {"Training data": "title"} | {key.capitalize(): key for key in ("version", "source", "licence", "citation")}
    texts = {title: getattr(run.data.card, key) for title, key in data.items()}
    addon = [run.addon.label] if run.addon else []
    trained = Trained(run.id, "", run.seed, manifest, 0, NAN, NAN, NAN)
    rows = [
        *((title, [linked(text)]) for title, text in texts.items() if text),
        ("Run", [run.id]),
        ("Algorithm", [f"{run.algorithm.label}, {run.bn.replace('_', ' ')} BN", *addon]),
        ("Model", [run.model.label]),
        ("Trained at", [", ".join(run.partition.internal)]),
        ("External sites of its study", [", ".join(run.partition.external) or "none"]),
        ("Rounds", [f"{manifest.get('rounds', DASH)}, of which round {manifest.get('best_round', DASH)} was kept"]),
        *((name, [value]) for name, value in facts([trained])),
    ]
    return Section("model", "The model", [Facts(rows)], short="The model")


RANGE = (1, 50, 99)
"""Percentiles of training images to compare with: 2 % of training images lie below the first or above the last."""
MANY = 0.1
"""New images look unlike training images if more than this share lies outside the training range."""
COMPARED = 2000
"""The most training images that new images are compared with."""


def at_home(applied: Applied, images: RunImages | None) -> Light:
    """Return a status light on how well the model did in its study, on test images of the sites that trained it.

    The status is problem if the balanced accuracy is not significantly above that of guessing. It is unknown if the
    accuracy has no interval, or if there are no class predictions of the study; the text then has the validation value.
    `images` are the study's images, if available, which name the patients to resample.
    """
    name = "At home, in its study"
    tested = _tested(applied, images, "internal", BASELINE)
    if tested is None:
        said = "how it did in its own study is not known here"
        best, by = applied.manifest.get("best_value"), applied.run.training.select_by
        if by and isinstance(best, int | float):
            said += f"; on validation images at home its {by.replace('_', ' ')} was {chosen_by(best, by)}"
            said += "\N{NO-BREAK SPACE}%" if in_percent(by) else ""
        return Light(name, "unknown", said, "model")
    return _light(name, _balanced(applied, tested), "at home or here")


def outside(applied: Applied, images: RunImages | None) -> Light | None:
    """Return a status light on how well the model did in its study, at sites that took no part in the training.

    It is about the inference method that is applied here if the study used it, else about training statistics. The
    status is suspect if the balanced accuracy is significantly below that at training sites. Return None for masks, and
    if the study tested no such site. `images` are the study's images, if available, which name the patients to
    resample.
    """
    asked = inference_id(applied.inference)
    how = "" if asked == BASELINE else f" with {applied.inference.display_name}"
    tested = _tested(applied, images, "external", asked)
    if tested is None:
        how = " with the statistics of its training"
        tested = _tested(applied, images, "external", BASELINE)
    if tested is None:
        return None
    there = _balanced(applied, tested)
    light = _light("Where it took no part, in its study", there, "there or here", how)
    home = _tested(applied, images, "internal", BASELINE) if light.status == "ok" else None
    if home is not None:
        _, metric, inside = _balanced(applied, home)
        if there[2].high < inside.low:
            return replace(light, status="suspect", detail=f"{light.detail}; at home {level(inside.mean, metric)}")
    return light


def _light(name: str, balanced: tuple[NewClasses, Metric, Value], where: str, how: str = "") -> Light:
    """Return a status light about a balanced accuracy: problem unless it is significantly above that of guessing.

    `name` is the light's name, `balanced` a result of `_balanced`, `where` and `how` end its sentences.
    """
    new, metric, value = balanced
    said = f"{metric.title.lower()} {level(value.mean, metric)}{how} on {len(new.table):,} test images"
    if math.isnan(value.low):
        return Light(name, "unknown", f"{said}, too few for an interval", "model")
    guess = 1 / len(new.classes)
    said += f" (95% interval {between(value, metric)} over {new.unit}); a guess has {level(guess, metric)}"
    if value.low > guess:
        return Light(name, "ok", said, "model")
    return Light(name, "problem", f"{said}: it is not shown to be better than that, {where}", "model")


def _balanced(applied: Applied, tested: pd.DataFrame) -> tuple[NewClasses, Metric, Value]:
    """Return the balanced accuracy of a run's predictions in its study, with its metric and the predictions.

    `tested` are the predictions, in the columns of `Applied.table`.
    """
    new = NewClasses(replace(applied, table=tested))
    scores = zip(new.metrics, new.scores(), strict=True)
    return new, *next((metric, value) for metric, value in scores if metric.name == "balanced_accuracy")


def _tested(applied: Applied, images: RunImages | None, role: str, inference: str) -> pd.DataFrame | None:
    """Return a run's predictions of test images in its own study, in the columns of `Applied.table`; None if missing.

    `role` is internal or external, and `inference` the id of an inference method. `images` are the study's images,
    which name the patients.
    """
    if not applied.run.data.task.has_probabilities:
        return None
    table = _predicted(RunFiles(applied.folder), inference)
    if table is None:
        return None
    table = table[(table["role"] == role) & (table["split"] == "test")]
    columns = [f"p{k}" for k in range(len(applied.run.data.dataset.classes))]
    table = table.assign(path=table["sample"].astype(str), label=table["label"].astype("Int64"))
    table["predicted"] = table[columns].to_numpy().argmax(axis=1)
    if images is not None and "patient" in images.prepared.samples:
        samples = images.prepared.samples
        table["patient"] = table["path"].map(dict(zip(samples["sample"].astype(str), samples["patient"], strict=True)))
    return None if table.empty else table


def _predicted(files: RunFiles, inference: str) -> pd.DataFrame | None:
    """Return the table of a run's predictions with one inference method; None if no readable file has it.

    `inference` is the id of the method. `files` are the run's files.
    """
    for file in files.every_prediction:
        with contextlib.suppress(UserError):
            table = read_table(file)
            if "inference" in table:  # a file of several
                table = table[table["inference"] == inference]
            elif file not in (files.predictions(inference), files.predictions(inference + VALIDATION)):
                continue
            if len(table):
                return table
    return None


def likeness(applied: Applied, images: RunImages | None) -> tuple[Light, PageTable | None]:
    """Compare the brightness, contrast and colour of new images with training images: a status light and a table.

    The status is suspect if more than MANY of the new images lie outside the range of training images in one of them.
    The table is None if no training images are available. `images` are the images of the study that trained the run;
    None if they are not available.
    """
    name = "Images like those of training"
    trained = _trained_looks(images) if images is not None else None
    if trained is None:
        return Light(name, "unknown", "the images that trained it are not here", "predictions"), None
    spreads = np.percentile(trained, RANGE, axis=0), np.percentile(applied.looks, RANGE, axis=0)
    # what is constant in training, such as the colour of grey images, is compared up to one grey level
    outside = ((applied.looks < spreads[0][0] - 1) | (applied.looks > spreads[0][-1] + 1)).mean(axis=0)
    cells = [[f"{middle:.0f} ({least:.0f} to {most:.0f})" for least, middle, most in spread.T] for spread in spreads]
    shares = [f"{100 * share:.1f}" for share in outside]
    rows = tuple(zip((what.capitalize() for what in LOOKS), *cells, shares, strict=True))
    caption = (
        "How the images look beside those of training, in grey levels from 0 to 255: median, and the range of 98 %. "
        "Brightness is the mean, contrast the standard deviation, colour the distance between channels"
    )
    header = ("Measure", "Training", "These images", "Outside of the range of training (%)")
    worst = int(outside.argmax())
    said = f"{100 * outside[worst]:.0f} % have a {LOOKS[worst]} outside of the range of 98 % of the training images"
    status = "suspect" if outside[worst] > MANY else "ok"
    return Light(name, status, said, "predictions"), plain(Table(caption, header, rows, 1))


def _trained_looks(images: RunImages) -> np.ndarray | None:
    """Return brightness, contrast and colour, shape (n, 3), of at most COMPARED training images; None without any."""
    rows = images.prepared.rows(images.partition[images.partition["split"] == "train"])
    drawn = np.sort(stream("looks", images.run.id).permutation(rows)[:COMPARED])
    pixels = np.asarray(images.prepared.images[drawn])
    return looks(pixels) if len(drawn) and pixels.ndim == 4 else None
