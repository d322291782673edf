"""Memory format of networks: channels first, as torch stores images by default, or channels last."""

from __future__ import annotations

import copy

import torch
from torch import nn

from ..core.rng import undisturbed


def channels_last(wanted: bool | None, model: nn.Module, shape: tuple[int, ...], device: torch.device) -> bool:
    """Return whether a network shall hold images and convolutions with the channels last in memory.

    `wanted` decides if it is not None. Otherwise the network must convolve images of `shape` (channels, height, width),
    and the device must be a CPU, where this format was measured to be faster, or a GPU of CUDA, where it was not.
    """
    if wanted is not None:
        return wanted
    convolves = len(shape) == 3 and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return convolves and device.type in ("cpu", "cuda") and _computes(model, shape)


def _computes(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether a copy of the network, in evaluation mode, computes two images with the channels last.

    A network that calls `view` on the output of a convolution cannot.
    """
    with undisturbed(), torch.no_grad():
        try:
            network = copy.deepcopy(model).to("cpu").to(memory_format=torch.channels_last).eval()
            dtype = next((p.dtype for p in network.parameters() if p.is_floating_point()), None)
            network(torch.zeros(2, *shape, dtype=dtype).contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
    return True
