"""The page of a run that was applied to new images: one HTML file that needs no network and no script."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from ..analysis.values import DASH, NAN, Table, Value, between, listed
from ..core.errors import UserError
from ..core.rng import stream
from ..figures._images import png
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
from .history import Trained, facts
from .html import (
    Block,
    Concern,
    Concerns,
    Facts,
    Heading,
    Lead,
    Light,
    Lights,
    Note,
    PageTable,
    Section,
    Tiles,
    linked,
    plain,
    render,
)
from .new_images import MOST, NewClasses, NewImages, NewMasks
from .phrases import chosen_by, counted, first_line, in_percent, level, verb


def write(applied: Applied) -> Path:
    """Write page.html beside predictions.csv."""
    out = applied.out / "page.html"
    write_text(out, render("applied.html.j2", context(applied)))
    return out


def context(applied: Applied) -> dict[str, Any]:
    """Return what the template of the page shows around its sections, and the sections."""
    run = applied.run
    outcome = NewMasks(applied) if run.data.task.has_masks else NewClasses(applied)
    trained_at = [site for site in outcome.sites if site in run.partition.internal]
    shown = outcome.shown(trained_at)
    made = [
        _predictions(applied, outcome, shown, trained_at),
        _metrics(shown["metrics"]),
        _examples(applied, outcome, shown),
        _how(applied),
        _model(applied),
    ]
    return {
        "run": run,
        "source": applied.source.resolve().name,
        "images": len(outcome.table),
        "synthetic": run.data.synthetic,
        "missing": (),
        "unreadable": _unreadable(applied.unreadable),
        "left_out": len(applied.unreadable),
        "sections": [section for section in made if section is not None],
    }


def _predictions(applied: Applied, outcome: NewImages, shown: dict[str, Any], trained_at: list[str]) -> Section:
    """Return the answer: how far the model can be trusted here, what it predicts, and what to beware of."""
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
    """Yield what a reader must beware of in these images and this inference."""
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


def _metrics(table: PageTable | None) -> Section | None:
    """Return the metrics on labelled images; None without any."""
    if table is None:
        return None
    unit = "patients" if "patients" in table.caption else "images"
    note = f"Intervals say how a value would vary with other {unit} of the same sites; the model is fixed."
    return Section("metrics", "Metrics", [table, Note(note)], short="Metrics")


def _examples(applied: Applied, outcome: NewImages, shown: dict[str, Any]) -> Section | None:
    """Return images of each sort; None where the page is to hold none."""
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
    """Return the network, the inference with its settings, and the transforms."""
    inference = applied.inference
    network = "the global one"
    if inference.client:
        network = f"that of client {inference.client}, with the tensors that stayed there"
    transforms = [t.label for t in (*applied.run.data.prepare, *applied.run.transforms) if t.when != "train"]
    rows = [
        ("Network", [network]),
        ("Batch norm statistics", [f"{inference.display_name}: {first_line(inference)}"]),
        ("Settings", [*_settings(applied)]),
        ("Transforms", transforms or ["none"]),
    ]
    return Section("how", "How they were made", [Facts(rows)], short="How they were made")


def _model(applied: Applied) -> Section:
    """Return the data of the training, and the run."""
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


def _settings(applied: Applied) -> Iterator[str]:
    """Yield each setting of the inference with its meaning, but for the client, which the page names by itself."""
    fields = type(applied.inference).model_fields
    for name, value in applied.inference.described().items():
        if name != "client":
            yield f"{name} = {json.dumps(value)}: {fields[name].description}"


def _unreadable(reasons: dict[str, str]) -> PageTable | None:
    """Return the files that could not be read; None without any."""
    rows = tuple(reasons.items())[:MOST]
    table = Table(f"Files that could not be read, {len(rows)} of {len(reasons)}", ("File", "Why"), rows, 2)
    return plain(table) if rows else None


RANGE = (1, 50, 99)
"""Percentiles of training images: 2 % of them lie outside of the first and the last."""
MANY = 0.1
"""Images are unlike those of training where so large a share lies outside of that range."""
COMPARED = 2000
"""The most training images that new ones are compared with."""


def at_home(applied: Applied, images: RunImages | None) -> Light:
    """Return how the model did at the sites that trained it, on the images that its study tested there.

    It is a problem where its balanced accuracy is not surely above that of a guess. For masks, and without predictions
    of its study, only the validation of its training is known. `images` are those of its study, where they are at hand.
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
    """Return how the model did at the sites of its study that took no part in the training.

    It did so with the inference that is applied here, where its study has predicted with it; else with the statistics
    of its training. It is suspect where it surely did worse than at home. None for masks, and where no images of such
    sites were tested.
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
    """Return what `_balanced` found as a light: a problem where it is not surely above the accuracy of a guess."""
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
    """Return tested images as the page sees new ones, the metric balanced accuracy, and its value on them."""
    new = NewClasses(replace(applied, table=tested))
    scores = zip(new.metrics, new.scores(), strict=True)
    return new, *next((metric, value) for metric, value in scores if metric.name == "balanced_accuracy")


def _tested(applied: Applied, images: RunImages | None, role: str, inference: str) -> pd.DataFrame | None:
    """Return the predictions of test images at sites of a role, as `Applied.table` has them; None without any."""
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
    """Return the predictions of a run with an inference, by its id; None where no readable file has them."""
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
    """Return whether the new images look like those of training, and the table of their brightness, contrast, colour.

    They are suspect where more than MANY of them lie outside of the range of training images. The table is None where
    no training images are at hand.
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
    """Return the looks (n, 3) of at most COMPARED training images; None without any."""
    rows = images.prepared.rows(images.partition[images.partition["split"] == "train"])
    drawn = np.sort(stream("looks", images.run.id).permutation(rows)[:COMPARED])
    pixels = np.asarray(images.prepared.images[drawn])
    return looks(pixels) if len(drawn) and pixels.ndim == 4 else None
