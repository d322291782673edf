"""Tissue: saturation, the threshold of Otsu, smoothing, and specks."""

from __future__ import annotations

import colorsys

import numpy as np

from fedshift.slides.squares import otsu, saturation, tissue


def test_saturation_is_that_of_hsv() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(50, 256, (500, 3))
    pixels[:, 1] = np.minimum(pixels[:, 0], pixels[:, 1])
    expected = [255 * colorsys.rgb_to_hsv(*(pixel / 255))[1] for pixel in pixels]
    assert np.abs(saturation(pixels.astype(np.uint8)) - np.array(expected)).max() <= 0.5 + 1e-9


def test_ink_and_white_have_no_saturation() -> None:
    blue, green, black, white = (30, 60, 190), (40, 150, 60), (20, 5, 30), (245, 245, 245)
    assert saturation(np.array([blue, green, black, white], np.uint8)).tolist() == [0, 0, 0, 0]
    nuclei, stroma, brown = (90, 70, 150), (225, 150, 190), (120, 80, 40)
    assert (saturation(np.array([nuclei, stroma, brown], np.uint8)) > 80).all()


def test_the_threshold_is_the_best_one_and_the_middle_of_equals() -> None:
    histogram = np.bincount([3] * 40 + [9] * 20, minlength=256)
    assert otsu(histogram) == (3 + 8) / 2
    values = np.concatenate([np.random.default_rng(1).normal(m, 9, 400) for m in (60, 150)]).astype(int)
    within = [
        values[values <= t].var() * (values <= t).mean() + values[values > t].var() * (values > t).mean()
        for t in range(values.min(), values.max())
    ]
    best = values.min() + np.flatnonzero(np.isclose(within, min(within), rtol=1e-12, atol=0))
    assert otsu(np.bincount(values, minlength=256)) == (best[0] + best[-1]) / 2


def test_a_slide_of_one_value_has_no_tissue() -> None:
    assert otsu(np.bincount([7] * 50, minlength=256)) == 255


def test_specks_and_holes_of_a_pixel_vanish_and_pieces_below_a_tenth_of_a_square_millimetre() -> None:
    saturations = np.zeros((300, 300), np.uint8)
    saturations[20:120, 20:120] = 90  # 100 x 100 pixels of 4 um: 0.16 mm²
    saturations[60, 60] = 0
    saturations[200:270, 200:270] = 90  # 0.08 mm²
    saturations[150, 10] = 90
    mask = tissue(saturations, 50.0, 4.0)
    assert mask[60, 60] and mask[24:116, 24:116].all()
    assert not mask[130:].any()
    assert tissue(saturations, 50.0, 5.0)[230, 230], "pixels of 5 um make it 0.12 mm²"
    assert not tissue(saturations, 90.0, 4.0).any(), "a value must lie above the threshold"
