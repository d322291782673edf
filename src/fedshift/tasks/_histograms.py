"""How probable a structure is at its own pixels and at others: its mask at any threshold can be measured from that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.units import IGNORED

THRESHOLDS = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-10, 10, 101)))])
"""Thresholds on the probability of a structure: 0, whose mask is the whole image, and even steps of the log odds.

Networks are sure of most pixels, so that even steps of the probability would leave most thresholds without a pixel.
"""
PLACES = ("inside", "outside")
"""Pixels of a structure, and all others that are not ignored."""


def histograms(p: np.ndarray, reference: np.ndarray, structures: Sequence[Sequence[int]]) -> np.ndarray:
    """Return how many pixels of PLACES have a probability from each threshold to the next.

    Parameters
    ----------
    p : probabilities of the classes (n, classes, height, width); NaN counts as 0
    reference : class numbers of the pixels (n, height, width)
    structures : the classes that together are a structure, of each structure

    Returns
    -------
    Numbers of pixels (n, structures, 2, thresholds), int32.
    """
    counts = np.empty((len(p), len(structures), len(PLACES), len(THRESHOLDS)), dtype=np.int32)
    for k, classes in enumerate(structures):
        bins = np.searchsorted(THRESHOLDS, np.nan_to_num(p[:, list(classes)].sum(1)), side="right") - 1
        inside = np.isin(reference, classes)
        for side, pixels in enumerate((inside, ~inside & (reference != IGNORED))):
            for i, chosen in enumerate(pixels):
                counts[i, k, side] = np.bincount(bins[i][chosen], minlength=len(THRESHOLDS))
    return counts
