"""The corruptions of CIFAR-10-C, for RGB images of 32x32 pixels.

Source: Hendrycks and Dietterich 2019 (Benchmarking Neural Network Robustness to Common Corruptions and Perturbations,
ICLR, arXiv:1903.12261) and the constants of their script for CIFAR. The script draws without a seed, so only the
published files have the exact pixels of random corruptions.

The script used OpenCV, scikit-image and ImageMagick. Differences from it:

- frost uses drawn textures, because the photographs are not available (`functions.frost`);
- spatter uses exact Euclidean distances; OpenCV's are sums of steps of 1, 1.4 and 2.1969. If no drop has an edge,
  nothing is added; the script divides 0 by 0;
- elastic_transform samples at exact places; OpenCV rounds them to 1/32 of a pixel;
- motion blur follows ImageMagick's description; its rounding is not checked.
"""

from __future__ import annotations

import itertools

import numpy as np

from ...core.errors import UserError, did_you_mean
from ...core.rng import stream

SIDE = 32
CHUNK = 250  # images at once; their memory fits into the cache of the CPU
GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog"),
    "digital": ("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""Corruptions by group, as federated studies group them. Hendrycks and Dietterich count brightness as weather."""
NAMES: tuple[str, ...] = tuple(itertools.chain(*GROUPS.values()))
"""Names of the 15 corruptions of the benchmark."""
EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Names of the corruptions that the authors of the benchmark reserve for validation."""


def corrupt(images: np.ndarray, name: str, severity: int, seed: int = 0, first: int = 0) -> np.ndarray:
    """Corrupt images (n, 32, 32, 3) uint8; return new ones of the same shape and type.

    Random draws for an image depend only on `seed`, `name`, `severity` and the image's number, which counts from
    `first`: a part `images[a:b]` with `first=a` gives that part of the whole result. Raises UserError for an unknown
    name, a severity other than 1 to 5, and images of another shape or type.
    """
    if name not in NAMES + EXTRA:
        raise UserError("corruption", f"unknown name {name!r}", did_you_mean(str(name), NAMES + EXTRA))
    if isinstance(severity, bool) or severity not in range(1, 6):
        raise UserError("severity", f"is {severity!r}", "take 1, 2, 3, 4 or 5")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3):
        problem = f"are {images.dtype} of shape {images.shape}, expected uint8 of shape (n, {SIDE}, {SIDE}, 3)"
        raise UserError("images", problem, "bring them to this form")
    from .functions import TABLE, truncated

    function, constants = TABLE[name]
    out = np.empty_like(images)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK]
        streams = [stream(seed, "corrupt", name, severity, first + start + i) for i in range(len(part))]
        x = function(part, streams, *constants[severity - 1])
        out[start : start + CHUNK] = x if x.dtype == np.uint8 else truncated(x)
    return out
