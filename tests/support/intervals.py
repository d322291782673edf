"""Intervals by their formulas, for tests of the tables that hold them."""

from __future__ import annotations

import math

from scipy.stats import t as student

Z = student.ppf(0.975, math.inf)


def wilson(share: float, n: float) -> tuple[float, float]:
    """The score interval of a share of n samples (Wilson 1927)."""
    centre = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    return centre - half, centre + half


def of_share(share: float, variance: float, df: float = math.inf) -> tuple[float, float]:
    """Wilson's interval for as many samples as vary as much, as much wider as the t quantile is than the normal."""
    low, high = wilson(share, share * (1 - share) / variance)
    wider = student.ppf(0.975, df) / Z
    return max(share - wider * (share - low), 0.0), min(share + wider * (high - share), 1.0)


def crossed(
    trainings: tuple[float, float], patients: tuple[float, float], rest: tuple[float, float]
) -> tuple[float, float]:
    """The variance over trainings and patients and its degrees of freedom, from three of each: none below zero."""
    total, inverse = rest[0], rest[0] ** 2 / rest[1]
    for variance, df in (trainings, patients):
        own = max(variance - rest[0], 0.0)
        total += own
        inverse += min(own / (0.1 * variance), 1.0) * variance**2 / df if variance else 0.0
    return total, total**2 / inverse
