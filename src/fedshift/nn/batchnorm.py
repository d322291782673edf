"""Tools for batch-norm layers: find them, replace their forward pass, and keep their running statistics.

Layers are found by type, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from ..core.errors import UserError


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return all batch-norm layers of a model by name, found by type."""
    return {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm)}


def read_anywhere(model: nn.Module) -> None:
    """Let batch-norm layers compute on a GPU although their tensors do not begin at multiples of 16 bytes.

    With channels last, cuDNN reads gamma, beta and running statistics 16 bytes at once, and ends the process's use of
    the GPU ("misaligned address") where they are views that begin elsewhere. Such layers get hooks that take torch's
    own kernels, which read them anywhere.
    """
    for layer in batch_norms(model).values():
        tensors = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if any(t.is_floating_point() and t.data_ptr() % 16 for t in tensors):
            # Hooks, and not another forward pass: they go along when a network is copied or saved.
            layer.register_forward_pre_hook(_without_cudnn)
            layer.register_forward_hook(_with_cudnn, always_call=True)


def _without_cudnn(*_: object) -> None:
    torch.backends.cudnn.enabled = False


def _with_cudnn(*_: object) -> None:
    torch.backends.cudnn.enabled = True


def affine_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return gamma and beta of every batch-norm layer that has them, in the order of the layers."""
    pairs = ((layer.weight, layer.bias) for layer in batch_norms(model).values())
    return [parameter for pair in pairs for parameter in pair if parameter is not None]


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance (channels,) of a batch (batch, channels, ...), at least in float32.

    Gradients flow through both. Two passes over the batch are several times faster on a CPU than torch.var_mean.
    """
    if x.dtype.itemsize < 4:
        x = x.float()
    dims = [0, *range(2, x.dim())]
    mean = x.mean(dims, keepdim=True)
    return mean.flatten(), (x - mean).square_().mean(dims)


def normalised(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return a batch (batch, channels, ...) normalised with constant statistics, gamma and beta (channels,)."""
    given = (t for t in (mean, var, weight, bias) if t is not None)
    aligned = not any(t.data_ptr() % 16 for t in given)  # or cuDNN cannot read them: see `read_anywhere`
    return torch.batch_norm(x, weight, bias, mean, var, False, 0.0, eps, aligned)


def normalise(layer: _BatchNorm, x: Tensor, mean: Tensor, var: Tensor, affine: bool = True) -> Tensor:
    """Return a batch (batch, channels, ...) normalised with given statistics, then scaled by gamma and moved by beta.

    `mean` and `var` have the shape (channels,). Gradients flow to the batch, to gamma and beta, and to the statistics
    where these depend on tensors that need them. Without `affine`, gamma and beta are left out.
    """
    weight, bias = (layer.weight, layer.bias) if affine else (None, None)
    if not (mean.requires_grad or var.requires_grad):
        return normalised(x, mean, var, weight, bias, layer.eps)
    # torch's function takes statistics for constants, so the gradient through them needs plain operations.
    shape = (-1, *(1,) * (x.dim() - 2))
    scale = (var + layer.eps).rsqrt()
    if weight is not None:
        scale = scale * weight
    out = (x - mean.view(shape)) * scale.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out


def by_batch(layer: _BatchNorm, call: int = 0) -> Callable[[Tensor], Tensor]:
    """Return a forward pass for `layer` by the mean and the biased variance of the batch itself, as in training.

    For use with `batch_norm_by`, whose `call` is not needed. Gradients flow through the batch's statistics, and running
    statistics stay as they are. The pass raises UserError for a batch with a single value in each channel.
    """

    def forward(x: Tensor) -> Tensor:
        mean, var = moments(x)
        require_spread(x.numel() == len(mean))
        return normalise(layer, x, mean, var)

    return forward


@contextmanager
def statistics_of(model: nn.Module, source: Literal["source", "batch"]) -> Iterator[None]:
    """Let BN layers normalise by the statistics of each batch within the block, if `source` is "batch".

    With "source", the network stays as it is: BN layers normalise by the running statistics of training.
    """
    if source == "source":
        yield
        return
    with batch_norm_by(model, by_batch):
        yield


def require_spread(alone: bool) -> None:
    """Raise UserError if `alone`: a layer has one value in each channel, and so no variance to normalise by."""
    if alone:
        problem = "one image gives batch norm behind the last pooling one value in each channel, which has no spread"
        raise UserError(
            "test-time statistics",
            problem,
            "give them more images, or a larger batch_size; or choose the inference source",
        )


Forward = Callable[[Tensor], Tensor]
"""The forward pass of one layer."""


@contextmanager
def batch_norm_by(model: nn.Module, make: Callable[[_BatchNorm, int], Forward]) -> Iterator[None]:
    """Replace the forward pass of every BN layer by the function that `make(layer, call)` returns, within the block.

    `call` counts the calls of a layer within one forward pass of the model, from 0: a layer that the network uses twice
    has a function, and so statistics, for each use. A layer that is called by itself, outside the model's forward pass,
    has call 0. Afterwards, also after an error, every layer has the forward pass that it had before.

    Raises UserError for a subclass of batch norm with a forward pass of its own, which would be lost, and for instance
    norm with running statistics: outside of training it normalises by these, which another batch norm would not
    correct.
    """
    named = batch_norms(model)
    for name, layer in named.items():
        if type(layer).forward not in (_BatchNorm.forward, SyncBatchNorm.forward):
            problem = f"{type(layer).__name__} does more than batch norm, which would be lost with other statistics"
            raise UserError(f"layer {name}", problem, "split it into batch norm and a module for the rest")
    for name, other in model.named_modules():
        if isinstance(other, _InstanceNorm) and other.track_running_stats:
            problem = "is instance norm with running statistics, which other statistics of batch norm do not replace"
            raise UserError(f"layer {name}", problem, "build it with track_running_stats=False")
    layers = list(named.values())
    counted = [_Calls(make, layer) for layer in layers]
    replaced = [vars(layer).get("forward") for layer in layers]

    def counting(inside: bool) -> Callable[..., None]:
        def from_zero(*_: object) -> None:
            for calls in counted:
                calls.next, calls.inside = 0, inside

        return from_zero

    # `always_call`: also after an error in the pass, the next one must count its calls from 0.
    hooks = [
        model.register_forward_pre_hook(counting(True)),
        model.register_forward_hook(counting(False), always_call=True),
    ]
    for layer, calls in zip(layers, counted, strict=True):
        layer.forward = calls.forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, before in zip(layers, replaced, strict=True):
            if before is None:
                del layer.forward
            else:
                layer.forward = before  # type: ignore[method-assign]


class _Calls:
    """The forward passes of one BN layer: a function for each call of the layer within a forward pass of the model."""

    def __init__(self, make: Callable[[_BatchNorm, int], Forward], layer: _BatchNorm) -> None:
        self.make = make
        self.layer = layer
        self.functions = [make(layer, 0)]
        self.next, self.inside = 0, False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a batch (batch, channels, ...) with the function of this call."""
        if self.next == len(self.functions):
            self.functions.append(self.make(self.layer, self.next))
        function = self.functions[self.next]
        self.next += self.inside
        return function(x)


@contextmanager
def untracked(model: nn.Module) -> Iterator[None]:
    """Let BN layers in training mode leave running statistics and counters as they are, within the block."""
    tracking = [layer for layer in batch_norms(model).values() if layer.track_running_stats]
    for layer in tracking:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in tracking:
            layer.track_running_stats = True
