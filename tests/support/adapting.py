"""Networks and batches in float64 for tests of inferences that adapt to a site, with batch norm written out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedshift.inferences import Inference, Site

EPS = 1e-5


def images(*sizes: int, shape: tuple[int, ...] = (5,)) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [2 + 3 * torch.randn(n, *shape, generator=g, dtype=torch.float64) for n in sizes]


def dense() -> nn.Sequential:
    """Return a network with one batch-norm layer, whose gamma and beta are not 1 and 0."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double().eval()
    nn.init.uniform_(model[1].weight, 0.5, 1.5)
    nn.init.uniform_(model[1].bias, -0.5, 0.5)
    return model


def convolutions() -> nn.Sequential:
    """Return a network with batch norm in two and in one dimension, and dropout."""
    torch.manual_seed(2)
    first = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)]
    return nn.Sequential(*first, nn.Linear(48, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double().eval()


def decided() -> nn.Sequential:
    """Return `convolutions` with a classifier ten times as steep, so that some images are predicted surely."""
    model = convolutions()
    with torch.no_grad():
        model[8].weight *= 10
    return model


def with_batch_statistics(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """Return logits with the batch's own statistics and no step: PyTorch's training mode, but no dropout."""
    changed = copy.deepcopy(model).train()
    for layer in changed.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    with torch.no_grad():
        return [changed(x) for x in batches]


def adapted(
    make: Callable[..., Inference], model: nn.Module, batches: list[Tensor], greys: Any = None, **settings: Any
) -> tuple[list[Tensor], nn.Module]:
    """Return what an inference with these settings answers to each batch, and its network after the last of them."""
    changed = copy.deepcopy(model)
    with make(**settings).on_site(changed, Site(lambda: iter(batches), greys=greys)) as predict:
        return [predict(x) for x in batches], changed


def answers(*arguments: Any, **settings: Any) -> list[Tensor]:
    """Return the first part of `adapted`, without gradients."""
    with torch.no_grad():
        return adapted(*arguments, **settings)[0]


def same(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have equal parameters."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def equal(ours: list[Tensor], theirs: list[Tensor], atol: float = 1e-12) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def written_out(model: nn.Sequential, x: Tensor, affine: list[Tensor]) -> Tensor:
    """Return logits of `convolutions` with batch norm written out, so that autograd goes through mean and variance."""

    def norm(u: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        dims, shape = [d for d in range(u.dim()) if d != 1], [-1 if d == 1 else 1 for d in range(u.dim())]
        centred = u - u.mean(dims, keepdim=True)
        h = centred / (centred.square().mean(dims, keepdim=True) + EPS).sqrt()
        return gamma.view(shape) * h + beta.view(shape)

    u = norm(model[0](x), *affine[:2]).relu().flatten(1)
    return model[8](norm(model[5](u), *affine[2:]).relu())
