"""Tests of several methods, or over few sites or seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import fdtrc

MOST_FLIPS = 20
"""More differences have too many patterns of signs."""


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
    """The mean ranks of methods (methods,), 1 the best, with the tests that all ranks are alike."""

    ranks: np.ndarray
    chi2: float
    chi2_p: float
    f: float
    f_p: float


def friedman(values: np.ndarray) -> Ranked:
    """Return the tests of Friedman and of Iman and Davenport for values (sites, methods), of which higher is better.

    Sites must be independent of each other (Demsar, J Mach Learn Res 2006;7:1, section 3.2.2). The F is infinite where
    all sites rank the methods alike.
    """
    from scipy.stats import friedmanchisquare, rankdata  # takes a second to import

    sites, methods = values.shape
    ranks = rankdata(-values, axis=1).mean(0)
    chi2, chi2_p = friedmanchisquare(*values.T)
    denominator = sites * (methods - 1) - chi2
    ratio = (sites - 1) * chi2 / denominator if denominator > 1e-12 else np.inf
    p = fdtrc(methods - 1, (methods - 1) * (sites - 1), ratio)
    return Ranked(ranks, float(chi2), float(chi2_p), float(ratio), float(p))


def critical_difference(methods: int, sites: int) -> float:
    """Return by how much mean ranks of two methods must differ: Nemenyi's test (Demsar 2006, section 3.2.2)."""
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * sites)))
