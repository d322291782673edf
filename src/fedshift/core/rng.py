"""Random generators seeded by keys such as (seed, round, client, purpose), so that no draw depends on other draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

SHARED = ("cpu", "meta", "mps")
"""Types of torch devices without a generator of their own that can be seeded here."""


def _entropy(key: tuple[object, ...]) -> int:
    """Return a 128-bit integer that depends on the texts of the key's parts alone."""
    # A separator that no part contains keeps ("a", "bc") and ("ab", "c") apart.
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()[:16], "big")


def stream(*key: object) -> np.random.Generator:
    """Return a NumPy generator seeded by `key` alone, such as `(seed, round, client, "batches")`."""
    # PCG64 by name: `default_rng` may choose another generator in a later NumPy, and all draws would change.
    return np.random.Generator(np.random.PCG64(_entropy(key)))


def seed_of(*key: object) -> int:
    """Return a 63-bit seed that depends on `key` alone."""
    # 63 of the 128 bits, since torch takes seeds as signed 64-bit integers.
    return _entropy(key) >> 65


def torch_stream(*key: object) -> torch.Generator:
    """Return a `torch.Generator` on the CPU that depends on `key` alone."""
    import torch

    return torch.Generator().manual_seed(seed_of(*key))


@contextmanager
def keyed(*key: object, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's default generators (of the CPU and of `device`) by `key` for the block, and then restore them."""
    with undisturbed(device):
        reseed(seed_of(*key), device)
        yield


Draws: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"
"""States of torch's default generators: of the CPU, and of another device with its own generator, or None."""


def generator_state(device: torch.device | None = None) -> Draws:
    """Return the states of torch's default generators: the CPU's, and the device's, or None if it has none."""
    import torch

    apart = _apart(device)
    if apart is None:
        return torch.random.get_rng_state(), None
    return torch.random.get_rng_state(), torch.get_device_module(apart).get_rng_state(apart)


def set_generators(state: Draws, device: torch.device | None = None) -> None:
    """Set torch's default generators to the states that `generator_state` returned."""
    import torch

    torch.random.set_rng_state(state[0])
    apart = _apart(device)
    if apart is not None and state[1] is not None:
        torch.get_device_module(apart).set_rng_state(state[1], apart)


def _apart(device: torch.device | None) -> torch.device | None:
    """Return the device if it has its own generator, such as a GPU; None for the CPU or without a device."""
    return None if device is None or device.type in SHARED else device


@contextmanager
def undisturbed(device: torch.device | None = None) -> Iterator[None]:
    """Restore the state of torch's default generators after the block, whatever is drawn inside."""
    before = generator_state(device)
    try:
        yield
    finally:
        set_generators(before, device)


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Seed torch's default generators, of the CPU and of the device. Call this inside `undisturbed`."""
    import torch

    torch.random.default_generator.manual_seed(seed)
    apart = _apart(device)
    if apart is not None:
        state = torch.Generator(apart).manual_seed(seed).get_state()
        torch.get_device_module(apart).set_rng_state(state, apart)
