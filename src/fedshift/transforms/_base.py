"""The base class of image transforms, which work on whole batches, and a change that differs by image."""

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
    """What happens to the mask of an image. `moves`: `apply` moves pixels without mixing their values, and so moves a
    mask that is given as a further channel. `stays`: it changes values alone. Empty where unknown: a study with masks
    refuses it."""
    per_site: ClassVar[bool] = False
    """True if it adapts to a site by `fit` and `fitted`."""

    def fit(self, batches: Iterable[Tensor]) -> Tensor:
        """Return statistics of a site's images, given in batches, for a class that says `per_site`."""
        raise TypeError(f"{type(self).__name__} takes no statistics")

    def fitted(self, own: Tensor, clients: Sequence[Tensor]) -> tuple[Transform, ...]:
        """Return what acts at a site with these statistics; `clients` are those of all clients, in training only."""
        raise TypeError(f"{type(self).__name__} takes no statistics")

    def require(self, shape: tuple[int, ...]) -> None:
        """Raise UserError for settings that cannot work on images of `shape` (channels, height, width).

        `fedshift check` calls this. It may import what the head of the workflow must not wait for.
        """

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """Transform one stored image (height, width, channels), uint8, into another such image."""
        return image

    def prepare_mask(self, mask: np.ndarray) -> np.ndarray:
        """Transform the mask (height, width), uint8, of a stored image as `prepare` moves the image."""
        return mask

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Transform a batch (batch, channels, height, width), float, into another; all randomness is from `rng`."""
        return x


@functools.cache
def shape_after(transforms: tuple[Transform, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that the network sees of stored images of `shape` (channels, height, width).

    Any transform may resize, so those that always act are tried on a black image. Vectors, (features,), keep their
    shape.
    """
    if len(shape) != 3 or not any(transform.when == "always" for transform in transforms):
        return shape
    import torch

    return tuple(_seen(transforms, torch.zeros(1, *shape)).shape[1:])


@functools.cache
def greys_after(
    transforms: tuple[Transform, ...], shape: tuple[int, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the values of a black and of a white pixel as the network sees them, for each channel.

    The transforms that always act are tried on a black and on a white image of `shape` (channels, height, width), and
    the middle pixel is taken. None for vectors, which have no grey levels.
    """
    if len(shape) != 3:
        return None
    import torch

    x = _seen(transforms, torch.stack([torch.zeros(shape), torch.full(shape, 255.0)]))
    black, white = x[:, :, x.shape[2] // 2, x.shape[3] // 2].tolist()
    return tuple(black), tuple(white)


def _seen(transforms: tuple[Transform, ...], x: Tensor) -> Tensor:
    """Return a batch after the transforms that always act."""
    for transform in transforms:
        if transform.when == "always":
            x = transform.apply(x, stream(0, "black"))
    return x


def changed_by_group(x: Tensor, groups: np.ndarray, changes: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Return a batch (batch, channels, height, width) in which each image is changed as its group is.

    `groups` (batch,) are positions in `changes`, each of which takes a batch and keeps its shape.
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
