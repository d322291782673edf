"""The base class of image transforms, which work on whole batches, and a function for changes that differ by image."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from ..core.registry import Plugin
from ..core.rng import stream

if TYPE_CHECKING:
    from torch import Tensor


class Transform(Plugin):
    """A step between the stored image and the network.

    `when` says where it acts: `prepare` (once, on uint8 images, cached in the prepared arrays), `train` (augmentation)
    or `always` (training and prediction).
    """

    kind: ClassVar[str] = "transform"
    when: ClassVar[Literal["prepare", "train", "always"]] = "always"
    mask: ClassVar[Literal["", "stays", "moves"]] = ""
    """What the transform does to an image's mask. `moves`: `apply` moves pixels without mixing their values, so that a
    mask can be passed as a further channel. `stays`: it changes pixel values only. Empty if unknown: a study with masks
    refuses the transform."""
    per_site: ClassVar[bool] = False
    """True if the transform depends on statistics of each site's images, by `fit` and `fitted`."""

    def fit(self, batches: Iterable[Tensor]) -> Tensor:
        """Return the statistics of a site's images, which come in batches, for a class with `per_site`."""
        raise TypeError(f"{type(self).__name__} takes no statistics")

    def fitted(self, own: Tensor, clients: Sequence[Tensor]) -> tuple[Transform, ...]:
        """Return the transforms to apply at a site whose statistics are `own`, for a class with `per_site`.

        `clients` are the statistics of all clients in training; in prediction it is empty.
        """
        raise TypeError(f"{type(self).__name__} takes no statistics")

    def require(self, shape: tuple[int, ...]) -> None:
        """Raise UserError for settings that cannot work on images of `shape` (channels, height, width).

        `fedshift check` calls this. It may import slow libraries, which planning a workflow must not wait for.
        """

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """Transform one stored image (height, width, channels), uint8, into another such image."""
        return image

    def prepare_mask(self, mask: np.ndarray) -> np.ndarray:
        """Move the pixels of a stored image's mask (height, width), uint8, as `prepare` moves those of the image."""
        return mask

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Return a transformed batch (batch, channels, height, width), float. All random draws are from `rng`."""
        return x


@functools.cache
def shape_after(transforms: tuple[Transform, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the images that the network gets from stored images of `shape` (channels, height, width).

    A transform may resize, so all that act in prediction too are tried on a black image. Vectors, (features,), keep
    their shape.
    """
    if len(shape) != 3 or not any(transform.when == "always" for transform in transforms):
        return shape
    import torch

    return tuple(_seen(transforms, torch.zeros(1, *shape)).shape[1:])


@functools.cache
def greys_after(
    transforms: tuple[Transform, ...], shape: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the values that the network gets for a black and for a white pixel, each for all channels.

    The transforms that act in prediction too are tried on a black and on a white image of `shape` (channels, height,
    width), and the middle pixel is taken. Return None for vectors, which have no grey levels.
    """
    if len(shape) != 3:
        return None
    import torch

    x = _seen(transforms, torch.stack([torch.zeros(shape), torch.full(shape, 255.0)]))
    black, white = x[:, :, x.shape[2] // 2, x.shape[3] // 2].tolist()
    return tuple(black), tuple(white)


def _seen(transforms: tuple[Transform, ...], x: Tensor) -> Tensor:
    """Return a batch after the transforms that act in training and in prediction, without augmentation."""
    for transform in transforms:
        if transform.when == "always":
            x = transform.apply(x, stream(0, "black"))
    return x


def changed_by_group(x: Tensor, groups: np.ndarray, changes: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Return a batch (batch, channels, height, width) with the change `changes[groups[k]]` applied to image k.

    `groups` (batch,) are positions in `changes`. A change is a function of a batch that keeps its shape.
    """
    import torch

    from ..nn.device import array_to_device

    # Sorted on the host, which therefore does not wait for the device to learn how large each group is.
    rows = array_to_device(np.argsort(groups, kind="stable"), x)
    sizes = np.bincount(groups, minlength=len(changes)).tolist()
    out = torch.empty_like(x)
    for change, where in zip(changes, rows.split(sizes), strict=True):
        if len(where):
            out.index_copy_(0, where, change(x.index_select(0, where)))
    return out
