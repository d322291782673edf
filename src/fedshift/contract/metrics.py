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
_MISSED, _FOUND, _ABSENT = [0, 0, 9, 8.5, 8.5, 0], [9, 0, 0, 0, 0, 1], [0, 0, 0, np.nan, np.nan, np.nan]
MASKS = {
    "one image": (np.array([1]), np.array([[6, 3, 3, 1, 0.6, 1]])),
    "all missed": (np.array([1, 1]), np.array([_MISSED, _MISSED])),
    "none there": (np.array([0, 0]), np.array([_ABSENT, _ABSENT])),
    "sure and wrong": (np.array([1, 0]), np.array([_MISSED, [0, 9, 0, 8.5, 8.5, 0]])),
    "sure and right": (np.array([1, 0]), np.array([_FOUND, _ABSENT])),
}
"""What the task segmentation keeps of images with one structure."""
EXAMPLES = {"classification": DEGENERATE, "segmentation": MASKS}
Kind = type[Metric]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what metrics must satisfy."""
    for case in EXAMPLES[cls.tasks[0]]:
        yield Case(f"it is a number or NaN, and never infinite: {case}", partial(is_a_number, cls, case))
    yield Case("the order of samples makes no difference", partial(ignores_order, cls))
    yield Case("it knows what is better", partial(knows_better, cls))


def is_a_number(cls: Kind, case: str) -> None:
    """Check the value, and that the arguments stay as they are."""
    metric = made(cls)
    examples = EXAMPLES[cls.tasks[0]]
    label, probability = (x.copy() for x in examples[case])
    value = metric.value(label, probability)
    require(isinstance(value, float), f"its value is a {type(value).__name__} and no float")
    require(not math.isinf(value), "its value is infinite")
    if metric.percent and not math.isnan(value):
        require(0 <= value <= 1, f"it is shown in percent, and its value is {value}")
    same = np.array_equal(label, examples[case][0]) and np.array_equal(probability, examples[case][1], equal_nan=True)
    require(same, "it changes its arguments")


def ignores_order(cls: Kind) -> None:
    """Check that shuffled samples have the same value, to 1e-6."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 40)
    probability = rng.dirichlet([1, 1], 40)
    if "segmentation" in cls.tasks:
        probability = rng.integers(0, 2, (40, 6)).astype(float)
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
    examples = EXAMPLES[cls.tasks[0]]
    right, wrong = (metric.value(*examples[case]) for case in ("sure and right", "sure and wrong"))
    ordered = right > wrong if metric.higher_is_better else right < wrong
    require(ordered, f"right predictions have {right} and wrong ones {wrong}: see higher_is_better")
    require(bool(metric.title), "it needs a title")
