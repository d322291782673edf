"""Predicted masks that are kept beside the numbers of a site."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ..io.images import encoded

if TYPE_CHECKING:
    from torch import Tensor

    from ..tasks import Task


class MaskReader:
    """Function from logits and targets of a batch to predictions, which also takes down predicted masks.

    Parameters
    ----------
    task : the task
    order : the stored rows of the site (n,) in the order in which they are predicted
    spacing : millimetres between rows and columns of each image (n, 2) in stored order; None if they are unknown

    One reader serves one site. Until the site is done it holds the mask of each image as a PNG file, since only then it
    is known which ones are kept: a kilobyte or two an image.
    """

    def __init__(self, task: Task, order: np.ndarray, spacing: np.ndarray | None = None) -> None:
        self.task = task
        self.order = order
        self.spacing = spacing
        # All files in one place, and where each one ends: see `engine.prediction.probabilities`.
        self._files = bytearray()
        self._ends = [0]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the predictions of a batch (batch, columns); see `Task.predictions`."""
        spacing = None
        if self.spacing is not None:
            start = len(self._ends) - 1
            spacing = self.spacing[self.order[start : start + len(y)]]
        if self.task.has_masks:
            for mask in logits.argmax(1).cpu().numpy().astype(np.uint8):
                self._files += encoded(mask)
                self._ends.append(len(self._files))
        return self.task.predictions(logits, y, spacing=spacing)

    def kept(self, predictions: np.ndarray) -> dict[str, list[bytes | None]]:
        """Return the column `mask` of a site, with None for images whose mask is not kept; nothing without masks.

        `predictions` (n, columns) are those of all images in stored order.
        """
        if not self.task.has_masks:
            return {}
        wanted = set(self.task.with_mask(predictions).tolist())
        column: list[bytes | None] = [None] * len(self.order)
        for row, (start, end) in zip(self.order.tolist(), itertools.pairwise(self._ends), strict=True):
            if row in wanted:
                column[row] = bytes(self._files[start:end])
        return {"mask": column}
