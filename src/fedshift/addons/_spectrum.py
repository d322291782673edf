"""Low frequencies of images: their amplitudes, and images with other amplitudes and their own phases."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fft import fft2, fftshift, ifft2, ifftshift
from torch.nn.functional import pad

from ..core.errors import UserError


def amplitudes(x: Tensor, half_width: int) -> Tensor:
    """Return the amplitudes of the low frequencies of images: (batch, channels, size, size), size = 2 half_width + 1.

    The frequencies -half_width, ..., half_width lie around the centre, which is the sum of the pixels.
    """
    return _low(x, half_width).abs()


def exchanged(x: Tensor, amplitude: Tensor, half_width: int) -> Tensor:
    """Replace the amplitudes of the low frequencies of images (batch, channels, height, width), and keep the phases.

    `amplitude` has the shape that `amplitudes` returns, or one image's, for all images.
    """
    low = _low(x, half_width)
    height, width = x.shape[-2:]
    change = torch.polar(amplitude.expand(low.shape).contiguous(), low.angle()) - low
    top, left = height // 2 - half_width, width // 2 - half_width
    size = 2 * half_width + 1
    # Only the window changes: the inverse transform of the change is added to the image.
    change = pad(change, (left, width - size - left, top, height - size - top))
    return x + ifft2(ifftshift(change, (-2, -1))).real.to(x.dtype)


def _low(x: Tensor, half_width: int) -> Tensor:
    """Return the Fourier coefficients of the low frequencies of images, laid out as in `amplitudes`.

    Raises UserError for inputs that are not images, and for images that are too small to have these frequencies.
    """
    if x.dim() != 4:
        raise UserError(
            "addon", "the network's inputs are not images, so they have no frequencies", "leave the add-on out"
        )
    if 2 * half_width + 1 > min(x.size(-2), x.size(-1)):
        problem = f"frequencies up to {half_width} are more than images of {x.size(-2)} x {x.size(-1)} have"
        raise UserError("addon", problem, "choose a lower highest frequency, or larger images")
    rows, columns = (slice(x.size(d) // 2 - half_width, x.size(d) // 2 + half_width + 1) for d in (-2, -1))
    return fftshift(fft2(x), (-2, -1))[..., rows, columns]
