"""Randomness from names: a stream for each (seed, round, client, purpose), and no global generator."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(key: tuple[object, ...]) -> int:
    return int.from_bytes(hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()[:16], "big")


def stream(*key: object) -> np.random.Generator:
    """A NumPy generator that depends on `key` alone, such as `(seed, round, client, "batches")`."""
    return np.random.Generator(np.random.PCG64(_entropy(key)))


def seed_of(*key: object) -> int:
    """A 63-bit seed that depends on `key` alone."""
    return _entropy(key) >> 65


def torch_stream(*key: object) -> torch.Generator:
    """The same for code that asks for a `torch.Generator` (CPU)."""
    import torch

    return torch.Generator().manual_seed(seed_of(*key))
