"""The page of a run that was applied to new images: one HTML file that needs no network and no script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..analysis.table import Table
from ..analysis.values import DASH, NAN, Value, between, listed, number
from ..figures._canvas import COLOURS, WIDTH, short, svg
from ..figures._images import png
from ..io.text import write_text
from ..jobs.apply import Applied
from ..jobs.raw_images import LARGE, WHOLE_SLIDES
from .answer import Tile
from .history import Trained, facts
from .html import render
from .outcome import Outcome
from .page_table import PageCell, PageTable, plain

EDGE = 96
"""Pixels along a side of an image on the page."""
MOST = 50
"""Rows of a table on the page; predictions.csv has all."""
NAMED = 3
"""Classes that the first sentence names."""
BINS = 20
_NBSP = "\N{NO-BREAK SPACE}"


def write(applied: Applied) -> Path:
    """Write page.html beside predictions.csv."""
    out = applied.out / "page.html"
    write_text(out, render("applied.html.j2", context(applied)))
    return out


def context(applied: Applied) -> dict[str, Any]:
    """Return everything that the template shows."""
    from markupsafe import Markup

    outcome, run = Outcome(applied), applied.run
    scores = outcome.scores() if outcome.labelled else []
    return {
        "run": run,
        "card": run.data.card,
        "source": applied.source.resolve().name,
        "images": len(outcome.table),
        "lead": _lead(outcome, scores, run.partition.internal),
        "tiles": list(_tiles(outcome, scores)),
        "caveats": list(_caveats(applied, outcome)),
        "unreadable": _unreadable(applied) if applied.unreadable else None,
        "left_out": len(applied.unreadable),
        "classes": plain("classes", _classes(outcome)),
        "sites": plain("sites", _sites(outcome)) if len(outcome.sites) > 1 else None,
        "metrics": _metrics(outcome, scores) if scores else None,
        "figure": Markup(_figure(outcome)),  # our own, escaped when drawn
        "examples": [(outcome.classes[k], [png(image, EDGE) for image in of]) for k, of in applied.examples.items()],
        "how": list(_how(applied)),
        "model": list(_model(applied)),
    }


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else DASH


def _lead(outcome: Outcome, scores: list[Value], trained_at: Sequence[str]) -> str:
    """Return the first sentences: the predicted classes, and the headline metric where labels are known."""
    total, counts = len(outcome.table), outcome.counts()
    order = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
    parts = [f"{outcome.classes[k]} in {_share(counts[k], total)}{_NBSP}%" for k in order[:NAMED]]
    rest = [f"{len(order) - NAMED} further classes in the rest"] if len(order) > NAMED else []
    text = f"{total:,} images: the network predicts {listed([*parts, *rest])}."
    if not scores:
        return f"{text} Without labels, nothing here says whether that is right."
    first, metric = scores[0], outcome.metrics[0]
    bounds = f" (95% interval {between(first, metric)} over {outcome.unit})" if first.low == first.low else ""
    level = f"{metric.title} on the {first.n:,} labelled images is {number(first.mean, metric)}{_NBSP}%{bounds}."
    return " ".join([text, level, *_seen(outcome, trained_at, first.n)])


def _seen(outcome: Outcome, trained_at: Sequence[str], labelled: int) -> Iterator[str]:
    """Yield how many labelled images are of sites that the model was trained at, where there are any."""
    sites = [site for site in outcome.sites if site in trained_at]
    if number_ := sum(int(outcome.counts("label", site).sum()) for site in sites):
        which = "All" if number_ == labelled else f"{number_:,}"
        where = f"{which} of them are of {listed([str(site) for site in sites])}, where the model was trained"
        yield f"{where}: this is no result for new hospitals."


def _tiles(outcome: Outcome, scores: list[Value]) -> Iterator[Tile]:
    total, counts = len(outcome.table), outcome.counts()
    k = 1 if len(counts) == 2 else int(counts.argmax())
    yield Tile("Images", f"{total:,}", f"of {len(outcome.sites)} sites" if outcome.sites else "taken as one site")
    yield Tile(f"Predicted {short(outcome.classes[k])}", f"{_share(counts[k], total)} %", f"{counts[k]:,} images")
    confidence = outcome.table["confidence"]
    doubtful = (confidence < 0.75).sum()
    yield Tile("Median confidence", f"{100 * confidence.median():.1f} %", f"under 75 % in {_share(doubtful, total)} %")
    for value, metric in list(zip(scores, outcome.metrics, strict=True))[:2] if scores else ():
        unit = " %" if metric.percent and value.known else ""
        bounds = f"95% interval {between(value, metric)}" if value.low == value.low else f"too few {outcome.unit}"
        note = bounds if value.known else "not defined here"
        yield Tile(metric.title, f"{number(value.mean, metric)}{unit}", note)


def _classes(outcome: Outcome) -> Table:
    total, counts = len(outcome.table), outcome.counts()
    confidence = outcome.table.groupby(outcome.table["predicted"].astype(int))["confidence"].mean()
    labelled = outcome.counts("label") if outcome.labelled else None
    rows = [
        (
            name,
            f"{counts[k]:,}",
            _share(counts[k], total),
            f"{100 * confidence[k]:.1f}" if counts[k] else DASH,
            *([f"{labelled[k]:,}"] if labelled is not None else []),
        )
        for k, name in enumerate(outcome.classes)
    ]
    header = ("Class", "Predicted", "Share (%)", "Mean confidence (%)", *(["Labelled"] if labelled is not None else []))
    return Table("Images by predicted class; confidence is the probability of that class", header, tuple(rows))


def _sites(outcome: Outcome) -> Table:
    """Return the predicted classes at each site."""
    rows = []
    for site in outcome.sites[:MOST]:
        table = outcome.at(site)
        shares = (_share(n, len(table)) for n in outcome.counts(site=site))
        rows.append((str(site), f"{len(table):,}", *shares, f"{100 * table['confidence'].mean():.1f}"))
    header = ("Site", "Images", *(f"{name} (%)" for name in outcome.classes), "Mean confidence (%)")
    return Table(f"Predicted classes at each site{_first(outcome)}", header, tuple(rows))


def _first(outcome: Outcome) -> str:
    return f", the first {MOST} of {len(outcome.sites)}" if len(outcome.sites) > MOST else ""


def _metrics(outcome: Outcome, scores: list[Value]) -> PageTable:
    """Return all metrics on the labelled images, together and at each site."""
    several = outcome.sites[:MOST] if len(outcome.sites) > 1 else []
    lines = [("All images", scores), *((str(site), outcome.scores(site)) for site in several)]
    rows = []
    for name, values in lines:
        pairs = list(zip(values, outcome.metrics, strict=True))
        cells = [PageCell(number(v.mean, m), between(v, m) if v.low == v.low else "") for v, m in pairs]
        rows.append([PageCell(name), PageCell(f"{values[0].n:,}"), *cells])
    header = ("Site", "Labelled images", *(f"{m.title} (%)" if m.percent else m.title for m in outcome.metrics))
    caption = f"Metrics{_first(outcome)}; below, the 95% interval over {outcome.unit}"
    return PageTable("metrics", caption, header, rows, 1)


def _unreadable(applied: Applied) -> PageTable:
    rows = tuple(applied.unreadable.items())[:MOST]
    caption = f"Files that could not be read, {len(rows)} of {len(applied.unreadable)}"
    return plain("unreadable", Table(caption, ("File", "Why"), rows, 2))


def _figure(outcome: Outcome) -> str:
    """Return a figure of the predicted classes and of the confidence in them."""
    counts, least = outcome.counts(), 1 / len(outcome.classes)
    order = np.argsort(-counts, kind="stable")[:MOST]

    def paint(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        left.barh([short(outcome.classes[k]) for k in order], counts[order], color=COLOURS[0])
        left.invert_yaxis()
        left.set(xlabel="images", title="Predicted class")
        right.hist(100 * outcome.table["confidence"], bins=BINS, range=(100 * least, 100), color=COLOURS[0])
        right.set(xlabel="confidence (%)", ylabel="images", title="Confidence")

    title = "Images by predicted class, and by the probability of that class"
    return svg("applied", title, (WIDTH, 1.4 + max(1.2, 0.24 * len(order))), paint)


def _how(applied: Applied) -> Iterator[tuple[str, list[str]]]:
    """Yield how the images were read and predicted, as name and lines."""
    run, inference = applied.run, applied.inference
    settings = {name: value for name, value in inference.described().items() if name != "client"}
    whose = (
        f"that of client {inference.client}, with the tensors that stayed there"
        if inference.client
        else "the global one"
    )
    yield "Network", [whose]
    yield "Batch norm statistics", [f"{inference.display_name}: {inference.summary().replace('`', '')}"]
    described = type(inference).model_fields
    yield (
        "Settings",
        [f"{name} = {json.dumps(value)}: {described[name].description}" for name, value in settings.items()],
    )
    yield "Transforms", [t.label for t in (*run.data.prepare, *run.transforms) if t.when != "train"] or ["none"]


def _model(applied: Applied) -> Iterator[tuple[str, list[str]]]:
    """Yield the facts of the run and of its training data, as name and lines."""
    run, manifest = applied.run, applied.manifest
    yield "Run", [run.id]
    yield (
        "Algorithm",
        [f"{run.algorithm.label}, {run.bn.replace('_', ' ')} BN", *([run.addon.label] if run.addon else [])],
    )
    yield "Model", [run.model.label]
    yield "Trained at", [", ".join(run.partition.internal)]
    yield "External sites of its study", [", ".join(run.partition.external) or "none"]
    yield "Rounds", [f"{manifest.get('rounds', DASH)}, of which round {manifest.get('best_round', DASH)} was kept"]
    trained = Trained(run.id, "", run.seed, manifest, 0, NAN, NAN, NAN)
    yield from ((name, [value]) for name, value in facts([trained]))


def _caveats(applied: Applied, outcome: Outcome) -> Iterator[str]:
    """Yield what a reader must know about these predictions."""
    run, inference, table = applied.run, applied.inference, outcome.table
    yield (
        f"The network knows {listed([f'“{name}”' for name in outcome.classes])} and nothing else: it gives one of "
        "these names to every image, whatever it shows."
    )
    yield "Probabilities are the network's own. Whether they can be trusted as such is not known at a new site."
    if applied.scaled:
        yield (
            f"{applied.scaled:,} images were not of the run's size: their shorter side was scaled, and the centre cut "
            "out. A magnification other than that of the training images is a shift of its own."
        )
    if applied.large:
        images = "image is" if applied.large == 1 else "images are"
        yield f"{applied.large:,} {images} more than {LARGE} times {WHOLE_SLIDES}."
    if inference.score_columns()["batch_size"]:
        yield (
            "Batch norm took its statistics from these images, batch by batch: an image's probabilities depend on the "
            "others of its site, and on batch size and order. Other images, or one alone, would be predicted otherwise."
        )
        counts = table.groupby("site").size() if outcome.sites else pd.Series({"all": len(table)})
        if len(few := counts[counts < inference.batch_size]):
            yield (
                f"Fewer images than a batch of {inference.batch_size}"
                f"{f' at {listed([str(s) for s in few.index[:MOST]])}' if outcome.sites else ''}: statistics of so few "
                "are rough."
            )
    if known := [site for site in outcome.sites if site in run.partition.internal]:
        yield f"{listed([str(s) for s in known])} took part in training, maybe with these very images."
    if outcome.labelled:
        if outcome.labelled < len(table):
            yield f"{len(table) - outcome.labelled:,} images have no label, and count in no metric."
        if np.count_nonzero(outcome.counts("label")) < 2:
            yield "All labels are of one class: metrics that need others have no value."
        if outcome.unit == "images":
            yield "Patients are unknown: intervals treat images as independent, and are too narrow if they are not."
    if outcome.twice:
        yield f"{outcome.twice:,} images are listed again, and were predicted and counted each time."
