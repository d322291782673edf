"""Different changes for the images of a batch, with one call for all images that are changed alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def changed_by_group(x: Tensor, groups: np.ndarray, changes: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Return a batch (batch, channels, height, width) in which each image is changed as its group is.

    `groups` (batch,) are positions in `changes`, each of which takes a batch and keeps its shape.
    """
    import torch

    from ..nn.transfer import array_to_device

    # Sorted on the host, which therefore does not wait for the device to learn how large each group is.
    rows = array_to_device(np.argsort(groups, kind="stable"), x)
    sizes = np.bincount(groups, minlength=len(changes)).tolist()
    out = torch.empty_like(x)
    for change, where in zip(changes, rows.split(sizes), strict=True):
        if len(where):
            out.index_copy_(0, where, change(x.index_select(0, where)))
    return out
