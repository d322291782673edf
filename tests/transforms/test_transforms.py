"""Image transforms: against NumPy image by image, and on synthetic tissue of known stains."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from monai.transforms import CenterSpatialCrop, Flip, Rotate90, ScaleIntensityRange
from numpy.typing import NDArray

from fedshift import UserError
from fedshift.core.rng import stream
from fedshift.datasets._histology import CENTRES, draw
from fedshift.transforms import Transform
from fedshift.transforms.center_crop import CenterCrop
from fedshift.transforms.flip import RandomFlip
from fedshift.transforms.macenko import Macenko
from fedshift.transforms.rotate90 import RandomRotate90
from fedshift.transforms.scale_intensity import ScaleIntensity

Image = NDArray[np.uint8]

FLIPS = {
    "none": lambda x: x,
    "up-down": lambda x: x[:, ::-1],
    "left-right": lambda x: x[:, :, ::-1],
    "both": lambda x: x[:, ::-1, ::-1],
}
TURNS = {f"{90 * k} degrees": lambda x, k=k: np.rot90(x, k, (1, 2)) for k in range(4)}


def images(n: int = 400) -> torch.Tensor:
    """Images (3, 5, 5) that look different after any flip or turn."""
    return torch.from_numpy(np.random.default_rng(0).random((n, 3, 5, 5), dtype=np.float32))


@pytest.mark.parametrize(("transform", "actions"), [(RandomFlip(), FLIPS), (RandomRotate90(), TURNS)])
def test_each_image_goes_through_one_of_four_actions_equally_often(transform: Transform, actions: dict) -> None:
    """Each action meets 100 of 400 images, give or take three standard deviations of 8.7."""
    x = images()
    before = x.clone()
    out = transform.apply(x, stream("test"))
    assert torch.equal(x, before), "the batch given is not changed"
    taken: Counter[str] = Counter()
    for given, got in zip(x.numpy(), out.numpy(), strict=True):
        (name,) = [name for name, act in actions.items() if np.array_equal(act(given), got)]
        taken[name] += 1
    assert all(74 <= taken[name] <= 126 for name in actions)


@pytest.mark.parametrize("transform", [RandomFlip(), RandomRotate90()])
def test_randomness_is_keyed(transform: Transform) -> None:
    before = torch.random.get_rng_state()
    one, same, other = (transform.apply(images(), stream("a", k)) for k in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_probability_of_a_flip() -> None:
    x = images(6)
    assert torch.equal(RandomFlip(probability=0).apply(x, stream(0)), x)
    assert torch.equal(RandomFlip(probability=1).apply(x, stream(0)), x.flip(2, 3))


def test_a_rotation_turns_all_channels_of_an_image_together() -> None:
    x = images(64)[:, :1].expand(-1, 3, -1, -1)
    out = RandomRotate90().apply(x, stream(0))
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 0], out[:, 2])


def test_flips_are_those_of_monai() -> None:
    x, draws = images(64), stream("flips")
    vertical, horizontal = (draws.random(64) < 0.3 for _ in "yx")
    axes = [tuple(np.flatnonzero(pair)) for pair in zip(vertical, horizontal, strict=True)]
    expected = [torch.as_tensor(Flip(spatial_axis=a)(image)) if a else image for a, image in zip(axes, x, strict=True)]
    assert torch.equal(RandomFlip(probability=0.3).apply(x, stream("flips")), torch.stack(expected))


def test_turns_are_those_of_monai() -> None:
    x, turns = images(64), stream("turns").integers(0, 4, 64)
    expected = [torch.as_tensor(Rotate90(k=int(k))(image)) if k else image for k, image in zip(turns, x, strict=True)]
    assert torch.equal(RandomRotate90().apply(x, stream("turns")), torch.stack(expected))


def test_images_that_are_not_square_cannot_be_turned() -> None:
    with pytest.raises(UserError, match="rotate90: turns square images alone, and these have 4 x 5 pixels; crop or"):
        RandomRotate90().apply(images(2)[:, :, 1:], stream(0))


@pytest.mark.parametrize("size", range(1, 8))
@pytest.mark.parametrize("shape", [(5, 6), (6, 5), (4, 4), (7, 2)])
def test_the_centre_of_an_image_is_that_of_monai(size: int, shape: tuple[int, int]) -> None:
    x = torch.arange(6.0 * shape[0] * shape[1]).view(2, 3, *shape)
    expected = torch.stack([torch.as_tensor(CenterSpatialCrop(size)(image)) for image in x])
    assert torch.equal(CenterCrop(size=size).apply(x, stream(0)), expected)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, [0.0, 0.2, 1.0]), ({"low": -1}, [-1.0, -0.6, 1.0]), ({"low": 2, "high": 0}, [2.0, 1.6, 0.0])],
)
def test_grey_levels_are_mapped_linearly(settings: dict[str, float], expected: list[float]) -> None:
    grey = torch.tensor([0.0, 51.0, 255.0]).view(1, 1, 1, 3)
    out = ScaleIntensity(**settings).apply(grey, stream(0))
    assert out.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert grey.flatten().tolist() == [0, 51, 255]


def test_grey_levels_are_mapped_as_monai_maps_them() -> None:
    x = torch.arange(256, dtype=torch.float32).view(1, 1, 16, 16)
    expected = torch.as_tensor(ScaleIntensityRange(0, 255, -1, 2)(x))
    torch.testing.assert_close(ScaleIntensity(low=-1, high=2).apply(x, stream(0)), expected, rtol=1e-6, atol=1e-6)


# ---- Macenko

WHITE = np.full((96, 96, 3), 255, np.uint8)


def dotted(*colours: tuple[int, int, int]) -> Image:
    """Empty glass with single stained pixels."""
    image = WHITE.copy()
    for k, colour in enumerate(colours):
        image[3 * k, 5 * k] = colour
    return image


@pytest.mark.parametrize(("one", "two"), [(0, 1), (2, 1), (0, 2)])
def test_two_stainings_of_the_same_tissue_come_closer_in_colour(one: int, two: int) -> None:
    """The channel in which they differ most comes closer by more than half."""
    apart = {"stored": [], "normalised": []}
    for k in range(6):
        patches = [draw(np.random.default_rng(k), bool(k % 2), CENTRES[centre]) for centre in (one, two)]
        for name, pair in (("stored", patches), ("normalised", [Macenko().prepare(p) for p in patches])):
            apart[name].append(np.abs(pair[0].mean((0, 1)) - pair[1].mean((0, 1))))
    before, after = (np.mean(apart[name], 0).max() for name in ("stored", "normalised"))
    assert before > 20
    assert after < before / 2


@pytest.mark.parametrize("centre", range(5))
def test_nuclei_stay_nuclei(centre: int) -> None:
    """Haematoxylin is mapped to haematoxylin: what was dark in red, which it absorbs, is dark in red afterwards."""
    for k in range(4):
        patch = draw(np.random.default_rng(k), bool(k % 2), CENTRES[centre])
        out = Macenko().prepare(patch)
        assert out.shape == patch.shape
        assert out.dtype == np.uint8
        assert np.corrcoef(patch[..., 0].ravel(), out[..., 0].ravel())[0, 1] > 0.9


@pytest.mark.parametrize(
    "image",
    [
        WHITE,
        dotted((120, 40, 130)),
        dotted((120, 40, 130), (120, 40, 130)),
        dotted((120, 40, 130), (100, 70, 150)),
        dotted((120, 40, 130), (100, 70, 150), (90, 90, 150)),
        np.random.default_rng(0).normal(245, 3, (96, 96, 3)).clip(0, 255).astype(np.uint8),
    ],
    ids=["white", "one dot", "two equal dots", "two dots", "three dots", "noise"],
)
@pytest.mark.filterwarnings("ignore:Degrees of freedom")
def test_an_image_without_tissue_is_kept(image: Image) -> None:
    before = image.copy()
    assert np.array_equal(Macenko().prepare(image), before)


def test_a_tile_with_little_tissue_is_kept() -> None:
    """Half glass is normalised; with more tissue asked for than there is, the tile stays as it is."""
    tile = draw(np.random.default_rng(0), True, CENTRES[2])
    tile[:48] = 255
    assert not np.array_equal(Macenko().prepare(tile), tile)
    assert np.array_equal(Macenko(tissue=0.6).prepare(tile), tile)
    for level in (0, 120, 255):
        flat = np.full_like(tile, level)
        assert np.array_equal(Macenko().prepare(flat), flat)
