"""The page of a run that was applied to new images: one HTML file that needs no network and no script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..analysis.table import Table
from ..analysis.values import NAN, listed
from ..figures._images import png
from ..io.text import write_text
from ..jobs.apply import Applied, images_of_study
from ..jobs.raw_images import LARGE, WHOLE_SLIDES
from .beside_training import at_home, likeness
from .history import Trained, facts
from .html import PageTable, plain, render
from .new_classes import NewClasses
from .new_images import MOST, NewImages
from .new_masks import NewMasks
from .phrases import first_line


def write(applied: Applied) -> Path:
    """Write page.html beside predictions.csv."""
    out = applied.out / "page.html"
    write_text(out, render("applied.html.j2", context(applied)))
    return out


def context(applied: Applied) -> dict[str, Any]:
    """Return everything that the template shows."""
    from markupsafe import Markup

    run = applied.run
    outcome = NewMasks(applied) if run.data.task.has_masks else NewClasses(applied)
    trained_at = [site for site in outcome.sites if site in run.partition.internal]
    trained = Trained(run.id, "", run.seed, applied.manifest, 0, NAN, NAN, NAN)
    shown = outcome.shown(trained_at)
    fitted = "their shorter side was scaled, and the centre cut out"
    if run.data.dataset.padded:
        fitted = "their longer side was scaled, and black added to make them square"
    images = images_of_study(run, applied.folder)
    alike, seen = likeness(applied, images)
    return shown | {
        "lights": [at_home(applied, images), alike],
        "looks": seen,
        "applied": applied,
        "outcome": outcome,
        "run": run,
        "card": run.data.card,
        "source": applied.source.resolve().name,
        "unreadable": _unreadable(applied.unreadable),
        "figure": Markup(shown["figure"]),  # our own, escaped when drawn
        "examples": [
            (*shown["sorts"][k], [png(image, outcome.edge) for image in of]) for k, of in applied.examples.items()
        ],
        "method": first_line(applied.inference),
        "settings": list(_settings(applied)),
        "transforms": [t.label for t in (*run.data.prepare, *run.transforms) if t.when != "train"],
        "in_batches": applied.inference.score_columns()["batch_size"],
        "few": _few(applied, outcome),
        "fitted": fitted,
        "trained_at": trained_at,
        "facts": facts([trained]),
        "listed": listed,
        "large": f"{LARGE} times {WHOLE_SLIDES}",
    }


def _settings(applied: Applied) -> Iterator[str]:
    """Yield each setting of the inference with its meaning, but for the client, which the page names by itself."""
    fields = type(applied.inference).model_fields
    for name, value in applied.inference.described().items():
        if name != "client":
            yield f"{name} = {json.dumps(value)}: {fields[name].description}"


def _few(applied: Applied, outcome: NewImages) -> list[str]:
    """Return the sites with fewer images than a batch; an empty name where sites are not known."""
    sizes = {site: len(outcome.at(site)) for site in outcome.sites} or {"": len(outcome.table)}
    return [site for site in sorted(sizes) if sizes[site] < getattr(applied.inference, "batch_size", 0)][:MOST]


def _unreadable(reasons: dict[str, str]) -> PageTable | None:
    """Return the files that could not be read; None without any."""
    rows = tuple(reasons.items())[:MOST]
    table = Table(f"Files that could not be read, {len(rows)} of {len(reasons)}", ("File", "Why"), rows, 2)
    return plain(table) if rows else None
