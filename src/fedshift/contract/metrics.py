"""Checks of metrics, on random predictions and on degenerate ones (one sample, one class, equal probabilities)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from ..metrics import Metric
from .case import Case, made, require

DEGENERATE = {
    "one sample": (np.array([1]), np.array([[0.3, 0.7]])),
    "one class": (np.array([0, 0, 0]), np.array([[0.3, 0.7], [0.9, 0.1], [0.5, 0.5]])),
    "all alike": (np.array([0, 1, 0]), np.full((3, 2), 0.5)),
    "sure and wrong": (np.array([0, 1]), np.array([[0.0, 1.0], [1.0, 0.0]])),
    "sure and right": (np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]])),
    "a class without samples": (np.array([0, 2, 2]), np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])),
    "a class never predicted": (np.array([0, 1, 2]), np.array([[0.6, 0.4, 0.0], [0.4, 0.6, 0.0], [0.6, 0.4, 0.0]])),
}
_MISSED, _FOUND, _ABSENT = [0, 0, 9, 8.5, 8.5, 0], [9, 0, 0, 0, 0, 1], [0, 0, 0, np.nan, np.nan, np.nan]
MASKS = {
    "one image": (np.array([1]), np.array([[6, 3, 3, 1, 0.6, 1]])),
    "all missed": (np.array([1, 1]), np.array([_MISSED, _MISSED])),
    "none there": (np.array([0, 0]), np.array([_ABSENT, _ABSENT])),
    "sure and wrong": (np.array([1, 0]), np.array([_MISSED, [0, 9, 0, 8.5, 8.5, 0]])),
    "sure and right": (np.array([1, 0]), np.array([_FOUND, _ABSENT])),
}
"""Labels and predictions of segmented images with one structure, as the task `segmentation` stores them."""
LEAST_LIKE = 0.35
"""Largest allowed relative distance between the influences and the real changes of the value. Influences are a
first-order approximation, so they are not equal."""
EXAMPLES = {"classification": DEGENERATE, "segmentation": MASKS}
Kind = type[Metric]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that a metric class must pass."""
    for case in EXAMPLES[cls.tasks[0]]:
        yield Case(f"it is a number or NaN, and never infinite: {case}", partial(is_a_number, cls, case))
    for task in cls.tasks:
        yield Case(f"neither order nor repetition of samples makes a difference: {task}", partial(is_a_mean, cls, task))
        yield Case(
            f"its influence is the change of its value with a sample: {task}", partial(knows_influence, cls, task)
        )
    if cls.decides:
        yield Case("it depends on the most probable class alone, as `decides` says", partial(knows_decisions, cls))
    yield Case("right predictions score better than wrong ones", partial(knows_better, cls))


def is_a_number(cls: Kind, case: str) -> None:
    """Check that the value for a degenerate example (`case`) is a float within the metric's range or NaN.

    The arguments must stay unchanged.
    """
    metric = made(cls)
    examples = EXAMPLES[cls.tasks[0]]
    label, probability = (x.copy() for x in examples[case])
    value = metric.value(label, probability)
    require(isinstance(value, float), f"its value is a {type(value).__name__} and no float")
    require(not math.isinf(value), "its value is infinite")
    _require_within_ends(metric, "value", value)
    same = np.array_equal(label, examples[case][0]) and np.array_equal(probability, examples[case][1], equal_nan=True)
    require(same, "it changes its arguments")


def _drawn(task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return random labels (40,) and predictions of two classes: probabilities (40, 2), or pixel counts (40, 6)."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 40)
    if task == "segmentation":
        return label, rng.integers(0, 2, (40, 6)).astype(float)
    return label, rng.dirichlet([1, 1], 40)


def is_a_mean(cls: Kind, task: str) -> None:
    """Check that shuffling or duplicating all samples does not change the value, and that it lies within its range.

    If the metric gives a value per sample, the value must be their mean.
    """
    metric = made(cls)
    label, probability = _drawn(task)
    value = metric.value(label, probability)
    words = {
        "the second time": np.arange(40),
        "in another order": np.random.default_rng(1).permutation(40),
        "with each sample twice": np.tile(np.arange(40), 2),
    }
    for case, rows in words.items():
        other = metric.value(label[rows], probability[rows])
        # The same samples give the same bits. Sums in another order do not.
        tolerance = max(1e-6 * abs(value), 1e-12) * (case != "the second time")
        close = abs(other - value) <= tolerance or (math.isnan(value) and math.isnan(other))
        require(close, f"{case} its value is {other} and not {value}")
    _require_within_ends(metric, "value", value)
    _require_within_ends(metric, "chance", metric.chance(np.array([0.75, 0.25])))
    parts = metric.per_sample(label, probability)
    if parts is not None and not np.isnan(parts).any():
        words_of_mean = f"its value is {value}, and the mean of per_sample {parts.mean()}"
        require(math.isclose(value, parts.mean(), rel_tol=1e-6), words_of_mean)


def _require_within_ends(metric: Metric, name: str, number: float) -> None:
    """Raise Broken unless `number`, called `name` in the message, is NaN or lies within the metric's `ends`."""
    low, high = metric.ends
    words = f"its {name} is {number}, and `percent`, `logit` and `least` say that it is from {low} to {high}"
    require(math.isnan(number) or low <= number <= high, words)


def knows_influence(cls: Kind, task: str) -> None:
    """Check the influence of each sample against the change of the value if the sample is left out or duplicated.

    A metric without an influence passes.
    """
    metric = made(cls)
    label, probability = _drawn(task)
    influence = metric.influence(label, probability)
    if influence is None:
        return
    said = np.nansum(influence.reshape(40, -1), 1)
    rows = np.arange(40)
    changes = [
        [metric.value(label[kept], probability[kept]) for kept in (np.append(rows, k), np.delete(rows, k))]
        for k in rows
    ]
    # A central difference, whose error is of second order in one sample's weight.
    found = np.array([(twice - without) / 2 for twice, without in changes])
    away = np.linalg.norm(said - found) / (np.linalg.norm(found) + 1e-12)
    words = "for one sample more or less the value changes by {:.3g} on average, and influence says {:.3g}"
    require(float(away) < LEAST_LIKE, words.format(np.abs(found).mean(), np.abs(said).mean()))


def knows_decisions(cls: Kind) -> None:
    """Check that a metric with `decides` depends on the most probable classes only, not on their probabilities."""
    metric = made(cls)
    label, probability = _drawn(cls.tasks[0])
    value, other = (metric.value(label, p) for p in (probability, np.eye(2)[probability.argmax(1)]))
    require(other == value, f"its value is {value}, and {other} from the most probable classes: see decides")


def knows_better(cls: Kind) -> None:
    """Check that confident right predictions score better than confident wrong ones, and that there is a title."""
    metric = made(cls)
    examples = EXAMPLES[cls.tasks[0]]
    right, wrong = (metric.value(*examples[case]) for case in ("sure and right", "sure and wrong"))
    ordered = right > wrong if metric.higher_is_better else right < wrong
    require(ordered, f"right predictions have {right} and wrong ones {wrong}: see higher_is_better")
    require(bool(metric.title), "it needs a title")
