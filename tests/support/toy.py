"""Small networks and clients that many tests train, and the names of their tensors, worked out without the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedshift import Federation
from fedshift.algorithms import Local
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
from fedshift.core.registry import get
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
    "of_clients",
    "softmax",
    "states",
    "watching",
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


def of_clients(trained: Federation) -> dict[str, Tensor]:
    """Return all tensors of the networks that clients are scored with, by name."""
    return {f"{c.name}/{k}": v for c in trained.clients for k, v in trained.client_state(c.name).items()}


def states(trained: Federation) -> dict[str, Tensor]:
    """Return all tensors of the global network and of every client's, by name."""
    return {f"global/{k}": v for k, v in trained.global_state().items()} | of_clients(trained)


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits (n, classes)."""
    powers = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def watching(given: str | Mapping[str, Any]) -> tuple[Any, list[dict[str, dict[str, Tensor]]]]:
    """Return an algorithm, and a list that grows by each client's whole state after its local work, by round."""
    settings = {"name": given} if isinstance(given, str) else dict(given)
    cls: Any = get("algorithm", settings.pop("name"))
    seen: list[dict[str, dict[str, Tensor]]] = []

    def report(self: Any, local: Local) -> dict[str, Tensor]:
        seen.extend({} for _ in range(local.round - len(seen)))
        seen[local.round - 1][local.client] = {k: v.clone() for k, v in local.model.state_dict().items()}
        return cls.report(self, local)  # type: ignore[no-any-return]

    return type("Watching", (cls,), {"report": report})(**settings), seen
