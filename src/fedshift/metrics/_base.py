"""The base class of scores of one site's predictions, and functions for samples in the order of their scores."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from ..core.registry import Plugin


class Metric(Plugin):
    """A score of the predictions for one site. An undefined value, such as the AUC of a single class, is NaN.

    Attributes
    ----------
    tasks : names of the tasks whose predictions it scores
    title : name on pages; inside a sentence it begins with a small letter, unless it is an abbreviation
    in_sentence : name inside a sentence, if it is another than the one that follows from `title`
    higher_is_better : whether a larger value is better
    percent : whether values are shares from 0 to 1, which pages show in percent
    by_class : whether the score consists of scores of single classes, so that an interval needs enough patients of
        each class
    logit : whether the confidence interval of a value is made on the logit scale, which keeps it between 0 and 1
    least : lowest possible value, where intervals end; with `percent` it is 0
    decides : whether only the most probable class of each sample counts, so that a confusion matrix gives the score
    interval_note : sentences for the methods of a page about an interval that is made in a special way
    caveat : a warning that readers of the score need
    """

    kind: ClassVar[str] = "metric"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    title: ClassVar[str] = ""
    in_sentence: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = True
    percent: ClassVar[bool] = True
    by_class: ClassVar[bool] = False
    logit: ClassVar[bool] = False
    least: ClassVar[float] = -np.inf
    decides: ClassVar[bool] = False
    interval_note: ClassVar[str] = ""
    caveat: ClassVar[str] = ""

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        """Return the score of labels (n,) and class probabilities (n, classes).

        By default, it is the mean of `per_sample` over the samples that count (no NaN), then over its columns. It is
        NaN if in some column no sample counts.
        """
        parts = self.per_sample(label, probability)
        if parts is None:
            raise TypeError(f"{type(self).__name__} has no value")
        parts = parts.reshape(len(label), -1)
        counted = (~np.isnan(parts)).sum(0)
        # A part without any sample, such as a class that is absent, makes the whole score undefined.
        if counted.all():
            return float((np.nansum(parts, 0) / counted).mean())
        return float("nan")

    def per_sample(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray | None:
        """Return the contribution of each sample (n,) if the score is the mean of such numbers, else None.

        NaN means that a sample does not count. A score that is a mean of means, such as the mean recall over classes,
        returns a column for each inner mean: (n, columns).
        """
        return None

    def influence(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray | None:
        """Return the derivative of the score by the weight of each sample, or None for a score without intervals.

        It is (n,). If the score has parts in which different samples count, such as the recalls of single classes, it
        is (n, columns), one for each part: the derivative is the sum over columns, and NaN means that a sample does not
        count in a part. By default, it is computed from `per_sample`.
        """
        parts = self.per_sample(label, probability)
        if parts is None:
            return None
        parts = parts.reshape(len(label), -1)
        counted = (~np.isnan(parts)).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):  # a part without any sample that counts is NaN
            mean = np.nansum(parts, 0) / counted
            return np.asarray((parts - mean) / counted / parts.shape[1])

    def over_folds(
        self, label: np.ndarray, probability: np.ndarray, fold: np.ndarray
    ) -> tuple[float, np.ndarray | None]:
        """Return the score of samples that several models predicted, one model for each fold, and its `influence`.

        `fold` (n,) has the name of the fold of each sample. A score with `per_sample` is computed from all samples
        together. Any other score compares samples with each other, but outputs of two models are not comparable: by
        default, it is the mean of the folds' scores, each weighted by its share of the samples.
        """
        if self.per_sample(label, probability) is not None:
            return self.value(label, probability), self.influence(label, probability)
        members = [np.flatnonzero(fold == name) for name in np.unique(fold)]
        weights = [len(rows) / len(label) for rows in members]
        values = [self.value(label[rows], probability[rows]) for rows in members]
        whole = float(np.dot(weights, values))
        influences = [self.influence(label[rows], probability[rows]) for rows in members]
        out = None
        for rows, weight, value, influence in zip(members, weights, values, influences, strict=True):
            if influence is None:
                return whole, None
            if out is None:
                out = np.full((len(label), influence.shape[1]), np.nan)
            # A sample moves the score of its fold, and the weight of that fold among the others.
            out[rows] = weight * influence + (value - whole) / len(label)
        return whole, out

    def chance(self, shares: np.ndarray) -> float:
        """Return the expected score of guessing at random. `shares` (classes,) are the classes' shares of the samples.

        By default, it is NaN: unknown.
        """
        return float("nan")

    @property
    def scale(self) -> str:
        """The name of the way in which the confidence interval of a value is made.

        `share`: Wilson's interval, for a share of samples that are right or wrong. `unit`: Wilson's interval too, for a
        mean of numbers from 0 to 1, with the number of right-or-wrong samples that has the same variance. `logit`: an
        interval on the logit scale. `mean`: the t interval of a mean; there is none if all samples have the same
        number.
        """
        if self.logit:
            return "logit"
        if self.percent:
            return "share"
        return "mean"

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest possible value of the score; infinite where there is no bound."""
        if self.percent or self.logit:
            return 0.0, 1.0
        return self.least, np.inf

    @property
    def has_interval(self) -> bool:
        """Return whether the score has an interval: its class defines `per_sample` or `influence`."""
        # The base class derives each from the other, so that one of the two must be overridden.
        cls = type(self)
        return cls.per_sample is not Metric.per_sample or cls.influence is not Metric.influence


def compared(label: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Return the classes that a ranking score compares with all other classes: class 1 if there are two classes.

    With more than two classes, each class that is in `label` (n,) is compared with all others.
    """
    if probability.shape[1] == 2:
        return np.array([1])
    return np.unique(label)


class Placements(NamedTuple):
    """The area under a ROC curve with its placements.

    Attributes
    ----------
    area : the area under the curve
    placement : for each sample (n,), the share of negatives below it if it is positive (V10), and the share of
        positives above it if it is negative (V01). Ties count one half. Their mean over either class is `area`.
    """

    area: float
    placement: np.ndarray


def midranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (n,) of values, from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[place]


def placements(positive: np.ndarray, score: np.ndarray) -> Placements:
    """Return the area under the ROC curve and the placements of samples (n,); both classes must be present.

    With midranks T over all samples and over each class alone, V10 = (T - T_positive) / n and
    V01 = 1 - (T - T_negative) / m for m positives and n negatives (Sun and Xu, IEEE Signal Process Lett 2014;21:1389).
    """
    positive = np.asarray(positive, dtype=bool)
    over_all = midranks(score)
    within = np.empty(len(score))
    for members in (positive, ~positive):
        within[members] = midranks(score[members])
    opposite = np.where(positive, (~positive).sum(), positive.sum())
    below = (over_all - within) / opposite
    placement = np.where(positive, below, 1 - below)
    return Placements(float(placement[positive].mean()), placement)


def reached(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of positives, and of all samples, that score at least as much as each distinct score.

    Both are (k,), for the k distinct scores from the highest down. `positive` (n,) is bool.
    """
    order = np.argsort(-score, kind="stable")
    last = np.flatnonzero(np.append(np.diff(score[order]) != 0, True))
    return np.cumsum(positive[order])[last], last + 1
