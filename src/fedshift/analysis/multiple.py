"""Tests of several methods, or over few sites or seeds, and predictions for a site that nobody has seen."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc, stdtrit

MOST_FLIPS = 20
"""More differences have too many patterns of signs."""
SMALLEST = 1e-6
"""The standard error of a site whose patients all score alike."""


def holm(p: np.ndarray) -> np.ndarray:
    """Return p values (k,) adjusted for the family of k tests (Holm, Scand J Stat 1979;6:65), in their order."""
    order = np.argsort(p)
    adjusted = np.minimum(1, np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1)))
    return np.asarray(adjusted[np.argsort(order)])


class SignFlip(NamedTuple):
    """A two-sided p, and the smallest p that so many differences can reach."""

    p: float
    smallest: float


def sign_flip(differences: np.ndarray) -> SignFlip:
    """Return the exact test that differences (n,) are as likely below zero as above; NaN for none, or more than 20.

    The p is the share of all 2 ** n patterns of signs whose mean is as far from zero as that of the data (Fisher, The
    Design of Experiments, 1935). The smallest p is 2 / 2 ** n: five differences never reach 0.05.
    """
    n = len(differences)
    if not 0 < n <= MOST_FLIPS:
        return SignFlip(float("nan"), float("nan"))
    observed = abs(float(np.sum(differences))) - 1e-12 * np.abs(differences).sum()
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return SignFlip(float((np.abs(sums) >= observed).mean()), min(1.0, 2 / 2**n))


class Ranked(NamedTuple):
    """The mean ranks of methods (methods,), 1 the best, with the F test that all ranks are alike, and its p."""

    ranks: np.ndarray
    f: float
    f_p: float


def friedman(values: np.ndarray) -> Ranked:
    """Return Iman and Davenport's form of Friedman's test for values (sites, methods), of which higher is better.

    Sites must be independent of each other (Demsar, J Mach Learn Res 2006;7:1, section 3.2.2). The F is infinite where
    all sites rank the methods alike.
    """
    from scipy.stats import friedmanchisquare, rankdata  # takes a second to import

    sites, methods = values.shape
    ranks = rankdata(-values, axis=1).mean(0)
    chi2 = friedmanchisquare(*values.T).statistic
    denominator = sites * (methods - 1) - chi2
    ratio = (sites - 1) * chi2 / denominator if denominator > 1e-12 else np.inf
    p = fdtrc(methods - 1, (methods - 1) * (sites - 1), ratio)
    return Ranked(ranks, float(ratio), float(p))


def critical_difference(methods: int, sites: int) -> float:
    """Return by how much mean ranks of two methods must differ: Nemenyi's test (Demsar 2006, section 3.2.2)."""
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * sites)))


class Pooled(NamedTuple):
    """The mean over sites in a random-effects model.

    Attributes
    ----------
    mean, se : float
        The mean and its standard error, on the scale of the estimates.
    tau2 : float
        The variance between sites.
    sites : int
        The number of sites.
    """

    mean: float
    se: float
    tau2: float
    sites: int


def pool(estimates: np.ndarray, se: np.ndarray) -> Pooled:
    """Return the random-effects mean of estimates (sites,) with standard errors (sites,), of two sites or more.

    The variance between sites is that of DerSimonian and Laird (Control Clin Trials 1986;7:177):
    max(0, (Q - (k - 1)) / C), where Q = sum w (x - fixed mean)^2, C = sum w - sum w^2 / sum w and w = 1 / se^2.
    """
    weight = 1 / np.asarray(se) ** 2
    k = len(estimates)
    q = (weight * (estimates - np.average(estimates, weights=weight)) ** 2).sum()
    c = weight.sum() - (weight**2).sum() / weight.sum()
    excess = max(0.0, float(q - (k - 1)))
    weight = 1 / (np.asarray(se) ** 2 + excess / c)
    mean = float(np.average(estimates, weights=weight))
    return Pooled(mean, float(1 / np.sqrt(weight.sum())), float(excess / c), k)


def prediction_interval(pooled: Pooled) -> tuple[float, float]:
    """Return the 95% interval in which the true value of a new, similar site lies; NaN below three sites.

    It is mean ± t(k - 2) sqrt(tau2 + se^2) (Higgins, Thompson and Spiegelhalter, J R Stat Soc A 2009;172:137).
    """
    if pooled.sites < 3:
        return float("nan"), float("nan")
    half = stdtrit(pooled.sites - 2, 0.975) * np.sqrt(pooled.tau2 + pooled.se**2)
    return float(pooled.mean - half), float(pooled.mean + half)


def below_the_worst(sites: int) -> float:
    """Return the probability that a new site is worse than the worst of so many, all drawn alike: 1 / (k + 1)."""
    return 1 / (sites + 1)


def predicted(estimates: np.ndarray, se: np.ndarray, logit: bool) -> tuple[float, float]:
    """Return the prediction interval for a new site from estimates (sites,) and their standard errors (sites,).

    With `logit`, estimates are proportions and the interval is made on the logit scale, so that it stays between 0 and
    1. It is NaN below three sites, where a standard error is unknown, and where a proportion is 0 or 1.
    """
    estimates, se = np.asarray(estimates, dtype=float), np.asarray(se, dtype=float)
    at_an_end = logit and not ((estimates > 0) & (estimates < 1)).all()
    if len(estimates) < 3 or np.isnan([estimates, se]).any() or at_an_end:
        return float("nan"), float("nan")
    if not logit:
        return prediction_interval(pool(estimates, np.maximum(se, SMALLEST)))
    slope = estimates * (1 - estimates)
    low, high = prediction_interval(pool(np.log(estimates / (1 - estimates)), np.maximum(se / slope, SMALLEST)))
    return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))
