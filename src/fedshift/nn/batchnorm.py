"""The state of a network as one flat float vector.

The order is `[private | affine | weights | statistics]`: parameters that never leave a client (of add-ons; mostly
none), batch-norm gamma and beta (A), every other trainable tensor (W), batch-norm running mean and variance (S). In
this order the trainable part is one piece, and so is what travels under every BN policy: an aggregation is one fused
sum. Batch-norm layers are found by type, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from ..core.errors import UserError


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """All batch-norm layers of a model by name, found by type."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance (channels,) of a batch (batch, channels, ...), at least in float32.

    In two passes, which torch.var_mean does several times slower over such dimensions on a CPU.
    """
    x = x.float() if x.dtype.itemsize < 4 else x
    dims = [0, *range(2, x.dim())]
    mean = x.mean(dims, keepdim=True)
    return mean.flatten(), (x - mean).square_().mean(dims)


def require_spread(alone: bool) -> None:
    """Raise UserError where a layer has seen one value a channel, and is to be normalised by it."""
    if alone:
        what = "one image gives layers behind the last pooling one value each, which has no spread"
        raise UserError("test-time statistics", what, "give them more images, or a larger batch_size; or choose source")


@contextmanager
def batch_norm_by(model: nn.Module, make: Callable[[_BatchNorm], Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Inside, every BN layer normalises a batch by what `make(layer)` returns.

    Raises UserError for a layer that does more than to normalise: nothing would be left of it.
    """
    named = batch_norms(model)
    for name, layer in named.items():
        if type(layer).forward not in (_BatchNorm.forward, SyncBatchNorm.forward):
            what = f"{type(layer).__name__} does more than batch norm, and its statistics are to be others"
            raise UserError(f"layer {name}", what, "make two modules of it: batch norm, and what it adds")
    layers = list(named.values())
    for layer, forward in zip(layers, list(map(make, layers)), strict=True):
        layer.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextmanager
def untracked(model: nn.Module) -> Iterator[None]:
    """Inside, BN layers in training mode normalise by batch, but leave running statistics and counters as they are."""
    tracking = [layer for layer in batch_norms(model).values() if layer.track_running_stats]
    for layer in tracking:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True
