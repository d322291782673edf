"""Area under the ROC curve."""

from __future__ import annotations

import numpy as np

from ._base import Metric


class AUC(Metric):
    """Area under the ROC curve of class 1; NaN if the labels have only one class.

    With more than two classes, the mean over the classes that are present, each against the rest.
    """

    title = "AUC"
    percent = False

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        from sklearn.metrics import roc_auc_score

        present = np.unique(label)
        if len(present) < 2:
            return float("nan")
        classes = [1] if probability.shape[1] == 2 else present
        return float(np.mean([roc_auc_score(label == c, probability[:, c]) for c in classes]))
