"""Scores of one site's predictions, one file each; short ones share the files `_classes` and `_masks`.

A file here turns labels and probabilities into a number, and gives the contribution of each sample to it.
Means over sites, intervals and comparisons belong to `analysis`.
"""

from ._base import Metric, Placements, midranks, placements, reached

__all__ = ["SHARED_FILES", "Metric", "Placements", "midranks", "placements", "reached"]

SHARED_FILES = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "brier", "ece", "sensitivity", "specificity"), "_classes"),
    **dict.fromkeys(("assd", "dice", "false_alarms", "hd95", "iou", "missed", "nsd", "volume_error"), "_masks"),
}
"""The module of each metric that shares a file with others; its class states the `name` of the metric."""
