"""Small networks and clients on which plug-ins are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .case import require

SHAPE, CLASSES = (2, 6, 6), 3
SIZES = {"a": 13, "b": 22, "c": 9}
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch norm": nn.BatchNorm2d,
    "group norm": lambda channels: nn.GroupNorm(2, channels),
    "no norm": lambda channels: nn.Identity(),
}
VECTORS = "batch norm of vectors"
"""A network of vectors (FEATURES,), whose batch norm sees a single value of each image."""
FEATURES = 10
LARGE = "large"
"""A network with batch norm whose tensors average more than 100,000 floats."""


def large_network(dropout: float) -> nn.Sequential:
    """Return one convolution with batch norm, and two linear layers: half a million floats in five tensors."""
    size = SHAPE[1] * SHAPE[2]
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * size, 3500, bias=False),
        nn.ReLU(),
        nn.Linear(3500, CLASSES, bias=False),
    )


def vector_network(dropout: float) -> nn.Sequential:
    """Return two linear layers with batch norm between them."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)
    )


def network(norm: str = "batch norm", dropout: float = 0.0, seed: int = 0, dtype: Any = torch.float64) -> nn.Module:
    """Return two convolutions, each with its norm, and a linear layer. No name in it contains "bn"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if norm == LARGE:
            return large_network(dropout).to(dtype)
        if norm == VECTORS:
            return vector_network(dropout).to(dtype)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1),
            NORMS[norm](4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1),
            NORMS[norm](6),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(6, CLASSES),
        )
        # Scales and shifts that are not 1 and 0, so that a lost gamma or beta shows.
        for layer in (model[1], model[4]):
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, 0.5, 1.5)
    return model.to(dtype)


def clients(
    sizes: Mapping[str, int] = SIZES, seed: int = 0, dtype: Any = torch.float64, shape: tuple[int, ...] = SHAPE
) -> dict[str, Any]:
    """Return images and labels of each site; sites differ in brightness and contrast, classes in a gradient."""
    out = {}
    for k, (name, n) in enumerate(sizes.items()):
        rng = np.random.default_rng([seed, k])
        y = rng.integers(0, CLASSES, n)
        signal = y.reshape(-1, *(1 for _ in shape)) * np.linspace(-1, 1, shape[-1])
        x = (1 + k) * (rng.normal(size=(n, *shape)) + signal) + 2 * k
        out[name] = torch.from_numpy(x).to(dtype), torch.from_numpy(y)
    return out


def outlining_network() -> nn.Module:
    """Return one convolution with batch norm, and a 1x1 convolution to the logits of each pixel."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))
    return nn.Sequential(*layers).double()


def outlined() -> dict[str, Any]:
    """Return images and masks of each site: the right half of a mask has the image's class, the other has class 0."""
    mask = (torch.arange(SHAPE[2]) >= SHAPE[2] // 2).expand(SHAPE[1:])
    return {name: (x, y[:, None, None] * mask) for name, (x, y) in clients().items()}


def are_probabilities(logits: Tensor) -> bool:
    """Return whether the rows (n, classes) are probabilities: logits are not, but by a rare chance."""
    return bool((logits >= 0).all()) and torch.allclose(logits.double().sum(1), torch.ones(len(logits)).double())


def differing(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not the same bits in both, or not in both."""
    return [
        k for k in sorted(one.keys() | two.keys()) if k not in one or k not in two or not torch.equal(one[k], two[k])
    ]


def require_alone(answer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise Broken unless the answers to inputs (n, ...) are the same the second time, one by one and in another order.

    They may differ by the rounding of sums, which depends on the size of a batch.
    """
    with torch.no_grad():
        together = answer(x)
        words = "the same images have other outputs the second time; keep in buffers what must last, and draw nothing"
        require(torch.equal(answer(x), together), words)
        words = "its outputs for an image depend on the others in the batch; use nothing of them in evaluation mode"
        alone = torch.cat([answer(x[k : k + 1]) for k in range(len(x))])
        least = float(together.abs().max()) * (1e-9 if x.dtype == torch.float64 else 1e-3)
        for other in (alone, answer(x.flip(0)).flip(0)):
            require(other.shape == together.shape and bool(((other - together).abs() <= least).all()), words)


def fingerprint(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return all that a network consists of: tensors by identity, bits, gradient, and modules with modes and hooks."""
    parts: list[tuple[Any, ...]] = []
    for path, module in model.named_modules():
        attributes = {k: list(v) if isinstance(v, dict) else v for k, v in vars(module).items()}
        parts.append((path, id(module), type(module), repr(attributes)))
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, tensor in tensors:
            gradient = None if tensor.grad is None else (id(tensor.grad), tensor.grad.numpy().tobytes())
            place = tensor.data_ptr()
            bits = tensor.detach().numpy().tobytes()
            hooks = None if tensor._backward_hooks is None else list(tensor._backward_hooks)
            parts.append((path, name, id(tensor), place, bits, tensor.requires_grad, gradient, hooks))
    return parts
