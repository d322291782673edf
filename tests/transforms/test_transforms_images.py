"""Transforms of photographs, against torchvision, Pillow and NumPy."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as reference

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.core.rng import stream
from fedshift.data.samples import MappedSamples
from fedshift.transforms import Transform
from fedshift.transforms.flip import RandomFlip
from fedshift.transforms.normalize import Normalize
from fedshift.transforms.random_crop import RandomCrop
from fedshift.transforms.resize import Resize
from fedshift.transforms.rotate import RandomRotation

CHANNELS = pytest.mark.parametrize("channels", [1, 3])


def photographs(n: int, channels: int = 3, height: int = 41, width: int = 41) -> NDArray[np.uint8]:
    """(n, height, width, channels): smooth patterns, alike nowhere, and nowhere black."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    waves = rng.uniform(-0.5, 0.5, (n, 1, 1, channels, 2)), rng.uniform(0, 6, (n, 1, 1, channels))
    seen = np.sin(waves[0][..., 0] * y[..., None] + waves[0][..., 1] * x[..., None] + waves[1])
    return (130 + 110 * seen).round().astype(np.uint8)


def batch(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).float()


class Told:
    """A stand-in for a generator that draws given values and records the bounds."""

    def __init__(self, values: Any) -> None:
        self.values, self.bounds = np.asarray(values), ()

    def uniform(self, low: float, high: float, size: int) -> NDArray[np.float64]:
        self.bounds = low, high
        assert size == len(self.values)
        return self.values

    def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
        self.bounds = low, high
        return self.values[..., :size]


# ---- what all have in common

ALL = [RandomRotation(), RandomCrop(), RandomFlip(vertical=False), Normalize(), Resize(size=24)]
RANDOM = [t for t in ALL if t.when == "train"]


@pytest.mark.parametrize("transform", ALL, ids=lambda t: t.name)
@pytest.mark.parametrize("n", [1, 5])
def test_a_batch_stays_a_batch_of_float32(transform: Transform, n: int) -> None:
    x = batch(photographs(n))
    before = x.clone()
    out = transform.apply(x, stream(0))
    assert out.dtype == torch.float32
    assert out.shape == ((n, 3, 24, 24) if transform.name == "resize" else x.shape)
    assert torch.equal(x, before), "the batch given is not changed"


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: t.name)
def test_all_randomness_is_the_generators(transform: Transform) -> None:
    before = torch.random.get_rng_state(), pickle.dumps(np.random.get_state())  # noqa: NPY002 - it is what is checked
    x = batch(photographs(20))
    one, same, other = (transform.apply(x, stream("a", k)) for k in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]  # noqa: NPY002


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: t.name)
def test_augmentation_is_for_training_alone(transform: Transform) -> None:
    images = photographs(6)
    samples = MappedSamples(images, np.arange(6), np.zeros(6, int), (transform,))
    assert samples.random
    assert torch.equal(samples.batch(np.arange(6))[0], batch(images))
    assert not torch.equal(samples.batch(np.arange(6), stream(0))[0], batch(images))


@pytest.mark.parametrize("transform", RANDOM, ids=lambda t: t.name)
def test_the_channels_of_an_image_go_together(transform: Transform) -> None:
    x = batch(photographs(8, channels=1)).expand(-1, 3, -1, -1)
    out = transform.apply(x, stream(0))
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 0], out[:, 2])


# ---- rotation

ANGLES = np.array([-30.0, -12.3, -1.0, 0.0, 7.7, 29.9])


@CHANNELS
@pytest.mark.parametrize("size", [(41, 41), (40, 40), (30, 47)])
def test_rotations_are_torchvisions(channels: int, size: tuple[int, int]) -> None:
    """Pixels agree apart from a few that are half way between two; positive angles turn counter-clockwise."""
    images = photographs(len(ANGLES), channels, *size)
    told = Told(ANGLES)
    out = RandomRotation().apply(batch(images), told)  # type: ignore[arg-type]
    assert told.bounds == (-30, 30)
    for x, got, angle in zip(batch(images), out, ANGLES, strict=True):
        expected, wrong = (
            reference.rotate(x, float(sign * angle), InterpolationMode.NEAREST, fill=[0.0]) for sign in (1, -1)
        )
        agree = float((got == expected).all(0).float().mean())
        assert agree > 0.995
        if abs(angle) > 5:
            assert float((got == wrong).all(0).float().mean()) < 0.6, "the reference tells directions apart"


def test_a_rotation_by_nothing_and_by_right_angles() -> None:
    images = photographs(4)
    told: Any = Told([0.0, 90.0, 180.0, -90.0])
    out = RandomRotation(degrees=180).apply(batch(images), told)
    for k, (given, got) in enumerate(zip(images, out.permute(0, 2, 3, 1).numpy(), strict=True)):
        inside = np.s_[1:-1, 1:-1]  # on the border a rounded sine may look outside
        assert np.array_equal(got[inside], np.rot90(given, k)[inside])


@CHANNELS
def test_what_comes_in_by_rotation_is_black(channels: int) -> None:
    told: Any = Told([30.0])
    out = RandomRotation().apply(torch.full((1, channels, 41, 41), 200.0), told)
    corners = out[0, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == 0).all()
    assert (out[0, :, 8:33, 8:33] == 200).all()
    assert set(out.unique().tolist()) == {0, 200}, "nearest: nothing in between"


# ---- crops


@CHANNELS
@pytest.mark.parametrize("size", [(32, 32), (9, 14)])
def test_crops_are_those_of_a_padded_image(channels: int, size: tuple[int, int]) -> None:
    images = photographs(5, channels, *size)
    starts = np.array([[0, 0], [8, 8], [4, 4], [3, 7], [8, 1]])
    drawn = iter(starts.T)

    class Drawn(Told):
        def integers(self, low: int, high: int, size: int) -> NDArray[np.int64]:
            assert (low, high, size) == (0, 9, 5)
            return next(drawn)

    told: Any = Drawn([])
    out = RandomCrop().apply(batch(images), told).permute(0, 2, 3, 1).numpy()
    for given, got, (top, left) in zip(images, out, starts, strict=True):
        padded = np.pad(given, ((4, 4), (4, 4), (0, 0)))
        assert np.array_equal(got, padded[top : top + size[0], left : left + size[1]])
    assert np.array_equal(out[2], images[2]), "the middle one is the image itself"


def test_each_of_the_places_of_a_crop_is_as_likely() -> None:
    """A padding of 1 gives 9 places, each of which 900 images meet 100 times, with a standard deviation of 9.4."""
    x = torch.zeros(900, 1, 3, 3)
    x[:, 0, 1, 1] = 1
    where = RandomCrop(padding=1).apply(x, stream(0)).flatten(1).argmax(1)
    met = Counter(where.tolist())
    assert len(met) == 9
    assert all(62 <= n <= 138 for n in met.values())


# ---- flips of photographs


def test_photographs_are_not_turned_upside_down() -> None:
    """Left-right flips hit 200 of 400 images, give or take four standard deviations of 10."""
    x = torch.from_numpy(np.random.default_rng(0).random((400, 3, 5, 5), dtype=np.float32))
    out = RandomFlip(vertical=False).apply(x, stream("test"))
    flipped = (out == x.flip(3)).flatten(1).all(1)
    kept = (out == x).flatten(1).all(1)
    assert bool((flipped ^ kept).all())
    assert 160 <= int(flipped.sum()) <= 240
    every = RandomFlip(vertical=False, probability=1).apply(x, stream(0))
    assert torch.equal(every, x.flip(3))


# ---- normalisation


def test_channels_are_brought_to_their_means_and_deviations() -> None:
    x = torch.from_numpy(np.random.default_rng(0).random((2, 3, 4, 5), dtype=np.float32))
    mean, std = np.array([0.1, 0.5, 0.9]), np.array([0.2, 1.0, 4.0])
    expected = (x.numpy().astype(float) - mean[:, None, None]) / std[:, None, None]
    out = Normalize(mean=tuple(mean), std=tuple(std)).apply(x, stream(0))
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_imagenets_numbers_are_the_default_and_torchvision_agrees() -> None:
    x = torch.from_numpy(np.random.default_rng(0).random((2, 3, 4, 5), dtype=np.float32))
    expected = reference.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    torch.testing.assert_close(Normalize().apply(x, stream(0)), expected, rtol=1e-5, atol=1e-5)


def test_one_channel_takes_one_mean() -> None:
    x = torch.tensor([0.5, 1.0]).view(1, 1, 1, 2)
    assert Normalize(mean=(0.5,), std=(0.25,)).apply(x, stream(0)).flatten().tolist() == [0, 2]
    with pytest.raises(
        UserError, match="transform normalize: has 3 means, but images have 1 channels; give one for each channel"
    ):
        Normalize().apply(x, stream(0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mean": [0.5]}, "has 1 means but 3 deviations; give one for each channel"),
        ({"mean": [], "std": []}, "has 0 means but 0 deviations"),
        ({"mean": [0, 0], "std": [1, 0]}, "has a deviation of 0; make it positive"),
        ({"mean": [0, 0], "std": [1, -2]}, "has a deviation of -2; make it positive"),
    ],
)
def test_numbers_that_do_not_match_are_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("transform", {"name": "normalize", **settings})
    assert "\n" not in str(caught.value)


# ---- resizing


@CHANNELS
@pytest.mark.parametrize("given", [(64, 64), (40, 90), (28, 28), (24, 24), (7, 5)])
@pytest.mark.parametrize("size", [24, 31])
def test_images_are_resized_as_pillow_does(channels: int, given: tuple[int, int], size: int) -> None:
    """Within one grey level, of which Pillow's rounding takes half at most after each of two passes."""
    images = photographs(3, channels, *given)
    out = Resize(size=size).apply(batch(images), stream(0)).permute(0, 2, 3, 1).numpy()
    for image, got in zip(images, out, strict=True):
        for c in range(channels):
            pillow = Image.fromarray(image[..., c]).resize((size, size), Image.Resampling.BILINEAR)
            assert np.abs(got[..., c] - np.asarray(pillow, dtype=float)).max() <= 1


def test_resizing_acts_in_prediction_too() -> None:
    images = photographs(4)
    samples = MappedSamples(images, np.arange(4), np.zeros(4, int), (Resize(size=8),))
    assert not samples.random
    assert samples.batch(np.array([3, 1]))[0].shape == (2, 3, 8, 8)
