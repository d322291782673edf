"""How well predicted probabilities agree with observed frequencies, site by site: calibration.csv.

Every training is measured by itself, and the results are averaged over trainings: averaged probabilities would be those
of an ensemble, which nobody trained.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit, logit

from ..metrics import midranks
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Bounds, Estimate, Group, wilson
from .numbers import IDS, Names, Numbers, Row, row
from .predictions import INFERENCE, Predictions, Samples, clusters

COLUMNS = [*IDS, *CONDITION, "role", "site", "of", "quantity", "bin", "p", "n", "patients", "p_reversed"]
COLUMNS += ["mean", "std", "seeds", "low", "high", *INFERENCE]
CLIP = 1e-6
"""Probabilities are clipped to this distance from 0 and 1 before their log-odds are taken."""
BINS = 10
"""Bins of equal counts of the calibration curve, and of the calibration errors beside it."""
BARS = 20
"""Bars of equal width of the histogram of probabilities."""
TOP_LABEL = "the answer"
"""With more than two classes: the probability of the most probable class, and whether it is right."""
NUMBERS = ("observed_expected", "intercept", "slope", "error", "error_perfect", "squared_error_debiased")
"""The quantities of calibration.csv that are one number of a site."""
HISTOGRAMS = ("histogram_0", "histogram_1")
"""The quantities of calibration.csv that count samples of either outcome."""
_STEPS = 100


# ---- logistic recalibration


class Fit(NamedTuple):
    """A logistic regression with its k `coefficients`.

    `covariance` (k, k) is the inverse of the information: for independent samples and a true model. `influence` (n, k)
    is that of each sample on the coefficients.
    """

    coefficients: np.ndarray
    covariance: np.ndarray
    influence: np.ndarray


def logistic(y: np.ndarray, x: np.ndarray, offset: np.ndarray | float = 0.0) -> Fit | None:
    """Return the maximum-likelihood fit of P(y = 1) = sigmoid(x b + offset), or None where it does not converge.

    `y` is (n,) of 0 and 1, and `x` is (n, k). Newton's method, with steps halved while they do not help.
    """
    b = np.zeros(x.shape[1])

    def loss(b: np.ndarray) -> float:
        score = x @ b + offset
        return float(np.logaddexp(0, score).sum() - y @ score)

    for _ in range(_STEPS):
        mean = expit(x @ b + offset)
        information = (x * (mean * (1 - mean))[:, None]).T @ x
        residual = x * (y - mean)[:, None]
        try:
            covariance = np.linalg.inv(information)
        except np.linalg.LinAlgError:
            return None
        step = covariance @ residual.sum(0)
        if not np.isfinite(step).all():
            return None
        if np.abs(step).max() < 1e-10 * (1 + np.abs(b).max()):
            return Fit(b, covariance, residual @ covariance)
        # Newton's step may overshoot where p is near 0 or 1, and the likelihood would fall.
        before = loss(b)
        while loss(b + step) > before and np.abs(step).max() > 1e-12:
            step = step / 2
        b = b + step
    return None


def log_odds(p: np.ndarray) -> np.ndarray:
    """Return the log-odds of probabilities, clipped to 1e-6 and 1 - 1e-6."""
    return np.asarray(logit(np.clip(p, CLIP, 1 - CLIP)))


class People(NamedTuple):
    """The patients of samples of one site: their numbers (n,), from 0, and the group that they are of."""

    cluster: np.ndarray
    group: Group
    seed: int = 0


def intercept(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return calibration in the large: a of logit P(y) = a + logit(p), ideally 0; above it, p is too low.

    Not estimable (NaN) where all y are alike.
    """
    fit = logistic(y, np.ones((len(y), 1)), log_odds(p)) if len(np.unique(y)) > 1 else None
    return _coefficient(fit, 0, people)


def slope(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return b of logit P(y) = a + b logit(p), ideally 1; below it, p is too extreme.

    Not estimable (NaN) where all y or all p are alike, or where p separates the classes.
    """
    x = log_odds(p)
    low, high = x[y == 0], x[y == 1]
    several = len(low) and len(high) and len(np.unique(x)) > 1
    # Perfect separation: the slope of greatest likelihood is infinite.
    apart = several and (low.max() <= high.min() or high.max() <= low.min())
    fit = logistic(y, np.stack([np.ones(len(x)), x], 1)) if several and not apart else None
    return _coefficient(fit, 1, people)


def _coefficient(fit: Fit | None, k: int, people: People) -> Estimate:
    """Return a coefficient with clustered influences, whose squares sum to the diagonal of the sandwich.

    The small-sample factor is G / (G - 1) (n - 1) / (n - k) for n samples in G clusters and k coefficients.
    """
    if fit is None:
        return _unknown(people)
    n, number = fit.influence.shape
    factor = (n - 1) / (n - number) if n > number else np.nan
    return estimates.single(fit.coefficients[k], np.sqrt(factor) * fit.influence[:, k], *people)


def _unknown(people: People) -> Estimate:
    return estimates.single(np.nan, None, *people)


def observed_expected(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return the logarithm of sum(y) / sum(p), ideally 0; not estimable (NaN) without any y of 1.

    The logarithm is what is averaged and has the interval (Snell and others, Stat Methods Med Res 2018;27:3505).
    """
    if not y.any() or not p.any():
        return _unknown(people)
    return estimates.single(np.log(y.sum() / p.sum()), y / y.sum() - p / p.sum(), *people)


# ---- bins


def equal_width(p: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin (n,) of each probability among bins of equal width, open on the left."""
    return np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)


def equal_count(p: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin (n,) of each probability among bins of about equal counts; equal probabilities share a bin."""
    return np.floor((midranks(p) - 0.5) * bins / len(p)).astype(int)


def calibration_error(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the calibration error: the mean over samples of |mean y - mean p| of their bin."""
    return float(np.abs(np.bincount(bins, y - p)).sum() / len(y))


def error_perfect(p: np.ndarray, bins: np.ndarray) -> float:
    """Return the calibration error to be expected of a perfect model: the larger, the fewer samples.

    It is sqrt(2 / pi) sum sqrt(w v / n), with the share w of a bin and its mean v of p (1 - p), of independent samples.
    """
    return float(np.sqrt(2 / np.pi * np.bincount(bins, p * (1 - p))).sum() / len(p))


def squared_error_debiased(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the mean squared gap of the bins without its bias; it may be negative, and is 0 on average if perfect.

    It is sum w [(mean y - mean p)^2 - mean y (1 - mean y) / (n - 1)] (Kumar, Liang and Ma, NeurIPS 2019). Bins of one
    sample are left out of both terms.
    """
    several = np.bincount(bins) > 1
    number = np.bincount(bins)[several]
    gap = np.bincount(bins, y - p)[several] / number
    share = np.bincount(bins, y)[several] / number
    return float((number * (gap**2 - share * (1 - share) / (number - 1))).sum() / len(y))


class Point(NamedTuple):
    """A bin of the calibration curve: mean probability, observed share, samples and patients."""

    p: float
    share: Estimate
    n: int

    @property
    def patients(self) -> int:
        """The number of patients in the bin."""
        return self.share.fewest

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of the share, for the number of independent samples that would vary as much.

        With one sample a patient these are all samples. A share of 0 or 1 counts patients. NaN for one patient.
        """
        share, variance = self.share.mean, self.share.over_patients.variance
        if self.patients < 2:
            return estimates.NO_INTERVAL
        if self.patients == self.n:
            return wilson(share, self.n)
        worth = share * (1 - share) / variance if variance > 0 else float(self.patients)
        return wilson(share, min(self.n, worth))


def curve(y: np.ndarray, p: np.ndarray, people: People, bins: np.ndarray) -> dict[int, Point]:
    """Return the points of the calibration curve by bin."""
    points = {}
    for k in np.unique(bins):
        members = bins == k
        share = y[members].mean()
        influence = (y[members] - share) / members.sum()
        at_bin = people._replace(cluster=people.cluster[members])
        points[int(k)] = Point(
            float(p[members].mean()), estimates.single(share, influence, *at_bin), int(members.sum())
        )
    return points


# ---- calibration.csv


class Measured(NamedTuple):
    """The calibration of one training at one site."""

    numbers: dict[str, Estimate]
    points: dict[int, Point]
    bars: dict[int, np.ndarray]


def target(label: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return y (n,) of 0 and 1 and p (n,): of class 1 of two; of more, whether the top class is right, and its p."""
    if probability.shape[1] == 2:
        return (label == 1).astype(float), probability[:, 1]
    return (probability.argmax(1) == label).astype(float), probability.max(1)


def measure(y: np.ndarray, p: np.ndarray, people: People) -> Measured:
    """Return the calibration of probabilities p (n,) of outcomes y (n,); samples of one patient are dependent."""
    bins = equal_count(p, BINS)
    bar = equal_width(p, BARS)
    errors = {"error": calibration_error(y, p, bins), "error_perfect": error_perfect(p, bins)}
    errors["squared_error_debiased"] = squared_error_debiased(y, p, bins)
    numbers = {
        "observed_expected": observed_expected(y, p, people),
        "intercept": intercept(y, p, people),
        "slope": slope(y, p, people),
        **{name: estimates.single(value, None, *people) for name, value in errors.items()},
    }
    bars = {value: np.bincount(bar[y == value], minlength=BARS) for value in (0, 1)}
    return Measured(numbers, curve(y, p, people, bins), bars)


def table(names: Names, numbers: Numbers) -> pd.DataFrame:
    """Return calibration.csv: a row for each condition, inference, site and quantity.

    Quantities are NUMBERS; at external sites also `point`, with the mean probability `p` and the observed share `mean`
    of a `bin`, and HISTOGRAMS, the samples of either outcome by probability. `of` names the class whose probability it
    is. `mean` and `std` are over trainings, that of `observed_expected` geometric; intervals are over patients and
    trainings, those of points over patients. The site `*` is the mean over internal sites. `p_reversed` is the
    one-sided p that a slope is 0 or more. NaN stands for what cannot be estimated.
    """
    classes = names.plan.study.dataset.classes
    found = numbers.view(*NUMBERS, "point", *HISTOGRAMS)
    columns = {"p": found["probability"], "p_reversed": found["p"], "bin": pd.to_numeric(found["group"], "coerce")}
    return names.described(found.assign(of=classes[1] if len(classes) == 2 else TOP_LABEL, **columns))[COLUMNS]


def rows(names: Names, predicted: Predictions, samples: Samples) -> Iterator[Row]:
    """Yield the numbers of calibration.csv (see `table`), for the reported inference and the one compared with it."""
    plan = names.plan
    for condition in names.conditions.values() if plan.study.task.has_probabilities else ():
        for key in dict.fromkeys((condition.level_inference, condition.compared_inference)):
            if key in condition.inferences:
                ids = {"condition_id": condition.id, "inference_id": key}
                yield from (ids | row for row in _rows(_measured(predicted, samples, condition, key)))


def _measured(
    predicted: Predictions, samples: Samples, condition: Condition, key: str
) -> dict[tuple[str, str], list[Measured]]:
    """Return what each training of a condition that is there gives, by role and site."""
    measured: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    clusters_of = functools.cache(functools.partial(clusters, samples))
    for run, parts in predicted.by_site(condition.runs.values(), key):
        for part in parts:
            patients = clusters_of(run.data.id)
            people = People(patients.of(part.samples, part.site), patients.group(part.site), run.seed)
            measured[part.role, part.site].append(measure(*target(part.label, part.probability), people))
    return measured


def _rows(measured: dict[tuple[str, str], list[Measured]]) -> Iterator[dict[str, Any]]:
    means: dict[str, list[Estimate]] = defaultdict(list)
    for (role, site), trainings in measured.items():
        place = {"role": role, "site": site}
        samples = sum(point.n for point in trainings[0].points.values())
        for name in NUMBERS:
            one = estimates.over_trainings([training.numbers[name] for training in trainings])
            if role == "internal":
                means[name].append(one)
            yield _number(name, one) | place | {"n": samples}
        if role == "external":
            yield from (place | found for found in (*_points(trainings), *_bars(trainings)))
    for name, sites in means.items():
        yield _number(name, estimates.mean(sites)) | {"role": "internal", "site": ALL}


def _number(name: str, one: Estimate) -> dict[str, Any]:
    found = row(name, one, p=1 - one.p_above(0.0) if name == "slope" else float("nan"))
    if name == "observed_expected":
        found |= {end: float(np.exp(found[end])) for end in ("mean", *Bounds._fields)}
        found["std"] = float(np.exp(one.values).std(ddof=1)) if len(one.values) > 1 else one.std
    return found


def _points(trainings: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the bins that all trainings have, each averaged over them."""
    common = functools.reduce(set.intersection, (set(training.points) for training in trainings))
    for k in sorted(common):
        points = [training.points[k] for training in trainings]
        share = estimates.over_trainings([point.share for point in points])
        mean = Point(float(np.mean([point.p for point in points])), share, min(point.n for point in points))
        low, high = mean.interval
        ends = {"low": low, "high": high, "low_patients": low, "high_patients": high}
        yield row("point", share) | ends | {"column": "bin", "group": str(k), "probability": mean.p, "n": mean.n}


def _bars(trainings: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    for value, name in enumerate(HISTOGRAMS):
        for k, count in enumerate(np.mean([training.bars[value] for training in trainings], axis=0)):
            yield {"quantity": name, "column": "bin", "group": str(k), "probability": (k + 0.5) / BARS, "mean": count}
