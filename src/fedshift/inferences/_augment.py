"""Random changes of colour, place and sharpness of a batch of images with grey levels from 0 to 1."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torchvision.transforms.v2.functional as change
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

BRIGHTNESS = (0.6, 1.4)
CONTRAST = (0.7, 1.3)
GAMMA = (0.7, 1.3)
SATURATION, HUE = (0.5, 1.5), (-0.06, 0.06)
DEGREES = 15.0
SHIFT = 1 / 8
SCALE = (0.9, 1.1)
BLUR, NOISE = (0.001, 0.5), 0.005
"""Ranges of the authors of CoTTA; angle, shift and scale are of the image plane, blur is a deviation in pixels.

Their shift is 1/16 of an image that they have padded to twice its side.
"""
REACH = 2
"""Pixels beyond the border that a blur of five pixels takes in."""


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a batch (batch, channels, height, width) of grey levels 0..1, changed by one draw for all of its images.

    In this order: colours (brightness, contrast, gamma and, of three channels, saturation and hue, in random order);
    rotation, shift and scale, bilinear, with the border's values outside; a blur of five pixels; a flip from left to
    right, of every second batch; noise, drawn for each pixel. Levels are kept within 0..1 at both ends.
    """

    def between(bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * float(torch.rand((), generator=generator))

    x = x.clamp(0, 1)
    brightness = between(BRIGHTNESS)
    contrast = between(CONTRAST)
    gamma = between(GAMMA)
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda x: (brightness * x).clamp(0, 1),
        lambda x: contrasted(x, contrast),
        lambda x: x.clamp(1e-8, 1) ** gamma,
    ]
    if x.shape[1] == 3:
        saturation = between(SATURATION)
        hue = between(HUE)
        changes += [lambda x: change.adjust_saturation(x, saturation), lambda x: change.adjust_hue(x, hue)]
    for k in torch.randperm(len(changes), generator=generator).tolist():
        x = changes[k](x)
    angle = between((-DEGREES, DEGREES))
    scale = between(SCALE)
    right = between((-SHIFT, SHIFT)) * x.shape[3]
    down = between((-SHIFT, SHIFT)) * x.shape[2]
    # The authors blur a larger image and cut it afterwards: pixels that have moved beyond the border count.
    x = pad(x, [REACH] * 4, mode="replicate")
    x = moved(x, angle, scale, (right / x.shape[3], down / x.shape[2]))
    x = change.gaussian_blur(x, [2 * REACH + 1] * 2, [between(BLUR)] * 2)
    x = x[..., REACH:-REACH, REACH:-REACH]
    if between((0, 1)) < 0.5:
        x = x.flip(3)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return (x + NOISE * noise).clamp(0, 1)


def contrasted(x: Tensor, factor: float) -> Tensor:
    """Return images whose distance from their own mean grey is scaled; colours have the grey of the ITU's weights."""
    grey = change.rgb_to_grayscale(x) if x.shape[1] == 3 else x.mean(1, keepdim=True)
    mean = grey.mean((1, 2, 3), keepdim=True)
    return (mean + factor * (x - mean)).clamp(0, 1)


def moved(x: Tensor, degrees: float, scale: float, shift: tuple[float, float]) -> Tensor:
    """Return images turned and scaled about their middle, then moved by shares of width and height."""
    height, width = x.shape[2:]
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    cos, sin = float(angle.cos()) / scale, float(angle.sin()) / scale
    # From output to input, in coordinates that go from -1 to 1 along either side.
    turn = torch.tensor([[cos, -sin * height / width], [sin * width / height, cos]], dtype=x.dtype, device=x.device)
    offset = -turn @ torch.tensor([[2 * shift[0]], [2 * shift[1]]], dtype=x.dtype, device=x.device)
    grid = affine_grid(torch.cat([turn, offset], 1).expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
