"""The base of all scores of one site's predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..core.registry import Plugin

if TYPE_CHECKING:
    import numpy as np


class Metric(Plugin):
    """A score of predictions. A value that is not defined, such as the AUC of one class only, is NaN.

    `title` is for people, `higher_is_better` orders tables, `percent` says how a value is written. `by_class` says that
    it is made of single classes, so that an interval takes enough patients of each that counts.
    """

    kind: ClassVar[str] = "metric"
    title: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = True
    by_class: ClassVar[bool] = False

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        """The score of labels (n,) and class probabilities (n, classes).

        By default the mean over the samples that count, and then over the columns of `per_sample`.
        """
        import numpy as np

        each = self.per_sample(label, probability)
        if each is None:
            raise TypeError(f"{type(self).__name__} has no value")
        each = each.reshape(len(label), -1)
        counted = (~np.isnan(each)).sum(0)
        return float((np.nansum(each, 0) / counted).mean()) if counted.all() else float("nan")

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray | None:
        """Each sample's share (n,), if the score is their mean; None if it is no such mean, and gets no interval.

        NaN: the sample does not count. A score that is a mean of means, such as the mean recall over classes, gives a
        column for each (n, columns).
        """
        return None

    @property
    def has_interval(self) -> bool:
        """Whether samples can be drawn anew to bound it: it is made of what each sample adds."""
        return type(self).per_sample is not Metric.per_sample
