"""The base of all image transforms.

Transforms work on whole batches. Those made of MONAI's are called once for each drawn action, with the batch folded
into MONAI's channel axis, so that a batch costs a few calls and not one for each image.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ClassVar, Literal

from ..core.registry import Plugin

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Transform(Plugin):
    """A step between the stored image and the network.

    `when` says where it acts: `prepare` (once, on uint8 images, cached in the prepared arrays), `train` (augmentation)
    or `always` (training and prediction).
    """

    kind: ClassVar[str] = "transform"
    when: ClassVar[Literal["prepare", "train", "always"]] = "always"

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """One stored image (height, width, channels), uint8, to another such image."""
        return image

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """A batch (batch, channels, height, width), float, to another; all randomness from `rng`."""
        return x


@functools.cache
def shape_after(transforms: tuple[Transform, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """What the network sees of stored images of `shape` (channels, height, width): any transform may resize.

    Those that always act are tried on a black image. Vectors, (features,), stay as they are.
    """
    always = [transform for transform in transforms if transform.when == "always"]
    if len(shape) != 3 or not always:
        return shape
    import torch

    from ..core.rng import stream

    x = torch.zeros(1, *shape)
    for transform in always:
        x = transform.apply(x, stream(0, "black"))
    return tuple(x.shape[1:])
