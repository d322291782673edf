"""Scores of one site's predictions, one file each.

A file here turns labels and probabilities into a number, and gives the contribution of each sample to it.
Means over sites, intervals and comparisons belong to `analysis`.
"""

from ._base import Metric
from ._placements import Placements, midranks, placements
from ._thresholds import reached

__all__ = ["Metric", "Placements", "midranks", "placements", "reached"]
