"""Tasks, one a file: what a network is trained to predict for an image.

A file here says what a target is, how outputs become a loss, and which numbers of each image are kept as predictions.
Networks, metrics of these numbers and pages do not belong here.
"""

from ._base import Control, Task
from .classification import Classification
from .segmentation import Segmentation

CLASSIFICATION = Classification()
"""The task of a study that names none."""

__all__ = ["CLASSIFICATION", "Classification", "Control", "Segmentation", "Task"]
