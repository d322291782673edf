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


def sides(share: float, variance: float) -> tuple[float, float]:
    """The variances down and up that Wilson's interval has for as many samples as vary as much."""
    low, high = wilson(share, share * (1 - share) / variance)
    return ((share - low) / Z) ** 2, ((high - share) / Z) ** 2


def of_share(share: float, variance: float, df: float = math.inf, sites: int = 1) -> tuple[float, float]:
    """Wilson's interval for as many samples as vary as much, as much wider as the t quantile is than the normal.

    That of the mean of so many `sites`, each with this share, variance and degrees of freedom.
    """
    down, up = (half(side / sites, df * sites) for side in sides(share, variance))
    return max(share - down, 0.0), min(share + up, 1.0)


def of_alike(samples: int, *shares: float) -> float:
    """The variance over patients who are all alike, as if each sample were one: of a mean over trainings in step.

    `shares` are those of the trainings that are right.
    """
    roots = [math.sqrt(share * (1 - share) / (samples - 1)) for share in shares]
    return (sum(roots) / len(roots)) ** 2


def welch(*sources: tuple[float, float]) -> tuple[float, float]:
    """The sum of independent variances, and Satterthwaite's degrees of freedom; each comes with its own."""
    total = sum(variance for variance, _ in sources)
    return total, total**2 / sum(variance**2 / df for variance, df in sources)


def half(variance: float, df: float) -> float:
    """Half of the t interval of a mean with this variance."""
    return float(student.ppf(0.975, df) * math.sqrt(variance))


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
