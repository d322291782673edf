"""The state of a network as one flat float vector.

The order is `[private | affine | weights | statistics]`: parameters that never leave a client (those of add-ons; mostly
none), batch-norm gamma and beta (A), every other trainable tensor (W), batch-norm running mean and variance (S). In
this order the trainable part is one piece, and so is what travels under every BN policy: an aggregation is one fused
sum. Layers are found by type, never by name; a policy may be about norms of other types, too, whose parameters are then
part of A.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .batchnorm import batch_norms
from .norms import norm_layers
from .policies import BATCH, NORMS, BNPolicy


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that holds a tensor, and the tensor's name in this module."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


@dataclass(frozen=True)
class Place:
    """Position of one named tensor in the flat vector, its shape, and whether its channels come last in memory."""

    span: slice
    shape: torch.Size
    channels_last: bool

    def view(self, flat: Tensor) -> Tensor:
        """Return the tensor as a view of `flat`, in its memory format.

        `flat` is one flat vector (size,), or the vectors of several networks (networks, size): the view then has one
        tensor for each of them.
        """
        piece, networks = flat[..., self.span], flat.shape[:-1]
        if not self.channels_last:
            return piece.view(*networks, *self.shape)
        # The same numbers in memory as torch's channels-last tensors: the last axis is c.
        n, c, h, w = self.shape
        return piece.view(*networks, n, h, w, c).movedim(-1, -3)


class Layout:
    """Places of all tensors of a model in a flat vector `[private | affine | weights | statistics]`.

    `private` are the parameters in `stays`, which never leave a client. `affine` are gamma and beta of the
    normalisation layers of types `norms`. Tensors in `rests` are not trained, and are not in the vector. `statistics`
    begin with those of normalisation layers of other types, which travel under every policy.

    Attributes
    ----------
    private, affine, weights, statistics, trainable : slices of the flat vector
    governed : slice of those statistics that a policy may keep at the clients, the end of `statistics`
    size : length of the flat vector, in floats
    counters : names of BN's integer buffers (batches tracked), kept beside the vector and never counted as traffic
    constants : names of all other integer buffers and of what is not trained, which are neither changed nor sent
    aliases : second name -> first name, of tensors that have two names
    """

    def __init__(
        self,
        model: nn.Module,
        channels_last: bool = False,
        stays: Collection[str] = (),
        norms: Collection[str] = BATCH,
        rests: Collection[str] = (),
    ) -> None:
        layers, counted = norm_layers(model, norms), batch_norms(model)
        others = norm_layers(model, [kind for kind in NORMS if kind not in norms])
        stored = model.state_dict().keys()
        parameters = {k: p for k, p in model.named_parameters() if p.requires_grad}
        frozen = [k for k, p in model.named_parameters() if not p.requires_grad]
        frozen += [k for k, _ in model.named_buffers() if k in rests]
        buffers = {k: b for k, b in model.named_buffers() if k in stored and k not in rests}
        private = [k for k in parameters if k in stays]
        affine = [k for k in parameters if k not in stays and k.rpartition(".")[0] in layers]
        weights = [k for k in parameters if k not in stays and k.rpartition(".")[0] not in layers]
        floats = [k for k, b in buffers.items() if b.is_floating_point()]
        ungoverned = [k for k in floats if k.rpartition(".")[0] in others]
        governed = [k for k in floats if k.rpartition(".")[0] not in others]
        integers = [k for k, b in buffers.items() if not b.is_floating_point()]
        self.counters = [k for k in integers if k.rpartition(".")[0] in counted]
        self.constants = [*frozen, *(k for k in integers if k.rpartition(".")[0] not in counted)]
        named = [
            (k, id(tensor))
            for group in (model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
            for k, tensor in group
            if k in stored
        ]
        # Reversed, so that the first of several names stays.
        first = {key: k for k, key in reversed(named)}
        self.aliases = {k: first[key] for k, key in named if k != first[key]}
        self.places: dict[str, Place] = {}
        tensors = {**parameters, **buffers}
        ends = [0]
        for group in (private, affine, weights, ungoverned, governed):
            end = ends[-1]
            for name in group:
                tensor = tensors[name]
                span = slice(end, end + tensor.numel())
                self.places[name] = Place(span, tensor.shape, channels_last and tensor.dim() == 4)
                end = span.stop
            ends.append(end)
        self.private, self.affine, self.weights, _, self.governed = (slice(a, b) for a, b in itertools.pairwise(ends))
        self.statistics = slice(self.weights.stop, ends[-1])
        self.trainable = slice(0, self.weights.stop)
        self.size = ends[-1]

    def shared(self, policy: BNPolicy) -> slice:
        """Return the slice of the flat vector that travels under a BN policy, if no whole layer stays at clients."""
        start = self.affine.start if policy.affine else self.weights.start
        stop = self.statistics.stop if policy.statistics else self.governed.start
        return slice(start, stop)

    def attach(self, model: nn.Module, flat: Tensor, grad: Tensor, counters: Tensor) -> None:
        """Make the model's float tensors views of `flat`, and their gradients views of `grad`.

        BN's counters become the elements of `counters`.
        """
        for name, place in self.places.items():
            owner, leaf = _owner(model, name)
            if leaf in owner._parameters:
                parameter = getattr(owner, leaf)
                parameter.data = place.view(flat)
                parameter.grad = place.view(grad)
            else:
                owner._buffers[leaf] = place.view(flat)
        for name, counter in zip(self.counters, counters, strict=True):
            owner, leaf = _owner(model, name)
            owner._buffers[leaf] = counter

    def buffers(self, model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
        """Return the buffers of an attached model: the owning module, the name in it, and its view of the vector."""
        names = [*self.names(self.statistics), *self.counters]
        return [(owner, leaf, owner.get_buffer(leaf)) for owner, leaf in (_owner(model, name) for name in names)]

    def pack(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a new flat vector from named tensors of any floating type."""
        flat = torch.empty(self.size, dtype=next((t.dtype for t in tensors.values() if t.is_floating_point()), None))
        for name, place in self.places.items():
            place.view(flat).copy_(tensors[name].detach())
        return flat

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """Return contiguous copies on the CPU of the tensors in `flat`, by name.

        A tensor with two names has the first.
        """
        return {k: place.view(flat).detach().cpu().contiguous().clone() for k, place in self.places.items()}

    def names(self, span: slice) -> list[str]:
        """Return the names of the tensors that lie in a slice of the flat vector."""
        return [k for k, p in self.places.items() if span.start <= p.span.start and p.span.stop <= span.stop]
