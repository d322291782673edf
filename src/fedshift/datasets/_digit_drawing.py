"""Synthetic digits: seven-segment digits for miniatures, and substitutes for SynthDigits and MNIST-M.

The files of SynthDigits and MNIST-M are hard to obtain. The substitutes draw each image from a random stream of its
own, so that it does not depend on the images before it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from ..core.rng import stream

FACES = (
    *(f"DejaVu{name}" for name in ("Sans", "Sans-Bold", "Sans-Oblique", "Sans-BoldOblique")),
    *(f"DejaVu{name}" for name in ("Serif", "Serif-Bold", "Serif-Italic", "Serif-BoldItalic")),
    *(f"DejaVu{name}" for name in ("SansMono", "SansMono-Bold", "SansMono-Oblique")),
    *(f"STIXGeneral{name}" for name in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmtt10"),
)
"""Names of the fonts of printed digits; matplotlib installs them."""
GREY = np.array([0.299, 0.587, 0.114])  # of a colour
SIDE = 32
FINE = 4  # the drawing is so many times larger than the image
PLACES = 200  # backgrounds, as many as BSDS500 has training photographs
PLACE = 128  # pixels a side
LINES = {
    "a": (0, 0, 1, 0),
    "b": (1, 0, 1, 1),
    "c": (1, 1, 1, 2),
    "d": (0, 2, 1, 2),
    "e": (0, 1, 0, 2),
    "f": (0, 0, 0, 1),
    "g": (0, 1, 1, 1),
}
"""Segments of a seven-segment display: x and y of both ends, y downwards."""
DIGITS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


def digit(rng: np.random.Generator, label: int, size: int) -> np.ndarray:
    """Draw the digit `label` as on a seven-segment display: (size, size) float64, from 0 (paper) to 1 (ink).

    Position, height, slant and line width are random.
    """
    unit = size * rng.uniform(0.24, 0.32)
    slant = rng.uniform(-0.25, 0.25)
    pen = size * rng.uniform(0.03, 0.06)
    middle = size / 2 + size * rng.uniform(-0.08, 0.08, 2)
    y, x = np.mgrid[:size, :size] + 0.5
    v = (y - middle[1]) / unit + 1
    u = (x - middle[0]) / unit + 0.5 + slant * (v - 1)
    distance = np.full((size, size), np.inf)
    for name in DIGITS[label]:
        x0, y0, x1, y1 = LINES[name]
        # segments run along the axes, so that the nearest point is found by clipping both coordinates
        nearest = np.clip(u, x0, x1), np.clip(v, y0, y1)
        distance = np.minimum(distance, np.hypot(u - nearest[0], v - nearest[1]))
    return np.clip(pen - unit * distance + 0.5, 0, 1)


def synth_digit(label: int, *key: object) -> np.ndarray:
    """Draw the printed digit `label`, with parts of other digits beside it, like SynthDigits: (32, 32, 3) uint8.

    `key` names the random stream of font, size, position, rotation, stroke width, two colours, blur and noise. The
    real set, of Ganin and Lempitsky 2015, has other fonts; the ranges here are chosen by eye.
    """
    rng = stream("synth digits", *key)
    mask = _line(rng, label).resize((SIDE, SIDE), Image.Resampling.BOX)
    mask = mask.filter(ImageFilter.GaussianBlur(float(rng.choice([0, rng.uniform(0, 1.2)]))))
    # colours whose grey levels differ by 60 or more
    ground = pen = np.zeros(3)
    while abs((ground - pen) @ GREY) < 60:
        ground, pen = rng.uniform(0, 255, (2, 3))
    ink = np.asarray(mask, dtype=np.float64)[..., None] / 255
    seen = ground + (pen - ground) * ink
    # light from one side
    if rng.random() < 0.5:
        angle, y, x = rng.uniform(0, 2 * np.pi), *(np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5)
        seen = seen + rng.uniform(0, 50) * (np.cos(angle) * x + np.sin(angle) * y)[..., None]
    seen = seen + rng.normal(0, rng.uniform(0, 8), seen.shape)
    return seen.clip(0, 255).round().astype(np.uint8)


def _line(rng: np.random.Generator, label: int) -> Image.Image:
    """Draw `label` with up to one more digit on either side, white on black, SIDE * FINE pixels along a side."""
    side = SIDE * FINE
    font = _font(FACES[rng.integers(len(FACES))], int(side * rng.uniform(0.62, 0.95)))
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    x, y = side / 2 + side * rng.uniform(-0.08, 0.08, 2)
    stroke = int(rng.integers(0, 4))
    left, _, right, _ = font.getbbox(str(label), anchor="ms", stroke_width=stroke)
    _, top, _, bottom = font.getbbox("0", anchor="ms")
    base = y - (top + bottom) / 2
    gap = side * rng.uniform(0, 0.06)
    draw.text((x, base), str(label), fill=255, font=font, anchor="ms", stroke_width=stroke)
    for beside, anchor in ((x + left - gap, "rs"), (x + right + gap, "ls")):
        if rng.random() < 0.4:
            neighbour = str(rng.integers(10))
            draw.text((beside, base), neighbour, fill=255, font=font, anchor=anchor, stroke_width=stroke)
    turn = rng.uniform(-15, 15)
    slant = rng.uniform(-0.2, 0.2)
    leant = canvas.transform(
        canvas.size, Image.Transform.AFFINE, (1, slant, -slant * side / 2, 0, 1, 0), Image.Resampling.BILINEAR
    )
    return leant.rotate(turn, Image.Resampling.BILINEAR)


@functools.lru_cache(256)
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")), size)


def on_background(digits: np.ndarray, *key: object) -> np.ndarray:
    """Compose images like MNIST-M's, (n, 28, 28, 3) uint8, from masks of digits (n, 28, 28) bool.

    A pixel is |background - 255| in the digit and the background elsewhere. The background is a random crop of a random
    picture; Ganin and Lempitsky 2015 use photographs. Their published images show that a digit's mask is every pixel of
    MNIST above 0, grey ones included. `key` and the image's number name its random stream.
    """
    n = len(digits)
    side = digits.shape[1]
    out = np.empty((n, side, side, 3), dtype=np.uint8)
    for i, digit in enumerate(digits):
        rng = stream("mnist-m", *key, i)
        top, left = rng.integers(PLACE - side + 1, size=2)
        crop = _place(int(rng.integers(PLACES)))[top : top + side, left : left + side]
        out[i] = np.where(digit[..., None], 255 - crop, crop)
    return out


@functools.cache
def _place(n: int) -> np.ndarray:
    """Draw background number `n`, a substitute for a photograph: (PLACE, PLACE, 3) uint8.

    It has regions, each of one colour, with textures whose amplitudes fall with frequency.
    """
    rng = stream("mnist-m background", n)
    edges = np.sort(rng.uniform(-1.5, 1.5, rng.integers(1, 6)))
    region = np.digitize(_cloud(rng, rng.uniform(2, 3)), edges)
    grey = rng.uniform(20, 235, len(edges) + 1)
    warmth = rng.normal(0, 24, (len(edges) + 1, 1))
    green = rng.normal(0, 10, (len(edges) + 1, 1))
    tint = warmth * (1, 0.1, -1.1) + green * (-0.5, 1, -0.5)
    rough = rng.uniform(4, 45, len(edges) + 1)
    texture = _cloud(rng, rng.uniform(0.7, 1.5))
    hue = np.stack([_cloud(rng, 1.6) for _ in range(3)], axis=-1)
    seen = (grey[:, None] + tint)[region] + (rough[region] * texture)[..., None] + 8 * hue
    return seen.clip(0, 255).round().astype(np.uint8)


def _cloud(rng: np.random.Generator, fade: float) -> np.ndarray:
    """Draw noise (PLACE, PLACE) of mean 0 and standard deviation 1, whose amplitudes fall as frequency^-fade."""
    fy = np.fft.fftfreq(PLACE)[:, None]
    fx = np.fft.rfftfreq(PLACE)[None]
    frequency = np.hypot(fx, fy)
    frequency[0, 0] = np.inf
    noise = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(PLACE, PLACE))) * frequency**-fade, s=(PLACE, PLACE))
    return noise / noise.std()
