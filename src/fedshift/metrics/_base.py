"""The base class of scores of one site's predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from ..core.registry import Plugin

Resampler = Callable[[np.ndarray], np.ndarray]
"""Returns the scores (draws,) of samples that count so many times (draws, n)."""


class Metric(Plugin):
    """A score of predictions. An undefined value, such as the AUC of a single class, is NaN.

    `title` is its name on pages, `higher_is_better` orders tables, and `percent` says whether values are shown in
    percent. `by_class` means that the score consists of scores of single classes, so that an interval needs enough
    patients of each of these classes. `logit` means that the interval of a value is made on the logit scale, which
    keeps it between 0 and 1; a value of 0 or 1 then has none. `interval_note` says for the methods of a page how the
    interval is made where that is special, and `caveat` what readers of the score must know.
    """

    kind: ClassVar[str] = "metric"
    title: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = True
    by_class: ClassVar[bool] = False
    logit: ClassVar[bool] = False
    interval_note: ClassVar[str] = ""
    caveat: ClassVar[str] = ""

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        """Return the score of labels (n,) and class probabilities (n, classes).

        By default, it is the mean over the samples that count, and then over the columns, of `per_sample`.
        """
        each = self.per_sample(label, probability)
        if each is None:
            raise TypeError(f"{type(self).__name__} has no value")
        each = each.reshape(len(label), -1)
        counted = (~np.isnan(each)).sum(0)
        return float((np.nansum(each, 0) / counted).mean()) if counted.all() else float("nan")

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray | None:
        """Return the contribution of each sample, (n,), if the score is their mean; else None, and no interval.

        NaN means that a sample does not count. A score that is a mean of means, such as the mean recall over classes,
        returns a column for each of these means: (n, columns).
        """
        return None

    def resampler(self, label: np.ndarray, probability: np.ndarray) -> Resampler | None:
        """Return a function that scores resamples of these samples, where these scores make the interval.

        By default None: the interval is made of the means of `per_sample` in the resamples.
        """
        return None

    def chance(self, shares: np.ndarray) -> float:
        """Return the expected score of a guess where the classes have these shares of the samples (classes,).

        NaN where a score says nothing about guessing.
        """
        return float("nan")

    @property
    def has_resampler(self) -> bool:
        """Return whether resamples are scored by `resampler`."""
        return type(self).resampler is not Metric.resampler

    @property
    def has_interval(self) -> bool:
        """Return whether resampling gives an interval, because the score consists of contributions of samples."""
        return type(self).per_sample is not Metric.per_sample
