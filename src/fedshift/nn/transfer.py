"""Copies to a device for which the host does not wait, and small constants that stay there."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Return a tensor on a device. A copy from the host to an accelerator goes on while the host works on.

    It goes through pinned memory, from which an accelerator copies by itself. A copy towards the host is complete when
    this returns, since nobody could tell when it arrives.
    """
    device = torch.device(device)
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    # Only a copy from pinned memory leaves the host free meanwhile.
    return tensor.pin_memory().to(device, non_blocking=True)


def in_float64(tensor: Tensor) -> Tensor:
    """Return a tensor as float64: where it is, or on the CPU where an Apple GPU has no such type."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def array_to_device(array: np.ndarray, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an array as a tensor on the device of another tensor; see `to_device`. It keeps its type by default."""
    tensor = torch.from_numpy(array)
    if dtype is not None:
        tensor = tensor.to(dtype)
    return to_device(tensor, like.device)


@functools.lru_cache(64)
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a tensor (n,), which is copied to each device once. Do not change it."""
    return torch.tensor(values, dtype=dtype, device=device)
