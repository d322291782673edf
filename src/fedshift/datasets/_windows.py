"""Feature vectors of correlations between regions, in sliding windows of their time series."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

LARGEST = 1 - 1e-7
"""Largest correlation that is transformed. Two equal series have correlation 1, and Fisher's z of 1 is infinite."""


def connectivity(series: np.ndarray, window: int, clip: bool) -> np.ndarray:
    """Return Fisher's z of Pearson's correlation of every two columns, in every window of `window` rows, stride 1.

    (frames, regions) float -> (frames - window + 1, regions (regions - 1) / 2) float32: the upper triangle row by row,
    without the diagonal. If a region is constant in a window, its correlations there are 0. With `clip`, negative
    values become 0.
    """
    # shape (windows, regions, window)
    seen = np.lib.stride_tricks.sliding_window_view(series, window, axis=0)
    centred = seen - seen.mean(axis=2, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=2, keepdims=True))
    constant = seen.min(axis=2, keepdims=True) == seen.max(
        axis=2, keepdims=True
    )  # rounding may leave its length above 0
    # rounding may leave the length of a constant window above 0, so it is told by its values
    unit = np.where(constant, 0, centred / np.where(constant | (length == 0), 1, length))
    above = np.triu_indices(series.shape[1], k=1)
    r = (unit @ unit.transpose(0, 2, 1))[:, above[0], above[1]]
    z = np.arctanh(r.clip(0 if clip else -LARGEST, LARGEST))
    return z.astype(np.float32)


class Recent:
    """A cache of the last `size` results of `make(k)`. Threads that ask at the same time share one call."""

    def __init__(self, make: Callable[[int], np.ndarray], size: int = 4) -> None:
        self.make = make
        self.size = size
        self._made: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, k: int) -> np.ndarray:
        with self._lock:
            if k not in self._made:
                self._made[k] = self.make(k)
                while len(self._made) > self.size:
                    self._made.popitem(last=False)
            self._made.move_to_end(k)
            return self._made[k]


def scales(sites: np.ndarray, vectors: Callable[[int], np.ndarray]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return mean and standard deviation of each feature over the vectors of each site; a deviation of 0 becomes 1.

    `vectors(k)` returns those of subject k, (n, features), of site `sites[k]`. Memory holds one subject's vectors.
    """
    scale = {}
    for site in dict.fromkeys(sites.tolist()):
        n = 0
        mean = np.zeros(())
        square = np.zeros(())
        # Chan's update of mean and sum of squares: one subject in memory, and no difference of large sums
        for k in np.flatnonzero(sites == site):
            x = vectors(int(k)).astype(np.float64)
            shift = x.mean(axis=0) - mean
            total = n + len(x)
            square = square + x.var(axis=0) * len(x) + shift**2 * n * len(x) / total
            n = total
            mean = mean + shift * len(x) / total
        deviation = np.sqrt(square / n)
        scale[site] = mean, np.where(deviation > 0, deviation, 1)
    return scale
