"""Specificity."""

from ._binary import Recall


class Specificity(Recall):
    """Share of the negative samples (class 0) that are found; for two classes only."""

    title = "Specificity"
    of = 0
