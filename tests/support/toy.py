"""Small networks and clients that many tests train, and the names of their tensors, worked out without the library."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fedshift.contract.fixtures import (
    BATCH_NORMS,
    CLASSES,
    LARGE,
    NORMS,
    SHAPE,
    SIZES,
    clients,
    differing,
    fingerprint,
    network,
)
from fedshift.data.samples import TensorSamples

torch.set_num_threads(1)

__all__ = [
    "BATCH_NORMS",
    "CLASSES",
    "LARGE",
    "NORMS",
    "SHAPE",
    "SIZES",
    "TRAVELS",
    "Noted",
    "clients",
    "differing",
    "fingerprint",
    "gap",
    "kinds",
    "network",
]
TRAVELS = {
    "aggregated": ("affine", "weights", "statistics"),
    "local": ("weights",),
    "local_statistics": ("affine", "weights"),
    "local_affine": ("weights", "statistics"),
}
"""Which kinds of tensors are averaged under a BN policy."""


class Noted(TensorSamples):
    """Samples that note which of them made up each batch."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y)
        self.taken: list[Tensor] = []

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        self.taken.append(torch.from_numpy(index.copy()))
        return super().batch(index, rng)


def kinds(model: nn.Module) -> dict[str, list[str]]:
    """Names of a network's tensors by kind: affine, weights, statistics, counters."""
    out: dict[str, list[str]] = {"affine": [], "weights": [], "statistics": [], "counters": []}
    for path, module in model.named_modules():
        for leaf, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            kind = "weights"
            if isinstance(module, BATCH_NORMS):
                kind = {"weight": "affine", "bias": "affine", "num_batches_tracked": "counters"}.get(leaf, "statistics")
            out[kind].append(f"{path}.{leaf}")
    return out


def gap(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """The largest difference between equally named tensors, relative to the larger of 1 and their size."""
    assert one.keys() == two.keys()
    return max(float(((one[k] - two[k]).abs() / two[k].abs().clamp(min=1)).max()) for k in one)
