"""How often conformal promises hold at home: `python benchmarks/promises.py [--calibrations N] [--write]`.

Patients of one hospital are invented. Some of them calibrate, by the functions that make conformal.csv, and all of them
are new patients; `--write` puts the tables into docs/coverage.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import expit
from simulated import Hospital, command, table

from fedshift.analysis.conformal import UNITS, Sets, Structure, Units, likely
from fedshift.study.declaration import Conformal
from fedshift.tasks.segmentation import histograms

BEGIN = "<!-- Promises begin: make coverage writes it -->\n"
ALPHA = 0.1
PATIENTS = (10, 20, 50, 100, 500)
EVERYBODY = 4000
"""Patients of the hospital, from whom those that calibrate are drawn with replacement."""
SIDE, IMAGES = 16, 2
"""Pixels along a side of an image with a structure, and images of a patient."""


def of_classes(rng: np.random.Generator) -> Units:
    """Return patients with one of two classes and three images each, by the mean of these."""
    label, people, (ill,) = Hospital("home", EVERYBODY).drawn(rng, np.zeros((1, 2)))
    return UNITS["patient"](Units(label, np.stack([1 - ill, ill], 1), people))


def of_masks(rng: np.random.Generator) -> Structure:
    """Return patients with a square structure of 36 pixels, which a network finds in some better than in others."""
    people = np.repeat(np.arange(EVERYBODY), IMAGES)
    reference = np.zeros((len(people), SIDE, SIDE), dtype=int)
    reference[:, 5:11, 5:11] = 1
    found = 2 + 1.5 * rng.standard_normal(EVERYBODY)[people, None, None]
    p = expit(np.where(reference == 1, found, -4) + 2 * rng.standard_normal(reference.shape))
    return Structure.of_images(histograms(np.stack([1 - p, p], 1), reference, [(1,)])[:, 0], people)


def calibrations(everybody: Any, n: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Return coverage and size over all patients (number, 2), each time with other `n` patients that calibrate."""
    declared = Conformal(alpha=ALPHA)

    def of_one() -> np.ndarray:
        drawn = rng.integers(len(everybody.patient), size=n)
        chosen = type(everybody)(*(values[drawn] for values in everybody))
        sets: Sets = everybody.measured(chosen.calibrated([chosen], declared)[1], declared)
        return sets.measures[:, :2].mean(0)

    return np.array([of_one() for _ in range(number)])


def tables(number: int) -> Iterator[str]:
    """Yield the tables of sets and of masks."""
    rng, cells = np.random.default_rng(0), []
    sets, masks = of_classes(rng), of_masks(rng)
    for n in PATIENTS:
        coverage = 100 * calibrations(sets, n, number, rng)[:, 0]
        most, low = 100 * (1 - ALPHA + 1 / (n + 1)), 100 * likely(n, ALPHA)[0]
        shown = f"{coverage.mean():.1f}", f"90.0 to {most:.1f}", f"{np.quantile(coverage, 0.05):.1f}", f"{low:.1f}"
        cells.append([str(n), *shown])
    yield table(
        ["sets that hold the class; patients", "mean", "foretold", "5 % of calibrations below", "foretold"], cells
    )
    cells = []
    for n in PATIENTS:
        held, size = calibrations(masks, n, number, rng).mean(0)
        cells.append([str(n), f"{100 * (1 - held):.1f}", "10.0 at most", f"{size:.2f}"])
    yield table(["missed of a structure; patients", "mean", "promised", "mask over true size"], cells)


if __name__ == "__main__":
    command(__doc__, "calibrations", 2000, tables, BEGIN)
