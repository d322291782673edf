"""The classes of a score that takes two classes, or each of several against the rest."""

from __future__ import annotations

import numpy as np


def compared(label: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return the classes that are compared with the rest: class 1 of two; of more, those that are present."""
    if probability.shape[1] == 2:
        return np.array([1])
    return np.unique(label)
