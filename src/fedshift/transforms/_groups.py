"""Different changes of the images of one batch, with MONAI and by a single index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._tracking import without_tracking

if TYPE_CHECKING:
    from torch import Tensor


def changed_by_group(x: Tensor, groups: np.ndarray, transforms: Sequence[Any]) -> Tensor:
    """Return a batch (batch, channels, height, width) in which each image is changed by the transform of its group.

    `groups` (batch,) are positions in `transforms`, which are MONAI's, or None to leave images as they are. Where the
    images of each group are is worked out on the host, so that it does not wait for the device.
    """
    import torch

    from ..nn.transfer import array_to_device

    rows = array_to_device(np.argsort(groups, kind="stable"), x)
    sizes = np.bincount(groups, minlength=len(transforms)).tolist()
    out = torch.empty_like(x)
    with without_tracking():
        for transform, where in zip(transforms, rows.split(sizes), strict=True):
            if len(where):
                images = x.index_select(0, where)
                changed = images if transform is None else transform(images.flatten(0, 1))
                out.index_copy_(0, where, changed.view_as(images))
    return out
