"""Intervals that hold two sources of variation: other patients, and other trainings that score the same patients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t as student


class MeanSquares(NamedTuple):
    """The mean squares of a table (seeds, patients), in which every training scores the same patients."""

    seeds: float
    patients: float
    residual: float


class Spread(NamedTuple):
    """The variance of a mean, and the degrees of freedom of that variance."""

    variance: float
    df: float


def mean_squares(values: np.ndarray) -> MeanSquares:
    """Return the mean squares of values (seeds, patients): a two-way analysis of variance without repeats.

    Needs two seeds and two patients at least.
    """
    seeds, patients = values.shape
    mean = values.mean()
    by_seed, by_patient = values.mean(1, keepdims=True), values.mean(0, keepdims=True)
    return MeanSquares(
        patients * ((by_seed - mean) ** 2).sum() / (seeds - 1),
        seeds * ((by_patient - mean) ** 2).sum() / (patients - 1),
        ((values - by_seed - by_patient + mean) ** 2).sum() / ((seeds - 1) * (patients - 1)),
    )


def crossed(values: np.ndarray) -> Spread:
    """Return the spread of the mean of values (seeds, patients) over new trainings and new patients.

    The variance is (MS_seeds + MS_patients - MS_residual) / (S P) with Satterthwaite's degrees of freedom (Hillis, Stat
    Med 2007;26:596). It may be less than either source alone gives, and even negative; see `truncated`.
    """
    squares, (seeds, patients) = mean_squares(values), values.shape
    total = squares.seeds + squares.patients - squares.residual
    parts = squares.seeds**2 / (seeds - 1) + squares.patients**2 / (patients - 1)
    parts += squares.residual**2 / ((seeds - 1) * (patients - 1))
    return Spread(total / values.size, total**2 / parts if parts else float("inf"))


def truncated(values: np.ndarray) -> float:
    """Return the variance of the mean of values (seeds, patients), with negative components counted as zero.

    A component of seeds or patients below zero leaves the mean square of the other one, over S P. Of two below zero,
    the larger mean square is left.
    """
    squares = mean_squares(values)
    return float(max(sum(squares) - 2 * squares.residual, squares.seeds, squares.patients) / values.size)


def summed(patients: float, clusters: int, seeds: float, trainings: int) -> Spread:
    """Return the spread of a mean whose two sources are known apart only: a safe rule for any metric.

    `patients` is the variance over patients with trainings fixed, of so many clusters; `seeds` is the variance of the
    values of single trainings, patients fixed. Their sum counts what seeds and patients do together twice, so it is
    too wide rather than too narrow. The degrees of freedom are Satterthwaite's (Biometrics Bull 1946;2:110).
    """
    parts = np.array([patients, seeds / trainings])
    total = parts.sum()
    return Spread(float(total), float(total**2 / (parts**2 / [clusters - 1, trainings - 1]).sum()) if total else np.inf)


def interval(mean: float, spread: Spread, level: float = 0.95) -> tuple[float, float]:
    """Return the bounds of the t interval of a mean."""
    half = student.ppf((1 + level) / 2, spread.df) * np.sqrt(spread.variance)
    return float(mean - half), float(mean + half)
