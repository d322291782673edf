"""The corruptions of CIFAR-10-C: against plain references one image at a time, and what is random against algebra."""

from __future__ import annotations

import colorsys
import io
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import real_data
from PIL import Image
from scipy import ndimage
from scipy.stats import poisson

from fedshift import UserError
from fedshift.core.rng import stream
from fedshift.datasets._corruptions import EXTRA, GROUPS, NAMES, corrupt, functions
from fedshift.datasets._corruptions.functions import _sampled, disk, moved, plasma, textures

ALL = NAMES + EXTRA
STILL = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
}
"""Corruptions that draw nothing."""
STRONGER = [
    *GROUPS["noise"],
    "speckle_noise",
    "gaussian_blur",
    "zoom_blur",
    "fog",
    *sorted(STILL & {*GROUPS["digital"]}),
]
"""Corruptions whose constants say that each severity is stronger than the one before."""
SEVERITIES = (1, 2, 3, 4, 5)
CIFAR10 = "cifar10/cifar10_exact.npz"


def by_severity(values: Iterable[Any]) -> list[tuple[int, Any]]:
    return list(zip(SEVERITIES, values, strict=True))


def smooth(n: int, seed: int = 0) -> np.ndarray:
    """Clouds of colour with fine noise, over the whole range."""
    rng = np.random.default_rng(seed)
    x = ndimage.gaussian_filter(rng.normal(size=(n, 32, 32, 3)), (0, 3, 3, 0)) * 1500 + rng.normal(0, 8, (n, 32, 32, 3))
    return (x + 128).clip(0, 255).astype(np.uint8)


def pictures() -> np.ndarray:
    """Return images that are hard for formulas (noise, black, white, grey, pure colours, a ramp, a dark half)."""
    special = np.zeros((6, 32, 32, 3), dtype=np.uint8)
    special[1] = 255
    special[2] = 128
    special[3, :, :16, 0], special[3, :, 16:, 2], special[3, 16:, :, 1] = 255, 200, 7
    special[4] = (8 * np.arange(32))[:, None]
    special[5, 16:] = smooth(1, 5)[0, 16:]
    return np.concatenate([smooth(3), special])


def level(value: int, n: int) -> np.ndarray:
    return np.full((n, 32, 32, 3), value, dtype=np.uint8)


def assert_cut(found: np.ndarray, expected: np.ndarray) -> None:
    """`found` is 255 times `expected`, clipped and cut to whole levels; at a whole level, one less is as good."""
    exact = np.clip(expected, 0, 1) * 255
    low, high = np.floor(exact - 1e-5).clip(0), np.floor(exact + 1e-5).clip(0, 255)
    assert ((found == low) | (found == high)).all()


# --- names, keys, errors --------------------------------------------------------------------------------------------


def test_names_are_those_of_the_files() -> None:
    files = "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog"
    files += " brightness contrast elastic_transform pixelate jpeg_compression"
    assert " ".join(NAMES) == files
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert {k: len(v) for k, v in GROUPS.items()} == {"noise": 3, "blur": 4, "weather": 3, "digital": 5}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", ALL)
def test_the_form_of_images_stays_and_they_change(name: str, severity: int) -> None:
    x = smooth(4)
    before = x.copy()
    found = corrupt(x, name, severity)
    assert (found.shape, found.dtype) == (x.shape, np.uint8)
    assert np.array_equal(x, before)
    changed = (found != x).any(axis=(1, 2, 3))
    assert changed.all() or (name == "spatter" and changed.sum() >= 2), "drops are rare"


@pytest.mark.parametrize("name", ALL)
def test_an_image_is_corrupted_alike_in_any_part(name: str) -> None:
    x = np.concatenate([smooth(250), pictures()])
    whole = corrupt(x, name, 3, seed=1)
    for start, stop in ((7, 8), (240, 259)):
        np.testing.assert_array_equal(corrupt(x[start:stop], name, 3, seed=1, first=start), whole[start:stop])


@pytest.mark.parametrize("name", ALL)
def test_draws_depend_on_seed_and_number_where_there_are_any(name: str) -> None:
    x = np.repeat(smooth(1), 6, axis=0)
    one, same, other = (corrupt(x, name, 2, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert np.array_equal(one, other) == (name in STILL)
    assert (len({image.tobytes() for image in one}) == 1) == (name in STILL)


CONSTANTS = {
    "gaussian_noise": ".04; .06; .08; .09; .10",
    "shot_noise": "500; 250; 100; 75; 50",
    "impulse_noise": ".01; .02; .03; .05; .07",
    "speckle_noise": ".06; .10; .12; .16; .20",
    "defocus_blur": ".3 .4; .4 .5; .5 .6; 1 .2; 1.5 .1",
    "glass_blur": ".05 1; .25 1; .4 1; .25 2; .4 2",
    "motion_blur": "6 1; 6 1.5; 6 2; 8 2; 9 2.5",
    "gaussian_blur": ".4; .6; .7; .8; 1",
    "snow": ".1 .2 1 .6 8 3 .95; .1 .2 1 .5 10 4 .9; .15 .3 1.75 .55 10 4 .9; .25 .3 2.25 .6 12 6 .85; "
    ".3 .3 1.25 .65 14 12 .8",
    "frost": "1 .2; 1 .3; .9 .4; .85 .4; .75 .45",
    "fog": ".2 3; .5 3; .75 2.5; 1 2; 1.5 1.75",
    "spatter": ".62 .1 .7 .7 .5 0; .65 .1 .8 .7 .5 0; .65 .3 1 .69 .5 0; .65 .1 .7 .69 .6 1; .65 .1 .5 .68 .6 1",
    "elastic_transform": "0 0 2.56; 1.6 6.4 2.24; 2.56 1.92 1.92; 3.2 1.28 1.6; 3.2 .96 .96",
}
"""Constants of the script for CIFAR, severity by severity; the others are compared with references below."""


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_those_of_the_script(name: str) -> None:
    tables = functions.TABLE
    assert set(tables) == set(ALL)
    expected = [tuple(map(float, each.split())) for each in CONSTANTS[name].split(";")]
    assert [tuple(map(float, each)) for each in tables[name][1]] == expected


def test_names_and_severities_have_draws_of_their_own() -> None:
    """Else the sites would share their noise. Grey, so both are a shift and a multiple of what is drawn."""
    x = level(128, 20)
    drawn = [
        corrupt(x, name, severity).ravel().astype(float)
        for name, severity in (("gaussian_noise", 1), ("gaussian_noise", 2), ("speckle_noise", 1))
    ]
    assert np.abs(np.corrcoef(drawn) - np.eye(3)).max() < 5 / x.size**0.5


def test_global_generators_are_left_alone() -> None:
    before = pickle.dumps(np.random.get_state())  # noqa: NPY002 - it is what is checked
    for name in ALL:
        corrupt(smooth(1), name, 4)
    assert pickle.dumps(np.random.get_state()) == before  # noqa: NPY002


def test_no_images_are_no_error() -> None:
    assert corrupt(np.empty((0, 32, 32, 3), np.uint8), "snow", 1).shape == (0, 32, 32, 3)


@pytest.mark.parametrize(
    ("images", "name", "severity", "words"),
    [
        (level(0, 1), "motion_blurr", 1, r"corruption: unknown name 'motion_blurr'; did you mean 'motion_blur'\?"),
        (level(0, 1), "fog", 0, "severity: is 0; take 1, 2, 3, 4 or 5"),
        (level(0, 1), "fog", 6, "severity: is 6"),
        (level(0, 1), "fog", True, "severity: is True"),
        (level(0, 1).astype(float), "fog", 1, r"images: are float64 of shape \(1, 32, 32, 3\), expected uint8"),
        (level(0, 1)[0], "fog", 1, r"images: are uint8 of shape \(32, 32, 3\)"),
        (level(0, 1)[:, :28], "fog", 1, r"of shape \(1, 28, 32, 3\)"),
        (level(0, 1)[..., :1], "fog", 1, r"of shape \(1, 32, 32, 1\)"),
    ],
)
def test_what_cannot_be_is_one_line(images: np.ndarray, name: str, severity: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        corrupt(images, name, severity)
    assert "\n" not in str(caught.value)


# --- those that draw nothing, one image at a time in float64 ---------------------------------------------------------


def by_hsv(image: np.ndarray, change: Callable[[float, float, float], tuple[float, float, float]]) -> np.ndarray:
    pixels = [colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*p))) for p in (image / 255).reshape(-1, 3).tolist()]
    return np.array(pixels).reshape(32, 32, 3)


def brightness(image: np.ndarray, more: float) -> np.ndarray:
    return by_hsv(image, lambda h, s, v: (h, s, min(v + more, 1)))


def saturate(image: np.ndarray, scale: float, shift: float) -> np.ndarray:
    return by_hsv(image, lambda h, s, v: (h, min(max(s * scale + shift, 0), 1), v))


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    x = image / 255
    means = [float(x[:, :, c].sum()) / 1024 for c in range(3)]
    return np.stack([(x[:, :, c] - means[c]) * factor + means[c] for c in range(3)], axis=-1)


def gaussian_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    x, reach = image / 255, int(4 * sigma + 0.5)
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(-reach, reach + 1)]
    for _ in range(2):  # along rows, then, turned, along columns
        padded = np.pad(x, ((0, 0), (reach, reach), (0, 0)), mode="edge")
        x = sum(w * padded[:, k : k + 32] for k, w in enumerate(weights)) / sum(weights)
        x = x.transpose(1, 0, 2)
    return x


def defocus_blur(image: np.ndarray, radius: float, alias: float) -> np.ndarray:
    inside = {(r, c) for r in range(-8, 9) for c in range(-8, 9) if r * r + c * c <= radius**2}
    near = {k: math.exp(-k * k / (2 * alias**2)) for k in (-1, 0, 1)}
    total = sum(near.values())
    x, out = np.pad(image / 255, ((9, 9), (9, 9), (0, 0)), mode="reflect"), np.zeros((32, 32, 3))
    for r, c in inside:
        for i, a in near.items():
            for j, b in near.items():
                row, column = 9 + r + i, 9 + c + j
                out += a * b / total**2 / len(inside) * x[row : row + 32, column : column + 32]
    return out


def zoom_blur(image: np.ndarray, end: float, count: int) -> np.ndarray:
    x, factors = image / 255, np.arange(1, end, 0.01)
    assert len(factors) == count
    out = x.copy()
    for factor in factors:
        side = math.ceil(32 / factor)
        top = (32 - side) // 2
        zoomed = ndimage.zoom(x[top : top + side, top : top + side], (factor, factor, 1), order=1)
        trim = (len(zoomed) - 32) // 2
        out += zoomed[trim : trim + 32, trim : trim + 32]
    return out / (count + 1)


REFERENCES: dict[str, tuple[Callable[..., np.ndarray], list[tuple[Any, ...]]]] = {
    "brightness": (brightness, [(0.05,), (0.1,), (0.15,), (0.2,), (0.3,)]),
    "saturate": (saturate, [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)]),
    "contrast": (contrast, [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)]),
    "gaussian_blur": (gaussian_blur, [(0.4,), (0.6,), (0.7,), (0.8,), (1.0,)]),
    "defocus_blur": (defocus_blur, [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]),
    "zoom_blur": (zoom_blur, [(1.06, 7), (1.11, 12), (1.16, 16), (1.21, 21), (1.26, 26)]),
}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", REFERENCES)
def test_what_draws_nothing_is_as_published(name: str, severity: int) -> None:
    x, (reference, constants) = pictures(), REFERENCES[name]
    expected = np.stack([reference(image, *constants[severity - 1]) for image in x])
    assert_cut(corrupt(x, name, severity), expected)


@pytest.mark.parametrize(("severity", "side"), by_severity((30, 28, 27, 24, 20)))
def test_pixelate_takes_the_mean_of_pixels_with_their_centre_in_the_box_and_back(severity: int, side: int) -> None:
    x, scale = pictures(), 32 / side
    held = [
        [c for c in range(32) if (i + 0.5) * scale - scale / 2 <= c + 0.5 <= (i + 0.5) * scale + scale / 2]
        for i in range(side)
    ]
    small = np.stack([x[:, rows].mean(axis=1) for rows in held], axis=1)
    small = np.stack([small[:, :, columns].mean(axis=2) for columns in held], axis=2)
    back = [int((i + 0.5) / scale) for i in range(32)]
    found = corrupt(x, "pixelate", severity).astype(float)
    away = np.abs(found - small[:, back][:, :, back])
    border = [i for i in range(32) if abs((i + 0.5) / scale % 1 - 0.5) > 0.499]  # a tie: Pillow may take either
    away[:, border], away[:, :, border] = 0, 0
    assert len(border) < 8
    assert away.max() <= 1.01, "rounded twice"


@pytest.mark.parametrize(("severity", "quality"), by_severity((80, 65, 58, 50, 40)))
def test_jpeg_is_pillows(severity: int, quality: int) -> None:
    x = smooth(3)
    for image, found in zip(x, corrupt(x, "jpeg_compression", severity), strict=True):
        Image.fromarray(image).save(file := io.BytesIO(), format="jpeg", quality=quality)
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(file.getvalue()))), found)


def test_flat_surfaces_are_not_dimmed_by_rounding() -> None:
    x = np.arange(256, dtype=np.uint8)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    for name in ("gaussian_blur", "defocus_blur", "zoom_blur", "contrast", "glass_blur", "motion_blur"):
        np.testing.assert_array_equal(corrupt(x, name, 5), x)


@pytest.mark.parametrize(("radius", "count"), [(0.3, 1), (1, 5), (1.5, 9)])
def test_disks_that_are_not_smoothed(radius: float, count: int) -> None:
    found = disk(radius, 0.01)
    assert (found[found > 0] == pytest.approx(1 / count)) and (found > 0).sum() == count
    assert disk(radius, 0.5).sum() == pytest.approx(1)


# --- noise ----------------------------------------------------------------------------------------------------------


def normal_share(z: float) -> float:
    return math.erf(z / 2**0.5)


@pytest.mark.parametrize(("severity", "sigma"), by_severity((0.04, 0.06, 0.08, 0.09, 0.10)))
def test_gaussian_noise_has_its_mean_variance_and_shape(severity: int, sigma: float) -> None:
    """Cutting takes half a level on the average, and adds the variance of a level, 1/12."""
    d = corrupt(level(128, 40), "gaussian_noise", severity).astype(float) - 127.5
    n = d.size
    assert abs(d.mean()) < 5 * 255 * sigma / n**0.5
    assert d.var() == pytest.approx((255 * sigma) ** 2 + 1 / 12, rel=5 * (2 / n) ** 0.5)
    assert (np.abs(d) < 255 * sigma).mean() == pytest.approx(normal_share(1), abs=0.03), "within sigma, level by level"
    for a, b in (
        (d[..., 0], d[..., 1]),
        (d[:, 1:], d[:, :-1]),
        (d[:, :, 1:], d[:, :, :-1]),
        (d[1:], d[:-1]),
    ):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / a.size**0.5, "independent"


@pytest.mark.parametrize(("severity", "light"), by_severity((500, 250, 100, 75, 50)))
def test_shot_noise_has_the_variance_of_poisson_counts(severity: int, light: float) -> None:
    for value in (64, 128):
        found = corrupt(level(value, 40), "shot_noise", severity).astype(float)
        k = np.arange(3 * light)
        levels, share = np.floor(k / light * 255 + 1e-6).clip(0, 255), poisson.pmf(k, value / 255 * light)
        mean = (levels * share).sum()
        variance = ((levels - mean) ** 2 * share).sum()
        assert variance == pytest.approx(255 * value / light, rel=0.05), "x / light, but for cutting to levels"
        assert found.mean() == pytest.approx(mean, abs=5 * (variance / found.size) ** 0.5)
        assert found.var() == pytest.approx(variance, rel=5 * (2.1 / found.size) ** 0.5)
        assert np.isin(found, levels).all(), "whole counts"


@pytest.mark.parametrize(("severity", "sigma"), by_severity((0.06, 0.10, 0.12, 0.16, 0.20)))
def test_speckle_noise_grows_with_the_value(severity: int, sigma: float) -> None:
    for value in (50, 120):
        d = corrupt(level(value, 40), "speckle_noise", severity).astype(float)
        assert d.mean() == pytest.approx(value - 0.5, abs=5 * sigma * value / d.size**0.5)
        assert d.var() == pytest.approx((sigma * value) ** 2 + 1 / 12, rel=5 * (2 / d.size) ** 0.5)
    assert not corrupt(level(0, 2), "speckle_noise", severity).any()


@pytest.mark.parametrize(("severity", "amount"), by_severity((0.01, 0.02, 0.03, 0.05, 0.07)))
def test_impulse_noise_loses_values_of_single_channels_half_to_black(severity: int, amount: float) -> None:
    found = corrupt(level(100, 100), "impulse_noise", severity)
    n, pixels = found.size, found.size // 3
    assert set(np.unique(found)) == {0, 100, 255}
    half = amount / 2
    for value in (0, 255):
        assert (found == value).mean() == pytest.approx(half, abs=5 * (half * (1 - half) / n) ** 0.5)
    single = 3 * amount * (1 - amount) ** 2
    one = ((found != 100).sum(axis=-1) == 1).mean()
    assert one == pytest.approx(single, abs=5 * (single / pixels) ** 0.5)


# --- blur that draws -------------------------------------------------------------------------------------------------


def numbered() -> np.ndarray:
    """An image whose pixels differ: 8 times the row, 8 times the column."""
    row, column = np.mgrid[:32, :32]
    return np.stack([8 * row, 8 * column, 0 * row], axis=-1).astype(np.uint8)


def test_glass_takes_each_pixel_from_up_to_a_pixel_above_and_left() -> None:
    """Severity 1 blurs nothing, so each pixel tells where it is from."""
    found = corrupt(np.repeat(numbered()[None], 50, axis=0), "glass_blur", 1)
    row, column = found[..., 0] // 8, found[..., 1] // 8
    down, right = (axis - came for axis, came in zip(np.mgrid[:32, :32], (row, column), strict=True))
    assert not down[:, :2].any() and not right[:, :2].any()
    assert not down[:, :, :2].any() and not right[:, :, :2].any()
    steps = Counter(zip(down[:, 2:, 2:].ravel().tolist(), right[:, 2:, 2:].ravel().tolist(), strict=True))
    assert set(steps) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    n = 50 * 30 * 30
    assert max(abs(count / n - 1 / 4) for count in steps.values()) < 5 * (3 / 16 / n) ** 0.5

    for k in range(5):  # the script's own loop, with the steps that were drawn
        x = numbered()
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                other_h, other_w = h - down[k, h, w], w - right[k, h, w]
                x[h, w], x[other_h, other_w] = x[other_h, other_w], x[h, w]
        np.testing.assert_array_equal(found[k], x)
        assert len(np.unique(x.reshape(-1, 3), axis=0)) < 1024, "copies, for a swap loses no pixel"


@pytest.mark.parametrize(("severity", "shares"), [(2, (1 / 2, 0)), (4, (3 / 4, 1 / 4))])
def test_glass_walks_once_or_twice(severity: int, shares: tuple[float, float]) -> None:
    """Black left of column 16, so light that a blur of sigma 0.25 moves less than a level. Twice: 1 - 1/4 and 1/4."""
    x = level(0, 60)
    x[:, :, 16:] = 200
    found = corrupt(x, "glass_blur", severity)[:, 2:, :, 0]
    n = 60 * 30
    for column, share in zip((16, 17), shares, strict=True):
        assert (found[:, :, column] < 100).mean() == pytest.approx(share, abs=5 * (3 / 16 / n) ** 0.5 * (share > 0))
    assert (found[:, :, 18:] > 190).all()
    assert (found[:, :, :16] < 10).all()


@pytest.mark.parametrize(("severity", "sigma"), by_severity((0.05, 0.25, 0.4, 0.25, 0.4)))
def test_glass_blurs_before_and_after(severity: int, sigma: float) -> None:
    """Rows 0 and 1 are not shuffled, and row 2 reaches row 0 with a weight of 4 in a million."""
    x = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    found = corrupt(x, "glass_blur", severity)
    for image, out in zip(x, found, strict=True):
        once = np.floor(gaussian_blur(image, sigma) * 255 + 1e-6)
        twice = gaussian_blur(once, sigma)[0] * 255
        assert np.abs(out[0] + 0.5 - twice).max() < 0.51
        assert sigma < 0.1 or np.abs(out[0] - once[0]).max() > (4 if sigma == 0.4 else 0)


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (8, 2), (14, 12)])
def test_motion_blur_is_half_a_gaussian_along_a_line(radius: int, sigma: float) -> None:
    x, degrees = smooth(8), np.array([0, 45, -45, 30, -17.5, -90, -135, -60.0])
    found = moved(x, degrees, radius, sigma)
    weights = [math.exp(-j * j / (2 * sigma**2)) for j in range(2 * radius + 1)]
    for image, angle, out in zip(x, np.radians(degrees), found, strict=True):
        expected = np.zeros((32, 32, 3))
        for j, weight in enumerate(weights):
            right, down = (math.ceil(j * f(angle) - 0.5) for f in (math.cos, math.sin))
            rows, columns = (np.clip(np.arange(32) + step, 0, 31) for step in (down, right))
            expected += weight / sum(weights) * image[rows][:, columns]
        np.testing.assert_array_equal(out, np.floor(expected + 1e-6))


def test_motion_along_a_row_has_the_weights_of_the_formula() -> None:
    """Weights exp(-j^2 / 2) for j = 0 to 3 are 1, 0.6065, 0.1353, 0.0111; their sum, with the next, is 1.7533.

    Of 255 they give 145.4, 88.2, 19.7 and 1.6, of which ImageMagick keeps the whole levels.
    """
    x = level(0, 1)
    x[0, 10, 20] = 255
    found = moved(x, np.zeros(1), 6, 1)[0, :, :, 0]
    assert found[10, 14:23].tolist() == [0, 0, 0, 1, 19, 88, 145, 0, 0]
    assert found.sum() == 253


@pytest.mark.parametrize(("name", "low", "high"), [("motion_blur", -45, 45), ("snow", -135, -45)])
def test_directions_are_uniform_between_their_bounds(
    name: str, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []
    given = moved

    def spy(images: np.ndarray, degrees: np.ndarray, *rest: Any) -> np.ndarray:
        seen.append(degrees)
        return given(images, degrees, *rest)

    monkeypatch.setattr(functions, "moved", spy)
    corrupt(level(0, 600), name, 1)
    drawn = np.concatenate(seen)
    assert len(drawn) == 600
    assert low <= drawn.min() < low + 2 and high - 2 < drawn.max() <= high
    assert drawn.mean() == pytest.approx((low + high) / 2, abs=5 * 90 / 12**0.5 / 600**0.5)
    assert drawn.std() == pytest.approx(90 / 12**0.5, rel=0.1)


@pytest.mark.parametrize(("severity", "radius", "sigma"), [(1, 6, 1), (2, 6, 1.5), (3, 6, 2), (4, 8, 2), (5, 9, 2.5)])
def test_motion_blur_keeps_light_and_spreads_it_by_its_sigma(severity: int, radius: int, sigma: float) -> None:
    """The light is not right of its middle, but left by the mean of the steps to its source over all angles."""
    x = level(0, 100)
    x[:, 16, 20] = 255
    found = corrupt(x, "motion_blur", severity)[..., 0].astype(float)
    lost = 255 - found.sum(axis=(1, 2))
    assert (lost >= 0).all() and lost.max() <= 8, "each of up to eight levels is cut down"
    j = np.arange(2 * radius + 1)
    weights = np.exp(-(j**2) / (2 * sigma**2))
    row, column = np.mgrid[:32, :32]
    total = found.sum(axis=(1, 2))
    down, right = ((found * (axis - at)).sum(axis=(1, 2)) / total for axis, at in ((row, 16), (column, 20)))
    assert (right < 0).all() and (np.abs(down) < np.abs(right) + 0.3).all()
    angle = np.radians(np.linspace(-45, 45, 901))[:, None]
    across, along = (np.ceil(j * f(angle) - 0.5) @ weights / weights.sum() for f in (np.cos, np.sin))
    assert -right.mean() == pytest.approx(across.mean(), rel=0.05)
    assert np.hypot(down, right).mean() == pytest.approx(np.hypot(across, along).mean(), rel=0.05)


# --- weather ---------------------------------------------------------------------------------------------------------

SNOW = [
    (0.1, 0.2, 0.6, 0.95),
    (0.1, 0.2, 0.5, 0.9),
    (0.15, 0.3, 0.55, 0.9),
    (0.25, 0.3, 0.6, 0.85),
    (0.3, 0.3, 0.65, 0.8),
]


@pytest.mark.parametrize(("severity", "constants"), by_severity(SNOW))
def test_snow_whitens_and_lays_flakes_on_twice(severity: int, constants: tuple[float, ...]) -> None:
    """Black becomes (1 - kept) / 2, with flakes; what another image becomes follows from that."""
    *_, kept = constants
    black, x = (corrupt(images, "snow", severity).astype(float) for images in (level(0, 30), smooth(30)))
    np.testing.assert_array_equal(black, black[:, ::-1, ::-1])
    ground = (1 - kept) * 0.5 * 255
    assert black.min() == np.floor(ground + 1e-6)
    flakes = black - ground
    clean = smooth(30).astype(float)
    grey = clean @ [0.299, 0.587, 0.114]
    white = np.maximum(clean, 1.5 * grey[..., None] + 127.5)
    expected = kept * clean + (1 - kept) * white + flakes
    free = (expected < 254) & (black < 255)
    assert free.mean() > 0.2
    assert np.abs(x - expected)[free].max() < 2
    assert (x[~free] > 252).all()


@pytest.mark.parametrize("severity", [1, 2])
def test_as_much_snow_falls_as_the_normal_distribution_says(severity: int) -> None:
    """The mean of what is above t: mean Q(z) + sigma phi(z), z = (t - mean) / sigma; without zoom at 1 and 2."""
    mean, sigma, least, kept = SNOW[severity - 1]
    z = (least - mean) / sigma
    layer = mean * (1 - normal_share(z)) / 2 + sigma * math.exp(-z * z / 2) / (2 * math.pi) ** 0.5
    found = corrupt(level(0, 500), "snow", severity)[..., 0] / 255
    ground = np.floor((1 - kept) / 2 * 255) / 255
    assert found.mean() - ground == pytest.approx(2 * layer, rel=0.15)
    vertical, horizontal = (
        np.corrcoef(a.ravel(), b.ravel())[0, 1]
        for a, b in ((found[:, 1:], found[:, :-1]), (found[:, :, 1:], found[:, :, :-1]))
    )
    assert vertical > 0.5 > horizontal, "it falls"


def test_zoomed_snow_has_larger_flakes() -> None:
    """Across the fall, where the blur does not reach: 2.25 times larger at severity 4, as they are at 2."""
    across = []
    for severity in (2, 4):
        x = corrupt(level(0, 100), "snow", severity)[..., 0].astype(float)
        across.append(np.corrcoef(x[:, :, 1:].ravel(), x[:, :, :-1].ravel())[0, 1])
    assert across[0] < 0.3 and across[1] > 0.5


FROST = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]


@pytest.mark.parametrize(("severity", "constants"), by_severity(FROST))
def test_frost_is_added_to_what_is_kept(severity: int, constants: tuple[float, float]) -> None:
    kept, ice = constants
    clean = smooth(40)
    black, x = (corrupt(images, "frost", severity).astype(float) for images in (level(0, 40), clean))
    expected = kept * clean + black
    free = expected < 254
    assert np.abs(x - expected)[free].max() < 1.01
    assert (x[~free] > 252).all()
    pieces = np.lib.stride_tricks.sliding_window_view(np.floor(ice * textures()[..., 2] + 1e-6), (32, 32), axis=(1, 2))
    origins = [np.argwhere((pieces[..., 0, :] == image[0, :, 2]).all(axis=-1)) for image in black]
    assert {len(origin) for origin in origins} == {1}, "each is a piece of one texture"
    for image, ((k, row, column),) in zip(black, origins, strict=True):
        np.testing.assert_array_equal(pieces[k, row, column], image[..., 2])
    assert {int(origin[0, 0]) for origin in origins} == {0, 1, 2, 3, 4}


def test_frost_textures_are_bluish_lively_and_all_different() -> None:
    x = textures()
    assert x.shape == (5, 128, 128, 3)
    assert x.min() >= 0 and x.max() <= 255
    assert (x[..., 0] < x[..., 1]).all() and (x[..., 1] < x[..., 2]).all()
    assert (x.std(axis=(1, 2)) > 30).all()
    light = x[..., 2].reshape(5, -1)
    assert np.abs(np.corrcoef(light) - np.eye(5)).max() < 0.5, "few wide drifts agree by chance, needles do not"


def test_frost_is_as_bright_and_as_uneven_as_the_photographs() -> None:
    """CIFAR-10-C's textures have a mean RGB of 130/158/170, quantiles of 45/155/230, and pieces that differ by 37."""
    x = textures()
    np.testing.assert_allclose(x.mean(axis=(0, 1, 2)), [130, 158, 170], atol=5)
    light = x.mean(axis=-1)
    np.testing.assert_allclose(np.quantile(light, [0.02, 0.5, 0.98]), [45, 155, 230], atol=1)
    pieces = np.lib.stride_tricks.sliding_window_view(light, (32, 32), axis=(1, 2)).mean(axis=(-1, -2))
    assert pieces.std() == pytest.approx(37, abs=1)


@pytest.mark.parametrize(("severity", "amount"), by_severity((0.2, 0.5, 0.75, 1, 1.5)))
def test_fog_keeps_the_range_of_the_formula(severity: int, amount: float) -> None:
    """On white, fog runs from 1 / (1 + amount) to 1, since the plasma runs from 0 to 1; white predicts other images."""
    clean = smooth(20)
    clean[:10] //= 2
    clean[..., 2] //= 3  # the largest value is that of all channels
    white, x = (corrupt(images, "fog", severity) for images in (level(255, 20), clean))
    assert (white.min(axis=(1, 2, 3)) == np.floor(255 / (1 + amount) + 1e-6)).all()
    assert (white.max(axis=(1, 2, 3)) == 255).all()
    assert (white[..., 0] == white[..., 2]).all(), "the same on all channels"
    cloud = ((white + 0.5) / 255 * (1 + amount) - 1) / amount
    most = clean.max(axis=(1, 2, 3), keepdims=True) / 255
    expected = (clean / 255 + amount * cloud) * most / (most + amount)
    assert np.abs(x + 0.5 - 255 * expected).max() < 1.1
    assert not corrupt(level(0, 2), "fog", severity).any()


@pytest.mark.parametrize("decay", [3, 2, 1.75])
def test_plasma_departs_from_its_neighbours_less_at_each_level_by_decay_squared(decay: float) -> None:
    x = plasma(np.random.default_rng(0).uniform(-1, 1, (500, 1023)), decay)
    assert (x.min(axis=(1, 2)) == 0).all() and (x.max(axis=(1, 2)) == 1).all()

    def away(step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return centres of squares, and middles of their upper sides, less the mean of their neighbours."""
        half = step // 2
        at = {(i, j): np.roll(x, (-i, -j), axis=(1, 2)) for i in (-half, 0, half) for j in (-half, 0, half)}
        diagonal = (at[half, half] + at[half, -half] + at[-half, half] + at[-half, -half]) / 4
        straight = (at[half, 0] + at[-half, 0] + at[0, half] + at[0, -half]) / 4
        return (x - diagonal)[:, half::step, half::step], (x - straight)[:, ::step, half::step]

    (centre_fine, side_fine), (centre, side) = away(2), away(4)
    fine, coarse = ((a**2).mean() + (b**2).mean() for a, b in ((centre_fine, side_fine), (centre, side)))
    assert (coarse / fine) ** 0.5 == pytest.approx(decay**2, rel=0.05)
    assert (centre_fine**2).mean() == pytest.approx((side_fine**2).mean(), rel=0.05), "the same shocks"
    bound = np.abs(centre_fine).max(axis=(1, 2)) / (centre_fine**2).mean(axis=(1, 2)) ** 0.5
    assert bound.min() > 1.5 and bound.max() < 2, "the square root of 3: uniform"


@pytest.mark.parametrize(("severity", "strength", "share"), [(1, 0.5, None), (2, 0.5, None), (3, 0.5, None)])
def test_water_has_its_colour_and_strength(severity: int, strength: float, share: None) -> None:
    found = corrupt(level(0, 60), "spatter", severity).astype(float)
    most = found.max(axis=(1, 2, 3))
    wet = most > 0
    assert wet.mean() > 0.5
    assert (most[wet] == np.floor(strength * 238)).all(), "the brightest spot of every image"
    red, green, blue = np.moveaxis(found, -1, 0)
    assert (green == blue).all()
    assert np.abs(red - green * 175 / 238).max() < 1.1
    clean = smooth(60)
    x = corrupt(clean, "spatter", severity).astype(float)
    dry = green == 0
    np.testing.assert_array_equal(x[dry], clean[dry])
    expected = np.minimum(clean + found, 255)
    assert np.abs(x - expected).max() < 1.01


@pytest.mark.parametrize(
    ("severity", "mean", "sigma", "blur", "least"),
    [(1, 0.62, 0.1, 0.7, 0.7), (2, 0.65, 0.1, 0.8, 0.7), (3, 0.65, 0.3, 1, 0.69)],
)
def test_water_is_made_step_by_step_as_published(
    severity: int, mean: float, sigma: float, blur: float, least: float
) -> None:
    """One image at a time, from the same draws; edges, distances and histograms are tested below."""
    x = smooth(60)
    for i, found in enumerate(corrupt(x, "spatter", severity, seed=3)):
        drawn = stream(3, "corrupt", "spatter", severity, i).normal(mean, sigma, (32, 32))
        liquid = ndimage.gaussian_filter(drawn, blur, mode="nearest", truncate=4)
        liquid = np.floor(np.where(liquid < least, 0, np.minimum(liquid, 1)) * 255)
        away = np.minimum(functions.distance(functions.canny(liquid[None].astype(np.uint8), 50, 150), 20)[0], 20)
        relief = functions.equalised(np.floor(mean3(away) + 1e-9)[None].astype(np.uint8))[0].astype(float)
        around = np.pad(relief, 1, mode="reflect")
        sloped = np.zeros((32, 32))
        for weight, row, column in ((-2, 0, 0), (-1, 0, 1), (-1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 2)):
            sloped += weight * around[row : row + 32, column : column + 32]
        shine = liquid * np.rint(mean3(np.clip(sloped, 0, 255)))
        light = shine / shine.max() * 0.5 if shine.any() else shine
        assert_cut(found, x[i] / 255 + light[..., None] * np.array([175, 238, 238]) / 255)


def test_water_has_the_bounds_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 and 150 for edges, 20 for distances: few drops are so flat or so far apart that images would tell."""
    seen: list[tuple[int, ...]] = []
    for name in ("canny", "distance"):
        given = getattr(functions, name)

        def spy(x: np.ndarray, *bounds: int, given: Any = given) -> np.ndarray:
            seen.append(bounds)
            return given(x, *bounds)

        monkeypatch.setattr(functions, name, spy)
    corrupt(smooth(2), "spatter", 1)
    assert seen == [(50, 150), (20,)]


def mean3(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x.astype(float), 1, mode="reflect")
    return sum(padded[i : i + 32, j : j + 32] for i in range(3) for j in range(3)) / 9


@pytest.mark.parametrize("severity", [4, 5])
def test_mud_hides_most_of_what_is_below_it(severity: int) -> None:
    """255 (1 - m) + c m on white, with m of 0.8 or more where it is."""
    white = corrupt(level(255, 60), "spatter", severity).astype(float)
    muddy = white[..., 0] < 255
    assert 0.005 < muddy.mean() < 0.4
    cover = (255 - white[muddy, 0] - 0.5) / (255 - 63)
    assert 0.79 < cover.min() < 0.85 and 0.98 < cover.max() < 1.01
    for channel, colour in ((1, 42), (2, 20)):
        assert np.abs(white[muddy, channel] + 0.5 - (255 - (255 - colour) * cover)).max() < 1.2
    clean = smooth(60)
    x = corrupt(clean, "spatter", severity).astype(float)
    np.testing.assert_array_equal(x[~muddy], clean[~muddy])
    expected = clean[muddy] * (1 - cover[:, None]) + np.array([63, 42, 20]) * cover[:, None]
    assert np.abs(x[muddy] + 0.5 - expected).max() < 1.6


# --- edges -----------------------------------------------------------------------------------------------------------


def step(height: int) -> np.ndarray:
    x = np.zeros((1, 20, 20), dtype=np.uint8)
    x[:, :, 10:] = height
    return x


@pytest.mark.parametrize(("height", "seen"), [(12, False), (37, False), (38, True), (200, True)])
def test_canny_finds_a_step_where_four_times_its_height_is_above_150(height: int, seen: bool) -> None:
    expected = np.zeros((20, 20), dtype=bool)
    expected[:, 9] = seen  # the left one of two pixels that are equally steep
    np.testing.assert_array_equal(functions.canny(step(height), 50, 150)[0], expected)
    np.testing.assert_array_equal(functions.canny(step(height).transpose(0, 2, 1), 50, 150)[0], expected.T)


def test_canny_follows_a_weak_edge_from_a_strong_one_within_its_image() -> None:
    x = np.concatenate([step(30), step(30), step(30)])  # strength 120: too weak alone
    x[1, :4, 10:] = 200
    found = functions.canny(x, 50, 150)
    assert not found[[0, 2]].any()
    assert found[1, 8:, 9].all()
    x = step(12)
    x[0, :4, 10:] = 200
    assert not functions.canny(x, 50, 150)[0, 8:].any(), "below the lower bound it ends"


def test_canny_thins_a_slanting_edge() -> None:
    row, column = np.mgrid[:20, :20]
    x = (100 * (1 + np.sign(column + row - 19)))[None].astype(np.uint8)
    np.testing.assert_array_equal(functions.canny(x, 50, 150)[0, 1:-1, 1:-1], np.eye(18, dtype=bool)[::-1])
    np.testing.assert_array_equal(functions.canny(x[:, ::-1], 50, 150)[0, 1:-1, 1:-1], np.eye(18, dtype=bool))


def by_pixel(image: np.ndarray, low: int, high: int) -> np.ndarray:
    """Canny's edges pixel by pixel, by angles, and by walking from strong ones."""
    x = np.pad(image.astype(int), 1, mode="edge")
    n = len(image)
    strength, angle = np.zeros((n + 2, n + 2)), np.zeros((n, n))
    for r, c in np.ndindex(n, n):
        window = x[r : r + 3, c : c + 3]
        across = int((window[:, 2] - window[:, 0]) @ [1, 2, 1])
        down = int((window[2] - window[0]) @ [1, 2, 1])
        strength[r + 1, c + 1] = abs(across) + abs(down)
        angle[r, c] = math.degrees(math.atan2(down, across)) % 180
    peaks = set()
    for r, c in np.ndindex(n, n):
        value, a = strength[r + 1, c + 1], angle[r, c]
        if a < 22.5 or a > 157.5:
            kept = value > strength[r + 1, c] and value >= strength[r + 1, c + 2]
        elif 67.5 < a < 112.5:
            kept = value > strength[r, c + 1] and value >= strength[r + 2, c + 1]
        elif a < 90:
            kept = value > strength[r, c] and value > strength[r + 2, c + 2]
        else:
            kept = value > strength[r, c + 2] and value > strength[r + 2, c]
        if kept and value > low:
            peaks.add((r, c))
    walk = [(r, c) for r, c in peaks if strength[r + 1, c + 1] > high]
    found = np.zeros((n, n), dtype=bool)
    while walk:
        r, c = walk.pop()
        found[r, c] = True
        near = {(r + i, c + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & peaks
        walk += [at for at in near if not found[at]]
    return found


def test_canny_is_that_of_a_plain_walk() -> None:
    x = np.concatenate([smooth(12)[..., 0], ndimage.gaussian_filter(smooth(12, 1)[..., 0], (0, 1, 1))])
    found = functions.canny(x, 50, 150)
    np.testing.assert_array_equal(found, np.stack([by_pixel(image, 50, 150) for image in x]))
    assert 0.02 < found[12:].mean() < 0.3


def test_distances_are_those_to_the_next_edge_of_the_same_image() -> None:
    found = np.zeros((3, 32, 32), dtype=bool)
    found[0, 5, 7] = found[0, 20, 20] = found[2, 0, 0] = True
    row, column = np.mgrid[:32, :32]
    first = np.minimum(np.hypot(row - 5, column - 7), np.hypot(row - 20, column - 20))
    expected = [np.minimum(first, 20), np.full((32, 32), 20.0), np.minimum(np.hypot(row, column), 20)]
    np.testing.assert_allclose(functions.distance(found, 20), expected)
    assert (functions.distance(np.zeros((2, 4, 4), dtype=bool), 20) == 20).all()


def test_box_means_mirror_at_the_border() -> None:
    x = smooth(2)[..., 0]
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)), mode="reflect")
    expected = sum(padded[:, i : i + 32, j : j + 32] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(functions.box(x), expected)


def test_equalised_values_say_how_many_are_not_above_them() -> None:
    x = np.array([[[10, 10, 20], [30, 30, 30]], [[7, 7, 7], [7, 7, 7]], [[0, 255, 255], [1, 1, 1]]], dtype=np.uint8)
    found = functions.equalised(x)
    assert found[0].tolist() == [[0, 0, 64], [255, 255, 255]]  # 255 / 4 and 255 * 4 / 4
    assert found[1].tolist() == x[1].tolist()
    assert found[2].tolist() == [[0, 255, 255], [153, 153, 153]]  # 255 * 3 / 5


# --- elastic ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("edge_twice", "mode"), [(True, "reflect"), (False, "mirror")])
def test_sampling_is_scipys(edge_twice: bool, mode: str) -> None:
    rng, x = np.random.default_rng(0), smooth(3) / 255
    rows, columns = rng.uniform(-20, 50, (2, 3, 32, 32))
    found = _sampled(x, rows, columns, edge_twice)
    for k in range(3):
        for c in range(3):
            expected = ndimage.map_coordinates(x[k, ..., c], [rows[k], columns[k]], order=1, mode=mode)
            np.testing.assert_allclose(found[k, ..., c], expected, atol=1e-12)


def fits(severity: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Fit affine maps from the pixels of corrupted ramps (7 levels a pixel) to where they came from.

    Returns the maps of (x, y, 1) to (x, y), (n, 3, 2), and the residuals in pixels, (n, 256, 2), in the middle,
    which no mirror reaches.
    """
    row, column = np.mgrid[:32, :32]
    ramp = np.stack([7 * column, 7 * row, 0 * row], axis=-1).astype(np.uint8)
    found = corrupt(np.repeat(ramp[None], n, axis=0), "elastic_transform", severity)
    seen = (found[:, 8:24, 8:24, :2] + 0.5).reshape(n, 256, 2) / 7
    basis = np.stack([column[8:24, 8:24].ravel(), row[8:24, 8:24].ravel(), np.ones(256)], axis=-1)
    maps = np.stack([np.linalg.lstsq(basis, each, rcond=None)[0] for each in seen])
    return maps, seen - basis @ maps


def test_elastic_severity_1_is_affine_and_moves_three_points_by_up_to_256_hundredths() -> None:
    maps, rest = fits(1, 300)
    assert np.abs(rest).max() < 1 / 7, "less than a level"
    anchors = np.array([[26, 26], [26, 6], [6, 6]])
    goal = np.stack([np.linalg.solve(m[:2].T, (anchors - m[2]).T).T for m in maps])
    away = goal - anchors
    assert np.abs(away).max() < 2.56 + 0.1
    assert away.max() > 2.45 and away.min() < -2.45
    assert away.var() == pytest.approx(2.56**2 / 3, rel=5 * (0.8 / 1800) ** 0.5)
    assert np.abs(np.corrcoef(away.reshape(300, 6).T) - np.eye(6)).max() < 0.3, "each on its own"


@pytest.mark.parametrize(
    ("severity", "alpha", "sigma", "affine"),
    [(1, 0, 0, 2.56), (2, 1.6, 6.4, 2.24), (3, 2.56, 1.92, 1.92), (4, 3.2, 1.28, 1.6), (5, 3.2, 0.96, 0.96)],
)
def test_elastic_is_made_step_by_step_as_published(severity: int, alpha: float, sigma: float, affine: float) -> None:
    """One image at a time, from the same draws, by SciPy: mirrored at the border's pixels, then at their edges."""
    x = smooth(5)
    row, column = np.mgrid[:32, :32]
    anchors = np.array([[26, 26], [26, 6], [6, 6]])
    for i, found in enumerate(corrupt(x, "elastic_transform", severity, seed=3)):
        rng = stream(3, "corrupt", "elastic_transform", severity, i)
        forth = np.eye(3)
        goal = anchors + rng.uniform(-affine, affine, (3, 2))
        forth[:2] = np.linalg.solve(np.c_[anchors, np.ones(3)], goal).T
        back = np.linalg.inv(forth)
        columns, rows = (back[k, 0] * column + back[k, 1] * row + back[k, 2] for k in (0, 1))
        right, down = alpha * np.stack(
            [
                ndimage.gaussian_filter(each, sigma, mode="reflect", truncate=3)
                for each in rng.uniform(-1, 1, (2, 32, 32))
            ]
        )
        expected = np.empty((32, 32, 3))
        for c in range(3):
            once = ndimage.map_coordinates(x[i, ..., c] / 255, [rows, columns], order=1, mode="mirror")
            expected[..., c] = ndimage.map_coordinates(once, [row + down, column + right], order=1, mode="reflect")
        assert_cut(found, expected)


@pytest.mark.parametrize(("severity", "alpha", "sigma"), [(3, 2.56, 1.92), (4, 3.2, 1.28), (5, 3.2, 0.96)])
def test_elastic_displacement_has_the_variance_of_smoothed_uniform_noise(
    severity: int, alpha: float, sigma: float
) -> None:
    """alpha^2 / 3 times the sum of squared weights; the ramp that it meets has the slopes of the affine map."""
    maps, rest = fits(severity, 300)
    k = np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1)
    weights = np.exp(-(k**2) / (2 * sigma**2))
    weights /= weights.sum()
    alike = np.convolve(weights, weights)  # by distance, from -2 * reach on
    distance = np.arange(16)[:, None] - np.arange(16) + len(alike) // 2
    line = np.where((distance >= 0) & (distance < len(alike)), alike[distance.clip(0, len(alike) - 1)], 0)
    covariance = alpha**2 / 3 * np.kron(line, line)
    place = np.mgrid[:16, :16].reshape(2, -1)
    basis, _ = np.linalg.qr(np.stack([*place, np.ones(256)], axis=-1).astype(float))
    expected = (np.trace(covariance) - np.trace(basis.T @ covariance @ basis)) / 256  # what an affine fit leaves
    slopes = (maps[:, :2] ** 2).sum(axis=1)
    rounding = 1 / 12 / 7**2
    found = ((rest**2).mean(axis=1) - rounding) / slopes
    assert found.mean() == pytest.approx(expected, rel=0.1)


# --- real images -----------------------------------------------------------------------------------------------------


@real_data.needs(CIFAR10)
@pytest.mark.parametrize("name", STRONGER)
def test_real_images_change_more_at_each_severity(name: str) -> None:
    with np.load(real_data.FOLDER / CIFAR10, allow_pickle=False) as file:
        x = file["x_test"][:300]
    away = [np.abs(corrupt(x, name, severity).astype(float) - x).mean() for severity in SEVERITIES]
    assert away == sorted(away)
    assert away[4] > 1.4 * away[0]


@real_data.needs(CIFAR10)
@pytest.mark.parametrize("name", REFERENCES)
def test_real_images_are_corrupted_as_published(name: str) -> None:
    with np.load(real_data.FOLDER / CIFAR10, allow_pickle=False) as file:
        x = file["x_test"][300:306]
    reference, constants = REFERENCES[name]
    for severity in SEVERITIES:
        assert_cut(corrupt(x, name, severity), np.stack([reference(i, *constants[severity - 1]) for i in x]))
