"""Accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Metric

if TYPE_CHECKING:
    import numpy as np


class Accuracy(Metric):
    """Share of samples whose most probable class is the label."""

    title = "Accuracy"

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        return (probability.argmax(1) == label).astype(float)
