"""Batches that a thread prepares while an accelerator works on those before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")
DEPTH = 2
"""Number of batches that are prepared before they are asked for."""


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
