"""The values of black and white pixels as a network sees them, from the transforms of a run."""

from __future__ import annotations

import pytest

from fedshift.transforms import greys_after
from fedshift.transforms.flip import RandomFlip
from fedshift.transforms.normalize import Normalize
from fedshift.transforms.resize import Resize
from fedshift.transforms.scale_intensity import ScaleIntensity


def test_black_and_white_go_through_what_always_acts() -> None:
    """(0 - mean) / std and (1 - mean) / std of each channel; flips only act in training, and sizes do not matter."""
    transforms = ScaleIntensity(), RandomFlip(), Resize(size=5), Normalize(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0))
    black, white = greys_after(transforms, (3, 8, 8)) or ((), ())
    assert black == pytest.approx((-1.0, -1.0, 0.0), abs=1e-6)
    assert white == pytest.approx((1.0, 3.0, 0.5), abs=1e-6)


def test_without_transforms_they_are_the_stored_levels() -> None:
    assert greys_after((), (1, 4, 4)) == ((0.0,), (255.0,))


def test_vectors_have_no_grey_levels() -> None:
    assert greys_after((ScaleIntensity(),), (7,)) is None
