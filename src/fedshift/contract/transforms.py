"""Checks of transforms: their effect on batches, stored images and masks, and the generator from which they draw."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ..core.errors import UserError
from ..core.rng import stream
from ..transforms import Transform, shape_after
from .case import Case, made, require
from .fixtures import require_alone

GIVEN: dict[str, dict[str, Any]] = {"normalize": {"mean": [0.5], "std": [0.5]}, "resize": {"size": 12}}
"""Settings, by name of a transform of this package, that suit any number of channels. Other transforms have their
defaults."""
SHAPES = ((4, 3, 8, 8), (1, 3, 8, 8), (3, 1, 6, 6))
Kind = type[Transform]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that a transform class must pass."""
    for shape in SHAPES:
        title = f"it keeps the dtype, gives the stated shape, and draws from the given generator alone: {shape}"
        yield Case(title, partial(keeps_shape_and_type, cls, shape))
    yield Case("it keeps dtype and shape of stored images", partial(keeps_stored_images, cls))
    yield Case("if it acts in prediction too, it draws nothing", partial(draws_nothing, cls))
    yield Case("it changes images", partial(changes_images, cls))
    yield Case("its result for an image depends on that image alone", partial(acts_on_each_alone, cls))
    yield Case("a mask stays with its image", partial(keeps_masks_aligned, cls))
    yield Case("a mask stays with its image where pixels stay, and in preparation", partial(follows_blocks, cls))
    yield Case("the statistics of a site do not depend on how its images are batched", partial(fits_any_batches, cls))


def _acting(cls: Kind) -> tuple[Transform, ...]:
    """Return the transform alone, or for one that adapts to sites the transforms that act at a site in its place."""
    transform: Transform = made(cls, **GIVEN.get(cls.name, {}))
    if not transform.per_site:
        return (transform,)
    own = transform.fit([_batch(6) / 255])
    acting = transform.fitted(own, [own, own])
    words = f"fitted returns a {type(acting).__name__}, and must return a tuple of transforms"
    require(isinstance(acting, tuple) and all(isinstance(one, Transform) for one in acting), words)
    return acting


def _batch(n: int) -> torch.Tensor:
    """Return n random colour images (n, 3, 12, 12) from 0 to 255."""
    return torch.rand((n, 3, 12, 12), generator=torch.Generator().manual_seed(3)) * 255


def acts_on_each_alone(cls: Kind) -> None:
    """Check that replacing one image of a batch changes only its own row, and that constant images stay finite.

    Memory layout (channels last) must make no difference either.
    """
    for transform in _acting(cls):
        x = _batch(6)
        other = x.clone()
        other[2] = 255 - x[2].flip(-1)
        one, two = (transform.apply(batch, stream(0, "alone")) for batch in (x, other))
        rows = [k for k in range(6) if not torch.equal(one[k], two[k])]
        words = "images of a batch mix or change places, though labels do not: where one changes, these rows change"
        require(set(rows) <= {2}, f"{words}: {rows}, and not 2 alone")
        if transform.when == "always":
            require_alone(partial(transform.apply, rng=stream(0, "alone")), x)
        last = x.contiguous(memory_format=torch.channels_last)
        close = torch.allclose(transform.apply(last, stream(0, "alone")), one, rtol=1e-4, atol=1e-2)
        require(close, "it makes another image where channels lie last in memory, as they do in stored images")
        for level in (0.0, 255.0):
            constant = transform.apply(torch.full_like(x, level), stream(0, "alone"))
            require(bool(constant.isfinite().all()), f"an image of {level:g} everywhere becomes infinite or NaN")


BLOCK = np.zeros((12, 12), np.uint8)
"""A mask (12, 12) with one block, which changes under every flip, rotation and shift that `_require_follows` tries."""
BLOCK[2:5, 1:6] = 3


def _require_follows(pixels: np.ndarray, mask: np.ndarray, remedy: str) -> None:
    """Raise Broken, with a remedy, if the bright block of an image fits a moved mask better than the mask itself.

    `pixels` and `mask` are (height, width). Moved masks are flipped, rotated or shifted by one pixel.
    """
    require(pixels.shape == mask.shape, f"an image becomes {pixels.shape} and its mask {mask.shape}; {remedy}")
    found = np.abs(pixels - np.median(pixels))
    turned = [np.rot90(mask, k) for k in (1, 2, 3) if mask.shape[0] == mask.shape[1] or k == 2]
    moved = [np.roll(mask, step, axis) for step in (1, -1) for axis in (0, 1)]
    others = [float((found * (m > 0)).sum()) for m in (mask[::-1], mask[:, ::-1], *turned, *moved)]
    here = float((found * (mask > 0)).sum())
    require(here >= max(others) - 1e-3 * abs(here), f"a bright block of an image does not stay in its mask; {remedy}")


def follows_blocks(cls: Kind) -> None:
    """Check that a bright block and its mask stay together.

    A transform with `mask = "stays"` must not move pixels; `prepare_mask` must move masks as `prepare` moves images.
    """
    acting = [transform for transform in _acting(cls) if transform.mask == "stays"]
    x = torch.from_numpy(np.where(BLOCK, 200, 20)).expand(2, 3, 12, 12).float()
    for transform, number in itertools.product(acting, range(10)):
        changed = transform.apply(x / 255 if cls.per_site else x, stream(number, "block"))
        _require_follows(changed[0].mean(0).numpy(), BLOCK, "say mask = 'moves', or leave pixels where they are")
    transform = made(cls)
    if transform.mask:
        prepared = transform.prepare(np.where(BLOCK, 200, 20).astype(np.uint8)[:, :, None].repeat(3, 2))
        mask = transform.prepare_mask(BLOCK.copy())
        require(bool(np.isin(mask, (0, 3)).all()), "prepare_mask mixes the classes of a mask; take the nearest pixel")
        _require_follows(prepared.mean(2), mask, "override prepare_mask to move masks as `prepare` moves images")


def fits_any_batches(cls: Kind) -> None:
    """Check that `fit` of a transform that adapts to sites returns the same statistics however images are batched."""
    if not cls.per_site:
        return
    x = _batch(7) / 255
    fit = made(cls).fit
    for batches in ([x[:5], x[5:]], [x.flip(0)], list(x.split(1))):
        words = "fit gives other statistics where the same images come in other batches; weigh batches by their images"
        require(torch.allclose(fit(batches), fit([x]), rtol=1e-4, atol=1e-6), words)


def keeps_masks_aligned(cls: Kind) -> None:
    """Check that a transform with `mask = "moves"` moves a mask, given as a further channel, along with its image."""
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
    """Check the dtype, shape and reproducibility of a transformed batch of the given shape.

    A transform may refuse images without three channels by UserError.
    """
    transform = made(cls, **GIVEN.get(cls.name, {}))
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 255
    before = x.clone()
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


def keeps_stored_images(cls: Kind) -> None:
    """Check that `prepare` returns uint8 of the same shape and the same pixels each time, and keeps its argument.

    A transform that acts on batches must leave stored images unchanged.
    """
    transform = made(cls)
    with contextlib.suppress(UserError):
        grey = np.full((16, 12, 1), 90, np.uint8)
        require(transform.prepare(grey).shape == grey.shape, "it makes another shape of a stored image of one channel")
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
    """Check that a transform with `when = "always"`, which acts in prediction too, draws nothing from the generator."""
    for transform in _acting(cls):
        if transform.when != "always":
            continue
        x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 255
        rng = stream(1)
        before = rng.bit_generator.state
        transform.apply(x, rng)
        require(rng.bit_generator.state == before, "it always acts, and draws: say when = 'train', or draw nothing")


def changes_images(cls: Kind) -> None:
    """Check that the transform changes a batch of random images or a stored image."""
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
