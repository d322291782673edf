"""The linear classifier of the controls that have no network."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

CS = (0.01, 0.1, 1.0, 10.0)
"""Inverse strengths of the penalty, among which the validation samples choose."""
DEFAULT_C = 1.0
"""Used where a partition has no validation samples."""
Facts = dict[Hashable, float]
"""What the table of a control states: the number of features, and what was chosen."""


def fit(values: np.ndarray, labels: np.ndarray, val: np.ndarray, val_labels: np.ndarray) -> tuple[object, float]:
    """Return a classifier of features (n, k), and its C of `CS`; without validation samples C is `DEFAULT_C`.

    The classifier is fitted to `values` and `labels` alone. Of equal losses the stronger penalty is taken.
    """
    from sklearn.dummy import DummyClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(np.unique(labels)) < 2:
        return DummyClassifier(strategy="prior").fit(values, labels), DEFAULT_C
    classes = int(max(labels.max(), val_labels.max(initial=0))) + 1
    best: tuple[float, float, object] | None = None
    # Ascending C, from strong to weak penalties: of equal losses, the first has the stronger penalty.
    for penalty in CS if len(val) else (DEFAULT_C,):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=1000)).fit(values, labels)
        loss = _log_loss(probabilities(model, val, classes), val_labels) if len(val) else 0.0
        if best is None or loss < best[0]:
            best = loss, penalty, model
    assert best is not None
    return best[2], best[1]


def probabilities(model: object, values: np.ndarray, classes: int) -> np.ndarray:
    """Return the probabilities (n, classes) of a classifier; 0 for a class that it was not trained on."""
    out = np.zeros((len(values), classes))
    if len(values):
        out[:, model.classes_] = model.predict_proba(values)  # type: ignore[attr-defined]
    return out


def _log_loss(p: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log(np.maximum(p[np.arange(len(labels)), labels], 1e-12)).mean())
