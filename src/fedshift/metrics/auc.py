"""Area under the ROC curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._base import Metric

if TYPE_CHECKING:
    import numpy as np


class AUC(Metric):
    """Area under the ROC curve of class 1. Not defined (NaN) where there is one class only.

    With more than two classes: the mean over present classes of class against rest.
    """

    title = "AUC"
    percent = False

    def value(self, label: np.ndarray, probability: np.ndarray) -> float:
        import numpy as np
        from sklearn.metrics import roc_auc_score

        present = np.unique(label)
        if len(present) < 2:
            return float("nan")
        classes = [1] if probability.shape[1] == 2 else present
        return float(np.mean([roc_auc_score(label == c, probability[:, c]) for c in classes]))
