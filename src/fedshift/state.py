"""The state of a network as one flat float vector.

The order is `[private | affine | weights | statistics]`: parameters that never leave a client (of add-ons; mostly
none), batch-norm gamma and beta (A), every other trainable tensor (W), batch-norm running mean and variance (S). In
this order the trainable part is one piece, and so is what travels under every BN policy: an aggregation is one fused
sum. Batch-norm layers are found by type, never by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from .errors import UserError


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


def classifier(model: nn.Module) -> nn.Linear:
    """The last linear layer, in the order in which the network's modules are named. UserError where there is none."""
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UserError("model", "has no linear layer, whose input would be its features", "use one that ends in one")
    return layers[-1]


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Inside, every forward pass through `layer` adds its input to the list: the features before a classifier."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        handle.remove()


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a tensor, and the tensor's name in it."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


@dataclass(frozen=True)
class Place:
    """Where one named tensor lies in the flat vector, and its shape."""

    span: slice
    shape: torch.Size
    channels_last: bool

    def view(self, flat: Tensor) -> Tensor:
        """The tensor as a view of `flat`, in the memory format asked for."""
        piece = flat[self.span]
        if not self.channels_last:
            return piece.view(self.shape)
        n, c, h, w = self.shape
        return piece.view(n, h, w, c).permute(0, 3, 1, 2)


class Layout:
    """Places of all tensors of a model in a flat vector `[private | affine | weights | statistics]`.

    `stays` names parameters that never leave a client.

    Attributes
    ----------
    private, affine, weights, statistics, trainable : slices of the flat vector
    size : its length, in floats
    counters : names of BN's integer buffers (batches tracked), kept beside the vector and never counted
    constants : names of all other integer buffers and of frozen parameters, which no one changes and no one sends
    aliases : second name -> first name, of tensors that have two
    """

    def __init__(self, model: nn.Module, channels_last: bool = False, stays: Collection[str] = ()) -> None:
        layers, stored = batch_norms(model), model.state_dict().keys()
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        frozen = [k for k, p in model.named_parameters() if not p.requires_grad]
        buffers = {k: b for k, b in model.named_buffers() if k in stored}
        private = [k for k in parameters if k in stays]
        affine = [k for k in parameters if k not in stays and k.rpartition(".")[0] in layers]
        weights = [k for k in parameters if k not in stays and k.rpartition(".")[0] not in layers]
        statistics = [k for k, b in buffers.items() if b.is_floating_point()]
        integers = [k for k, b in buffers.items() if not b.is_floating_point()]
        self.counters = [k for k in integers if k.rpartition(".")[0] in layers]
        self.constants = [*frozen, *(k for k in integers if k.rpartition(".")[0] not in layers)]
        named = [
            (k, id(tensor))
            for every in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
            for k, tensor in every
            if k in stored
        ]
        first = {key: k for k, key in reversed(named)}
        self.aliases = {k: first[key] for k, key in named if k != first[key]}
        self.places: dict[str, Place] = {}
        tensors = {**parameters, **buffers}
        ends = [0]
        for group in (private, affine, weights, statistics):
            end = ends[-1]
            for name in group:
                tensor = tensors[name]
                span = slice(end, end + tensor.numel())
                self.places[name] = Place(span, tensor.shape, channels_last and tensor.dim() == 4)
                end = span.stop
            ends.append(end)
        self.private, self.affine, self.weights, self.statistics = (slice(a, b) for a, b in itertools.pairwise(ends))
        self.trainable = slice(0, self.weights.stop)
        self.size = ends[-1]

    def attach(self, model: nn.Module, flat: Tensor, grad: Tensor, counters: Tensor) -> None:
        """Make the model's tensors views.

        Floats of `flat`, their gradients of `grad`, integer buffers of `counters`.
        """
        for name, place in self.places.items():
            owner, leaf = _owner(model, name)
            if leaf in owner._parameters:
                parameter = getattr(owner, leaf)
                parameter.data, parameter.grad = place.view(flat), place.view(grad)
            else:
                owner._buffers[leaf] = place.view(flat)
        for name, counter in zip(self.counters, counters, strict=True):
            owner, leaf = _owner(model, name)
            owner._buffers[leaf] = counter

    def buffers(self, model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
        """The buffers of an attached model: whose, under which name, and the view that is attached."""
        names = [*self.names(self.statistics), *self.counters]
        return [(owner, leaf, owner.get_buffer(leaf)) for owner, leaf in (_owner(model, name) for name in names)]

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A new flat vector from named tensors of any floating type."""
        flat = torch.empty(self.size, dtype=next((t.dtype for t in tensors.values() if t.is_floating_point()), None))
        for name, place in self.places.items():
            place.view(flat).copy_(tensors[name].detach())
        return flat

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Named, contiguous copies on the CPU of the tensors in `flat`, under their first names."""
        return {k: place.view(flat).detach().cpu().contiguous().clone() for k, place in self.places.items()}

    def names(self, span: slice) -> list[str]:
        """The names of the tensors that lie in `span`."""
        return [k for k, p in self.places.items() if span.start <= p.span.start and p.span.stop <= span.stop]
