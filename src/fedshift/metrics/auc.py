"""Area under the ROC curve."""

from __future__ import annotations

import numpy as np

from ._base import Metric, compared, placements


class AUC(Metric):
    """Area under the ROC curve of class 1; NaN if the labels have only one class.

    With more than two classes, it is the mean over the classes that are present, each against all others.
    """

    title = "AUC"
    percent = False
    by_class = True
    logit = True
    interval_note = (
        "The interval of an AUC is made on the logit scale; where it is 1, half a pair of patients counts as wrongly "
        "ordered. Samples enter by the "
        "share of the other class that they are ranked above or below."
    )

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        if len(np.unique(label)) < 2:
            return float("nan")
        areas = [placements(label == c, probability[:, c]).area for c in compared(label, probability)]
        return float(np.mean(areas))

    def influence(self, label: np.ndarray, probability: np.ndarray) -> np.ndarray:
        """Return the derivative of the score by the weight of each sample, (n, 2 c) for c compared classes.

        Each class has two columns, one for its own samples and one for all others, elsewhere NaN: (V - AUC) / (c k),
        with the placements V, and k samples that the column is for. It gives the variance of DeLong and of Obuchowski
        (Biometrics 1997;53:567).
        """
        if len(np.unique(label)) < 2:
            return np.full((len(label), 1), np.nan)
        classes = compared(label, probability)
        columns = []
        for c in classes:
            area, placement = placements(label == c, probability[:, c])
            moved = (placement - area) / len(classes)
            columns += [np.where(side, moved / side.sum(), np.nan) for side in (label == c, label != c)]
        return np.stack(columns, 1)

    def over_folds(
        self, label: np.ndarray, probability: np.ndarray, fold: np.ndarray
    ) -> tuple[float, np.ndarray | None]:
        """Return the share of pairs, a positive and a negative sample of one fold, in the right order, and `influence`.

        It is the mean of the folds' areas under the ROC curve, each weighted by its number of such pairs.
        """
        classes = compared(label, probability)
        areas = []
        columns = []
        for c in classes:
            positive = label == c
            pairs = np.zeros(len(label))
            right = np.zeros(len(label))
            for name in np.unique(fold):
                rows = np.flatnonzero(fold == name)
                others = np.where(positive[rows], (~positive[rows]).sum(), positive[rows].sum())
                # a fold in which one class is missing has no pairs
                if others.all():
                    pairs[rows] = others
                    right[rows] = others * placements(positive[rows], probability[rows, c]).placement
            number = pairs[positive].sum()
            if not number:
                return float("nan"), np.full((len(label), 1), np.nan)
            area = right[positive].sum() / number
            moved = (right - area * pairs) / number / len(classes)
            columns += [np.where(side & (pairs > 0), moved, np.nan) for side in (positive, ~positive)]
            areas.append(area)
        return float(np.mean(areas)), np.stack(columns, 1)

    def chance(self, shares: np.ndarray) -> float:
        return 0.5
