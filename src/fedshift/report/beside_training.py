"""What a reader must know of a model before its predictions for new images: how it did, and how unlike they are."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import numpy as np
import pandas as pd

from ..analysis.table import Table
from ..analysis.values import between
from ..core.errors import UserError
from ..core.rng import stream
from ..io.paths import RunFiles
from ..io.tables import read_table
from ..jobs.apply import Applied
from ..jobs.image_files import LOOKS, looks
from ..jobs.run_images import RunImages
from ..study.published import BASELINE
from .html import Light, PageTable, plain
from .new_classes import NewClasses
from .phrases import chosen_by, in_percent, level

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
    tested = _tested(applied, images)
    if tested is None:
        said = "how it did in its own study is not known here"
        best, by = applied.manifest.get("best_value"), applied.run.training.select_by
        if by and isinstance(best, int | float):
            said += f"; on validation images at home its {by.replace('_', ' ')} was {chosen_by(best, by)}"
            said += "\N{NO-BREAK SPACE}%" if in_percent(by) else ""
        return Light(name, "unknown", said, "model")
    new = NewClasses(replace(applied, table=tested))
    metric, value = next(
        (metric, value)
        for metric, value in zip(new.metrics, new.scores(), strict=True)
        if metric.name == "balanced_accuracy"
    )
    said = f"{metric.title.lower()} {level(value.mean, metric)} on {len(tested):,} test images"
    if math.isnan(value.low):
        return Light(name, "unknown", f"{said}, too few for an interval", "model")
    guess = 1 / len(new.classes)
    said += f" (95% interval {between(value, metric)} over {new.unit}); a guess has {level(guess, metric)}"
    if value.low > guess:
        return Light(name, "ok", said, "model")
    return Light(name, "problem", f"{said}: it is not shown to be better than that, at home or here", "model")


def _tested(applied: Applied, images: RunImages | None) -> pd.DataFrame | None:
    """Return the predictions of test images at home, in the form of `Applied.table`; None where there are none."""
    if not applied.run.data.task.has_probabilities:
        return None
    table = _predicted(RunFiles(applied.folder))
    if table is None:
        return None
    table = table[(table["role"] == "internal") & (table["split"] == "test")]
    columns = [f"p{k}" for k in range(len(applied.run.data.dataset.classes))]
    table = table.assign(path=table["sample"].astype(str), label=table["label"].astype("Int64"))
    table["predicted"] = table[columns].to_numpy().argmax(axis=1)
    if images is not None and "patient" in images.prepared.samples:
        samples = images.prepared.samples
        table["patient"] = table["path"].map(dict(zip(samples["sample"].astype(str), samples["patient"], strict=True)))
    return None if table.empty else table


def _predicted(files: RunFiles) -> pd.DataFrame | None:
    """Return the predictions of a run with the statistics of its training; None where no readable file has them."""
    for file in files.every_prediction:
        with contextlib.suppress(UserError):
            table = read_table(file)
            if "inference" in table:  # a file of several
                table = table[table["inference"] == BASELINE]
            elif file != files.predictions(BASELINE):
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
