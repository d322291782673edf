"""The contract of metrics: on degenerate predictions too."""

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
Kind = type[Metric]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what metrics must satisfy."""
    for case in DEGENERATE:
        yield Case(f"it is a number or NaN, and never infinite: {case}", partial(is_a_number, cls, case))
    yield Case("the order of samples makes no difference", partial(ignores_order, cls))
    yield Case("it knows what is better", partial(knows_better, cls))


def is_a_number(cls: Kind, case: str) -> None:
    """Check the value, and that the arguments stay as they are."""
    metric = made(cls)
    label, probability = (x.copy() for x in DEGENERATE[case])
    value = metric.value(label, probability)
    require(isinstance(value, float), f"its value is a {type(value).__name__} and no float")
    require(not math.isinf(value), "its value is infinite")
    if metric.percent and not math.isnan(value):
        require(0 <= value <= 1, f"it is shown in percent, and its value is {value}")
    same = np.array_equal(label, DEGENERATE[case][0]) and np.array_equal(probability, DEGENERATE[case][1])
    require(same, "it changes its arguments")


def ignores_order(cls: Kind) -> None:
    """Check that shuffled samples have the same value, to 1e-6."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 40)
    probability = rng.dirichlet([1, 1], 40)
    shuffled = rng.permutation(40)
    metric = made(cls)
    shuffled_value = metric.value(label[shuffled], probability[shuffled])
    value = metric.value(label, probability)
    require(
        abs(shuffled_value - value) <= max(1e-6 * abs(value), 1e-12),
        f"in another order its value is {shuffled_value} and not {value}",
    )


def knows_better(cls: Kind) -> None:
    """Check that a predictor that is sure and right is not beaten by one that is sure and wrong."""
    metric = made(cls)
    right, wrong = (metric.value(*DEGENERATE[case]) for case in ("sure and right", "sure and wrong"))
    ordered = right > wrong if metric.higher_is_better else right < wrong
    require(ordered, f"right predictions have {right} and wrong ones {wrong}: see higher_is_better")
    require(bool(metric.title), "it needs a title")
