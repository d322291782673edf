"""Scores of the most probable class of each sample, and of its probabilities."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from ._base import Metric


class Accuracy(Metric):
    """Share of samples whose most probable class is the label."""

    name = "accuracy"
    title = "Accuracy"
    decides = True

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        return (probability.argmax(1) == label).astype(float)

    def chance(self, shares: np.ndarray) -> float:
        return 1 / len(shares)


class BalancedAccuracy(Metric):
    """Mean recall over the classes that are present, independent of prevalence; NaN if there is only one class."""

    name = "balanced_accuracy"
    title = "Balanced accuracy"
    by_class = True
    decides = True

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        present = np.unique(label)
        if len(present) < 2:
            return np.full((len(label), 1), np.nan)
        right = probability.argmax(1) == label
        return np.where(label[:, None] == present, right[:, None], np.nan)

    def chance(self, shares: np.ndarray) -> float:
        return 1 / len(shares)


class Recall(Metric):
    """Share of the samples of class `of` that are predicted as `of`; NaN without any, and for more than two classes."""

    by_class = True
    decides = True
    of: ClassVar[int]

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        if probability.shape[1] != 2:
            return np.full(len(label), np.nan)
        return np.where(label == self.of, probability.argmax(1) == self.of, np.nan)


class Sensitivity(Recall):
    """Share of the positive samples (class 1) that are predicted as positive; for two classes only."""

    name = "sensitivity"
    title = "Sensitivity"
    of = 1


class Specificity(Recall):
    """Share of the negative samples (class 0) that are predicted as negative; for two classes only."""

    name = "specificity"
    title = "Specificity"
    of = 0


class Brier(Metric):
    """Mean squared error of the class probabilities.

    With two classes, it is the error of class 1 (0 to 1); with more, the sum over classes (0 to 2).
    """

    name = "brier"
    title = "Brier score"
    in_sentence = "Brier score"
    higher_is_better = False
    percent = False
    least = 0.0

    @property
    def scale(self) -> str:
        return "unit"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        if probability.shape[1] == 2:
            return (probability[:, 1] - label) ** 2
        return ((probability - np.eye(probability.shape[1])[label]) ** 2).sum(1)


class ECE(Metric):
    """Expected calibration error: gap between confidence and accuracy, averaged over bins of the top confidence.

    Guo et al., On Calibration of Modern Neural Networks (2017), equation 3; bins are open on the left.
    """

    name = "ece"
    title = "ECE"
    higher_is_better = False
    percent = False
    least = 0.0
    bins: int = Field(15, ge=1, description="number of bins of equal width between 0 and 1")

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        confidence = probability.max(1)
        excess = (probability.argmax(1) == label) - confidence
        member = np.clip(np.ceil(confidence * self.bins).astype(int) - 1, 0, self.bins - 1)
        return float(np.abs(np.bincount(member, excess)).sum() / len(label))
