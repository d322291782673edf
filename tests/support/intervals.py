"""Intervals by their formulas, for tests of the tables that hold them."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


def of_share(share: float, variance: float, df: float = math.inf) -> tuple[float, float]:
    """Wilson's interval for as many samples as vary as much, as much wider as the t quantile is than the normal."""
    down, up = (half(side, df) for side in sides(share, variance))
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


@dataclass(frozen=True)
class Sites:
    """The mean of so many sites with other patients each, who give each site this value with this variance."""

    value: float
    variance: float
    patients: int
    sites: int = 2

    def towards(self, higher: bool) -> list[tuple[float, float]]:
        """The variance of each site to one side, as Wilson's interval has it, with its degrees of freedom."""
        return [(sides(self.value, self.variance)[higher] / self.sites**2, self.patients - 1)] * self.sites

    def level(self, *trainings: tuple[float, float]) -> tuple[float, float]:
        """The interval of the mean; with the variance over `trainings` and its degrees of freedom, that over both."""
        down, up = (half(*welch(*trainings, *self.towards(higher))) for higher in (False, True))
        return self.value - down, self.value + up

    def minus(self, other: Sites, *trainings: tuple[float, float]) -> tuple[float, float]:
        """The interval of the difference to sites with other patients."""
        down, up = (
            half(*welch(*trainings, *self.towards(higher), *other.towards(not higher))) for higher in (False, True)
        )
        return self.value - other.value - down, self.value - other.value + up

    def gain_over(self, other: Sites, *trainings: tuple[float, float]) -> tuple[float, float]:
        """The interval of the difference to another condition at the same sites, where its patients are alike, too."""
        of_site = (self.variance + other.variance) / self.sites**2
        width = half(*welch(*trainings, *[(of_site, self.patients - 1)] * self.sites))
        return self.value - other.value - width, self.value - other.value + width


def alike(patients: int, samples: int, *shares: float, sites: int = 2) -> Sites:
    """Sites with so many patients who are all alike, each with so many samples, of which these shares are right."""
    return Sites(sum(shares) / len(shares), of_alike(patients * samples, *shares), patients, sites)


def percent(low: float, high: float, sign: str = "") -> str:
    """An interval in percent, as pages say it."""
    return f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f}".replace("-", "\N{MINUS SIGN}")


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
