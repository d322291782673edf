"""Specificity: recall of the negative class."""

from ._binary import Recall


class Specificity(Recall):
    """Share of the negative samples (class 0) that are predicted as negative; for two classes only."""

    title = "Specificity"
    of = 0
