"""Small networks and clients' data on which plug-ins are checked, and comparisons of tensors and networks."""

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
"""Name of the network for vectors (FEATURES,), whose batch norm sees one value per sample and channel."""
FEATURES = 10
LARGE = "large"
"""Name of the network with batch norm whose tensors have more than 100,000 floats on average."""


def large_network(dropout: float) -> nn.Sequential:
    """Return a network of one convolution with batch norm and two linear layers: half a million floats in five tensors.

    `dropout` is the probability of a dropout layer.
    """
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
    """Return a network of two linear layers with batch norm and dropout between them, for inputs (n, FEATURES)."""
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, CLASSES)
    )


def network(norm: str = "batch norm", dropout: float = 0.0, seed: int = 0, dtype: Any = torch.float64) -> nn.Module:
    """Return a small classifier for images (n, 2, 6, 6): two convolutions, each with a norm layer, and a linear layer.

    `norm` is a key of NORMS, or LARGE or VECTORS for other networks. No name of a layer contains "bn", since batch norm
    must be found by type.
    """
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
    """Return random images (n, *shape) and labels (n,) of each site, by its name; `sizes` maps a site to n.

    Sites differ in brightness and contrast. Classes differ in a brightness gradient along the last axis.
    """
    out = {}
    for k, (name, n) in enumerate(sizes.items()):
        rng = np.random.default_rng([seed, k])
        y = rng.integers(0, CLASSES, n)
        signal = y.reshape(-1, *(1 for _ in shape)) * np.linspace(-1, 1, shape[-1])
        x = (1 + k) * (rng.normal(size=(n, *shape)) + signal) + 2 * k
        out[name] = torch.from_numpy(x).to(dtype), torch.from_numpy(y)
    return out


def outlining_network() -> nn.Module:
    """Return a segmentation network: a convolution with batch norm, and a 1x1 convolution to each pixel's logits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))
    return nn.Sequential(*layers).double()


def outlined() -> dict[str, Any]:
    """Return images and masks of each site. The right half of a mask has the image's class, its left half class 0."""
    mask = (torch.arange(SHAPE[2]) >= SHAPE[2] // 2).expand(SHAPE[1:])
    return {name: (x, y[:, None, None] * mask) for name, (x, y) in clients().items()}


def are_probabilities(logits: Tensor) -> bool:
    """Return True if the rows (n, classes) are non-negative and add up to 1, as probabilities do and logits do not."""
    return bool((logits >= 0).all()) and torch.allclose(logits.double().sum(1), torch.ones(len(logits)).double())


def differing(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that two state dicts do not both have with equal bits."""
    return [
        k for k in sorted(one.keys() | two.keys()) if k not in one or k not in two or not torch.equal(one[k], two[k])
    ]


def require_alone(answer: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise Broken unless a function of a batch treats each input alone and returns the same output each time.

    `answer` maps inputs (n, ...) to outputs (n, ...). It is called twice, on single inputs and on the reversed batch.
    Single and reversed inputs may differ by rounding, which depends on the size of a batch.
    """
    with torch.no_grad():
        together = answer(x)
        words = "the same images have other outputs the second time; keep in buffers what must last, and draw nothing"
        require(torch.equal(answer(x), together), words)
        words = "its outputs for an image depend on the others in the batch; use nothing of them in evaluation mode"
        alone = torch.cat([answer(x[k : k + 1]) for k in range(len(x))])
        # Relative to the largest output: small outputs may be differences of large sums, with their rounding errors.
        least = float(together.abs().max()) * (1e-9 if x.dtype == torch.float64 else 1e-3)
        for other in (alone, answer(x.flip(0)).flip(0)):
            require(other.shape == together.shape and bool(((other - together).abs() <= least).all()), words)


def fingerprint(model: nn.Module) -> list[tuple[Any, ...]]:
    """Return a comparable record of a network: its modules with modes and hooks, its tensors with bits and gradients.

    Two records are equal only if nothing in the network was changed or replaced between them.
    """
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
