"""Calls of MONAI's transforms on batches, without its records, and with different changes for each image."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_TURN = threading.RLock()
"""MONAI has one switch for the whole process, and batches may be read in a thread."""


@contextmanager
def without_tracking() -> Iterator[None]:
    """Let MONAI's transforms return plain tensors inside the block, which halves the time of a flip of small images."""
    from monai.data import get_track_meta, set_track_meta

    with _TURN:
        before = get_track_meta()
        set_track_meta(False)
        try:
            yield
        finally:
            set_track_meta(before)


def changed_by_group(x: Tensor, groups: np.ndarray, transforms: Sequence[Any]) -> Tensor:
    """Return a batch (batch, channels, height, width) in which each image is changed by the transform of its group.

    `groups` (batch,) are positions in `transforms`, which are MONAI's, or None to leave images as they are.
    """
    import torch

    from ..nn.transfer import array_to_device

    # Sorted on the host, which therefore does not wait for the device to learn how large each group is.
    rows = array_to_device(np.argsort(groups, kind="stable"), x)
    sizes = np.bincount(groups, minlength=len(transforms)).tolist()
    out = torch.empty_like(x)
    with without_tracking():
        for transform, where in zip(transforms, rows.split(sizes), strict=True):
            if len(where):
                images = x.index_select(0, where)
                # MONAI changes one image at a time: a batch passes as one image of many channels.
                changed = images if transform is None else transform(images.flatten(0, 1))
                out.index_copy_(0, where, changed.view_as(images))
    return out
