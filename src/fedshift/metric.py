"""The base of all scores of one site's predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .registry import Plugin

if TYPE_CHECKING:
    import numpy as np


class Metric(Plugin):
    """A score of predictions. A value that is not defined, such as the AUC of one class only, is NaN.

    `title` is for people, `higher_is_better` orders tables, `percent` says how a value is written.
    """

    kind: ClassVar[str] = "metric"
    title: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = True

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        """The score of labels (n,) and class probabilities (n, classes).

        By default the mean over the samples that count.
        """
        import numpy as np

        each = self.per_sample(label, probability)
        if each is None:
            raise TypeError(f"{type(self).__name__} has no value")
        counted = each[~np.isnan(each)]
        return float(counted.mean()) if len(counted) else float("nan")

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray | None:
        """Each sample's share (n,), if the score is their mean; else None. NaN: the sample does not count."""
        return None
