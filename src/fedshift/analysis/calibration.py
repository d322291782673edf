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

from ..io.paths import IDS, INFERENCE
from ..metrics import midranks
from . import estimates
from .conditions import ALL, CONDITION, Condition
from .estimates import Bounds, Estimate, Group, wilson
from .numbers import Names, Numbers, Row, row
from .predictions import Predictions, Samples, clusters

COLUMNS = [*IDS, *CONDITION, "role", "site", "of", "quantity", "bin", "p", "n", "patients", "p_reversed"]
COLUMNS += ["mean", "std", "seeds", "low", "high", *INFERENCE]
CLIP = 1e-6
"""Probabilities are clipped to this distance from 0 and 1 before their log-odds are taken."""
BINS = 10
"""Number of bins with equal counts of samples, for the calibration curve and for the calibration errors."""
BARS = 20
"""Number of bars of equal width in the histogram of probabilities."""
TOP_LABEL = "the answer"
"""Value of the column `of` in calibration.csv with more than two classes.

Calibration is then about the probability of the most probable class, and whether this class is the right one.
"""
NUMBERS = ("observed_expected", "intercept", "slope", "error", "error_perfect", "squared_error_debiased")
"""Quantities of calibration.csv with one number for each site."""
HISTOGRAMS = ("histogram_0", "histogram_1")
"""Quantities of calibration.csv that count the samples with outcome 0, or 1, by their predicted probability."""
_STEPS = 100
"""The most Newton steps of a logistic regression before it counts as not converged."""


# ---- logistic recalibration


class Fit(NamedTuple):
    """A fitted logistic regression: its k `coefficients`, their covariance, and the influence of each sample on them.

    `covariance` (k, k) is the inverse of the Fisher information, which holds for independent samples and a true model.
    `influence` (n, k) is by how much a coefficient changes with the weight of a sample, to first order.
    """

    coefficients: np.ndarray
    covariance: np.ndarray
    influence: np.ndarray


def logistic(y: np.ndarray, x: np.ndarray, offset: np.ndarray | float = 0.0) -> Fit | None:
    """Return the maximum-likelihood fit of P(y = 1) = sigmoid(x b + offset), or None if it does not converge.

    `y` (n,) holds 0 and 1, `x` is (n, k), and `offset` is a known term, a number or (n,). The method is Newton's, with
    a step halved as long as it would lower the likelihood.
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
    """Return the log-odds of probabilities (n,), which are first clipped to 1e-6 and 1 - 1e-6."""
    return np.asarray(logit(np.clip(p, CLIP, 1 - CLIP)))


class People(NamedTuple):
    """The patients behind the samples of one site, as intervals need them.

    Attributes
    ----------
    cluster : the number of the patient of each sample (n,), from 0
    group : data and site whose patients are independent of the patients of other groups
    seed : the seed of the training that predicted the samples
    """

    cluster: np.ndarray
    group: Group
    seed: int = 0


def intercept(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return the calibration intercept (calibration in the large): a of logit P(y) = a + logit(p).

    It is ideally 0; above 0, the probabilities are too low. `y` (n,) are outcomes 0 or 1, `p` (n,) their predicted
    probabilities, and `people` their patients, over whom the interval is made. The estimate is NaN if all y are equal.
    """
    fit = logistic(y, np.ones((len(y), 1)), log_odds(p)) if len(np.unique(y)) > 1 else None
    return _coefficient(fit, 0, people)


def slope(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return the calibration slope: b of logit P(y) = a + b logit(p).

    It is ideally 1; below 1, the probabilities are too extreme. `y` (n,) are outcomes 0 or 1, `p` (n,) their predicted
    probabilities, and `people` their patients, over whom the interval is made. The estimate is NaN if all y or all p
    are equal, or if p separates the classes perfectly.
    """
    x = log_odds(p)
    low, high = x[y == 0], x[y == 1]
    several = len(low) and len(high) and len(np.unique(x)) > 1
    # Perfect separation: the slope of greatest likelihood is infinite.
    apart = several and (low.max() <= high.min() or high.max() <= low.min())
    fit = logistic(y, np.stack([np.ones(len(x)), x], 1)) if several and not apart else None
    return _coefficient(fit, 1, people)


def _coefficient(fit: Fit | None, k: int, people: People) -> Estimate:
    """Return coefficient number `k` of a fit, with a cluster-robust (sandwich) variance over patients.

    It is NaN without a fit. The influences carry the square root of (n - 1) / (n - m) for n samples and m coefficients.
    Together with the factor G / (G - 1) for G patients, which `estimates.single` adds, that is the usual small-sample
    factor of the variance.
    """
    if fit is None:
        return _unknown(people)
    n, number = fit.influence.shape
    factor = (n - 1) / (n - number) if n > number else np.nan
    return estimates.single(fit.coefficients[k], np.sqrt(factor) * fit.influence[:, k], *people)


def _unknown(people: People) -> Estimate:
    """Return the estimate of a quantity that cannot be computed for some patients (`people`): its value is NaN."""
    return estimates.single(np.nan, None, *people)


def observed_expected(y: np.ndarray, p: np.ndarray, people: People) -> Estimate:
    """Return the logarithm of observed over expected outcomes, sum(y) / sum(p), which is ideally 0.

    `y` (n,) are outcomes 0 or 1, `p` (n,) their predicted probabilities, and `people` their patients, over whom the
    interval is made. The estimate is NaN if all y or all p are 0. Means and intervals are made on the logarithmic scale
    (Snell and others, Stat Methods Med Res 2018;27:3505).
    """
    if not y.any() or not p.any():
        return _unknown(people)
    return estimates.single(np.log(y.sum() / p.sum()), y / y.sum() - p / p.sum(), *people)


# ---- bins


def equal_width(p: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin (n,), from 0, of each probability among `bins` bins of equal width from 0 to 1.

    A probability on the border of two bins belongs to the lower one.
    """
    return np.clip(np.ceil(p * bins).astype(int) - 1, 0, bins - 1)


def equal_count(p: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin (n,), from 0, of each probability among `bins` bins of about equal counts.

    Equal values share a bin.
    """
    return np.floor((midranks(p) - 0.5) * bins / len(p)).astype(int)


def calibration_error(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the expected calibration error: the mean over samples of |mean y - mean p| in the sample's bin.

    `y`, `p` and `bins` (n,) are the outcome, the predicted probability and the number of the bin of each sample.
    """
    return float(np.abs(np.bincount(bins, y - p)).sum() / len(y))


def error_perfect(p: np.ndarray, bins: np.ndarray) -> float:
    """Return the calibration error that a perfectly calibrated model has by chance: the fewer samples, the larger.

    It is sqrt(2 / pi) sum sqrt(w v / n) over bins, where w is the share of the n samples that are in a bin, and v the
    mean of p (1 - p) in the bin. Samples count as independent. `p` and `bins` (n,) are the probability and the bin of
    each sample.
    """
    return float(np.sqrt(2 / np.pi * np.bincount(bins, p * (1 - p))).sum() / len(p))


def squared_error_debiased(y: np.ndarray, p: np.ndarray, bins: np.ndarray) -> float:
    """Return the squared calibration error without its bias: about 0, and possibly negative, for a perfect model.

    It is the sum over bins of w [(mean y - mean p)^2 - mean y (1 - mean y) / (n - 1)], where w is the bin's share of
    all samples and n its number of samples (Kumar, Liang and Ma, NeurIPS 2019). Bins with a single sample are left out.
    `y`, `p` and `bins` (n,) are the outcome, probability and bin of each sample.
    """
    several = np.bincount(bins) > 1
    number = np.bincount(bins)[several]
    gap = np.bincount(bins, y - p)[several] / number
    share = np.bincount(bins, y)[several] / number
    return float((number * (gap**2 - share * (1 - share) / (number - 1))).sum() / len(y))


class Point(NamedTuple):
    """A bin of the calibration curve.

    Attributes
    ----------
    p : mean predicted probability in the bin
    share : observed share of outcome 1 in the bin, with its variance over patients
    n : number of samples in the bin
    """

    p: float
    share: Estimate
    n: int

    @property
    def patients(self) -> int:
        """The number of patients in the bin."""
        return self.share.fewest

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the observed share, for its effective number of independent samples.

        The effective number is the number of independent samples whose share would vary as much as this one does over
        patients. With one sample a patient it is `n`; for a share of 0 or 1 it is the number of patients. NaN for a
        single patient.
        """
        share, variance = self.share.mean, self.share.over_patients.variance
        if self.patients < 2:
            return estimates.NO_INTERVAL
        if self.patients == self.n:
            return wilson(share, self.n)
        worth = share * (1 - share) / variance if variance > 0 else float(self.patients)
        return wilson(share, min(self.n, worth))


def curve(y: np.ndarray, p: np.ndarray, people: People, bins: np.ndarray) -> dict[int, Point]:
    """Return the points of the calibration curve by the number of the bin.

    `y`, `p` and `bins` (n,) are the outcome 0 or 1, the predicted probability and the number of the bin of each sample.
    """
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
    """The calibration of one training at one site.

    Attributes
    ----------
    numbers : estimates by quantity, such as `slope` (see NUMBERS)
    points : points of the calibration curve, by number of the bin
    bars : counts of samples in 20 bars (BARS) of predicted probability, for outcome 0 and for outcome 1
    """

    numbers: dict[str, Estimate]
    points: dict[int, Point]
    bars: dict[int, np.ndarray]


def target(label: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the outcomes y (n,), 0 or 1, whose calibration is measured, and their predicted probabilities p (n,).

    With two classes, y says whether the class is 1. With more, y says whether the most probable class is the right one,
    and p is the probability of this class. `label` (n,) are true classes, and `probability` is (n, classes).
    """
    if probability.shape[1] == 2:
        return (label == 1).astype(float), probability[:, 1]
    return (probability.argmax(1) == label).astype(float), probability.max(1)


def measure(y: np.ndarray, p: np.ndarray, people: People) -> Measured:
    """Return all measures of calibration of one training at one site.

    `y` (n,) are outcomes 0 or 1, `p` (n,) their predicted probabilities, and `people` their patients. Samples of one
    patient count as dependent.
    """
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
    """Return calibration.csv from the numbers of a study: a row for each condition, inference, site and quantity.

    `names` has the titles of conditions and inferences, and `numbers` the numbers. Quantities are `observed_expected`,
    `intercept`, `slope` and the calibration errors `error`, `error_perfect` and `squared_error_debiased`. External
    sites also have `point`, with the mean probability `p` and the observed share `mean` of a `bin`, and `histogram_0`
    and `histogram_1`, which count the samples of either outcome by predicted probability.

    The column `of` names the class whose probability is meant. `mean` and `std` are over trainings (of
    `observed_expected`: geometric). Intervals are over patients and trainings, and of `point` over patients alone. The
    site `*` is the mean over internal sites. `p_reversed` is the one-sided p value of the hypothesis that a calibration
    slope is 0 or more. NaN stands for what cannot be estimated.
    """
    classes = names.plan.study.dataset.classes
    found = numbers.view(*NUMBERS, "point", *HISTOGRAMS)
    columns = {"p": found["probability"], "p_reversed": found["p"], "bin": pd.to_numeric(found["group"], "coerce")}
    return names.described(found.assign(of=classes[1] if len(classes) == 2 else TOP_LABEL, **columns))[COLUMNS]


def rows(names: Names, predicted: Predictions, samples: Samples) -> Iterator[Row]:
    """Yield the numbers of calibration.csv (see `table`) as rows of numbers.parquet.

    Each condition has rows for two inferences: the one whose scores are reported, and the one that is compared with it.
    `samples` returns the table of samples of prepared data by the data's id.
    """
    plan = names.plan
    for condition in names.conditions.values() if plan.study.task.has_probabilities else ():
        for key in dict.fromkeys((condition.level_inference, condition.compared_inference)):
            if key in condition.inferences:
                ids = {"condition_id": condition.id, "inference_id": key}
                yield from (ids | row for row in _rows(_measured(predicted, samples, condition, key)))


def _measured(
    predicted: Predictions, samples: Samples, condition: Condition, key: str
) -> dict[tuple[str, str], list[Measured]]:
    """Return the calibration of each training of a condition by role and site, predicted with the inference `key`.

    Trainings without predictions are left out.
    """
    measured: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    clusters_of = functools.cache(functools.partial(clusters, samples))
    for run, parts in predicted.by_site(condition.runs.values(), key):
        for part in parts:
            patients = clusters_of(run.data.id)
            people = People(patients.of(part.samples, part.site), patients.group(part.site), run.seed)
            measured[part.role, part.site].append(measure(*target(part.label, part.probability), people))
    return measured


def _rows(measured: dict[tuple[str, str], list[Measured]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one condition and inference.

    `measured` holds the calibration of each training by role and site.
    """
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
    """Return the estimate `one` of the quantity `name` as a row of numbers.parquet.

    Observed over expected is written as a ratio, though it is estimated as a logarithm.
    """
    found = row(name, one, p=1 - one.p_above(0.0) if name == "slope" else float("nan"))
    if name == "observed_expected":
        found |= {end: float(np.exp(found[end])) for end in ("mean", *Bounds._fields)}
        found["std"] = float(np.exp(one.values).std(ddof=1)) if len(one.values) > 1 else one.std
    return found


def _points(trainings: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield a row for each bin of the calibration curve that all trainings have, with the mean over trainings."""
    common = functools.reduce(set.intersection, (set(training.points) for training in trainings))
    for k in sorted(common):
        points = [training.points[k] for training in trainings]
        share = estimates.over_trainings([point.share for point in points])
        mean = Point(float(np.mean([point.p for point in points])), share, min(point.n for point in points))
        low, high = mean.interval
        ends = {"low": low, "high": high, "low_patients": low, "high_patients": high}
        yield row("point", share) | ends | {"column": "bin", "group": str(k), "probability": mean.p, "n": mean.n}


def _bars(trainings: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield a row for each bar of the histograms of both outcomes, with the mean count over trainings."""
    for value, name in enumerate(HISTOGRAMS):
        for k, count in enumerate(np.mean([training.bars[value] for training in trainings], axis=0)):
            yield {"quantity": name, "column": "bin", "group": str(k), "probability": (k + 0.5) / BARS, "mean": count}
