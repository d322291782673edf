"""A small U-Net, and images with bright squares and their masks, which many tests train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.core import registry
from fedshift.models import initialise

SIZES = {"a": 6, "b": 9}
SIDE = 16


def network(seed: int = 0, *, dropout: float = 0, dtype: torch.dtype = torch.float64, channels: int = 1) -> nn.Module:
    settings = {"name": "unet_small", "features": [4, 4, 4, 6, 6, 4], "dropout": dropout}
    return initialise(registry.build("model", settings), (channels, SIDE, SIDE), 2, seed).to(dtype)


def clients(sizes: Mapping[str, int] = SIZES, seed: int = 0, dtype: Any = torch.float64) -> dict[str, Any]:
    """Images (n, 1, 16, 16) and masks (n, 16, 16) of each site; sites differ in brightness."""
    out: dict[str, tuple[Tensor, Tensor]] = {}
    for k, (name, n) in enumerate(sizes.items()):
        generator = torch.Generator().manual_seed(100 * seed + k)
        y = torch.zeros(n, SIDE, SIDE, dtype=torch.long)
        for mask in y:
            top, left = torch.randint(0, 10, (2,), generator=generator).tolist()
            mask[top : top + 5, left : left + 6] = 1
        noise = torch.randn(n, 1, SIDE, SIDE, dtype=torch.float64, generator=generator)
        out[name] = ((1 + k) * y[:, None] + 0.5 * noise).to(dtype), y
    return out
