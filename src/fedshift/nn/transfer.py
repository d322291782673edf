"""What goes to a device while the host works on: copies, batches that a thread prepares, and small constants."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
DEPTH = 2
"""Number of batches that are prepared before they are asked for."""


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


def read_ahead(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    """Return batches for a device in their order; for an accelerator, a thread prepares the next ones meanwhile.

    The thread works on the stream of the caller, so that the device does everything in the order in which it was
    asked. A CPU gets no thread, since its cores train. An error of `batches` is raised where its batch
    would have come.
    """
    return batches if device.type == "cpu" else _in_thread(batches, device)


def _in_thread(batches: Iterator[T], device: torch.device) -> Iterator[T]:
    module = torch.get_device_module(device)
    end = object()
    with ThreadPoolExecutor(1, "batches", module.set_stream, (module.current_stream(device),)) as pool:
        coming: deque[Any] = deque(pool.submit(next, batches, end) for _ in range(DEPTH))
        while (batch := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, batches, end))
            yield batch


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done all that it was asked for, as a clock must before it is read."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
