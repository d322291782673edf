"""Sensitivity: recall of the positive class."""

from ._binary import Recall


class Sensitivity(Recall):
    """Share of the positive samples (class 1) that are predicted as positive; for two classes only."""

    title = "Sensitivity"
    of = 1
