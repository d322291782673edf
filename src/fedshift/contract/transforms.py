"""The contract of transforms: of batches, of stored images, and of randomness."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ..core.errors import UserError
from ..core.rng import stream
from ..transforms import Transform, shape_after
from .case import Case, Generators, made, require

GIVEN: dict[str, dict[str, Any]] = {"normalize": {"mean": [0.5], "std": [0.5]}, "resize": {"size": 12}}
"""Settings of known transforms that fit any number of channels; others run with their defaults."""
SHAPES = ((4, 3, 8, 8), (1, 3, 8, 8), (3, 1, 6, 6))
Kind = type[Transform]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what transforms must satisfy."""
    for shape in SHAPES:
        title = f"it keeps the type, has the shape that it says, and draws as it is told: {shape}"
        yield Case(title, partial(keeps_shape_and_type, cls, shape))
    yield Case("it keeps the form of stored images", partial(keeps_stored_images, cls))
    yield Case("if it always acts, it draws nothing", partial(draws_nothing, cls))
    yield Case("it changes images", partial(changes_images, cls))
    yield Case("a mask stays with its image", partial(keeps_masks_aligned, cls))


def keeps_masks_aligned(cls: Kind) -> None:
    """Check that a mask that is given as a further channel moves with its image, if the class says so."""
    transform = made(cls, **GIVEN.get(cls.name, {}))
    if transform.mask != "moves":
        require(transform.mask in ("", "stays"), f"`mask` is {transform.mask!r}, and must be moves, stays or empty")
        return
    mask = torch.randint(0, 4, (8, 1, 12, 12), generator=torch.Generator().manual_seed(0)).float()
    for number in range(20):
        image, moved = transform.apply(torch.cat([mask * 50, mask], 1), stream(number, "masks")).split(1, 1)
        require(torch.equal(image, moved * 50), "a mask that equals its image does not equal it afterwards")
        require(bool(torch.isin(moved, mask).all()), "it mixes the values of a mask")


def keeps_shape_and_type(cls: Kind, shape: tuple[int, ...]) -> None:
    """Check what comes of a batch. A transform may refuse images that have not three channels."""
    transform = made(cls, **GIVEN.get(cls.name, {}))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255
    before = x.clone()
    generators = Generators()
    try:
        changed, again = (transform.apply(x, stream(0, "test")) for _ in range(2))
    except UserError:
        require(shape[1] != 3, "it must take images of three channels")
        return
    _, *side = shape_after((transform,), shape[1:])
    expected = (*x.shape[:2], *side)
    require(isinstance(changed, torch.Tensor), f"it returns a {type(changed).__name__}, and must return a tensor")
    require(changed.dtype == x.dtype, f"it makes {changed.dtype} of {x.dtype}: return the dtype that it is given")
    require(tuple(changed.shape) == expected, f"it makes the shape {tuple(changed.shape)}, and says {expected}")
    require(torch.equal(changed, again), "it must draw from the generator that it is given, and from no other")
    require(torch.equal(x, before), "it changes its argument")
    generators.require_unchanged()


def keeps_stored_images(cls: Kind) -> None:
    """Check what comes of a stored image."""
    transform = made(cls)
    image = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)
    before = image.copy()
    changed, again = (transform.prepare(image) for _ in range(2))
    require(
        (changed.shape, changed.dtype) == (image.shape, np.uint8),
        f"it makes {changed.shape}, {changed.dtype} of a stored image",
    )
    require(np.array_equal(changed, again), "the second time it makes another image")
    require(np.array_equal(image, before), "it changes its argument")
    require(transform.when in ("prepare", "train", "always"), f"`when` is {transform.when!r}")
    if transform.when != "prepare":
        require(np.array_equal(changed, image), "it acts on batches, and must leave stored images as they are")


def draws_nothing(cls: Kind) -> None:
    """Check a transform that acts in prediction too, where no randomness is given."""
    transform = made(cls)
    if transform.when == "always":
        x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 255
        rng = stream(1)
        before = rng.bit_generator.state
        transform.apply(x, rng)
        require(rng.bit_generator.state == before, "it always acts, and draws: say when = 'train', or draw nothing")


def changes_images(cls: Kind) -> None:
    """Check that a transform does anything, to a batch or to a stored image."""
    # What a transform does that adapts to a site depends on `fitted`.
    if cls.per_site:
        return
    transform = made(cls, **GIVEN.get(cls.name, {}))
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 255
    stored = x[0].permute(1, 2, 0).byte().numpy()
    # A transform may act on few images.
    unchanged = all(torch.equal(transform.apply(x, stream(seed, "test")), x) for seed in range(20))
    same = unchanged and np.array_equal(transform.prepare(stored), stored)
    require(not same, "no image changes: neither apply nor prepare has an effect")
