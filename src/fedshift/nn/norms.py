"""Normalisation layers of every type: where they are, what they hold, and which of them letters in names find.

Layers are found by type, subclasses included, and never by name. What a layer learns (gamma and beta, and any other
parameter of its own) is its affine part; what it collects (running mean and variance) are its statistics.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .norm_types import BATCH, NORMS

LETTERS = "bn"


class ImageLayerNorm(nn.GroupNorm):
    """Layer norm as papers on convolutions mean it: group norm with one group, and a factor and shift a channel."""

    def __init__(self, channels: int) -> None:
        super().__init__(1, channels)


TYPES: dict[str, tuple[type[nn.Module], ...]] = {
    "batch": (_BatchNorm,),
    "layer": (nn.LayerNorm, nn.RMSNorm, ImageLayerNorm),
    "group": (nn.GroupNorm,),
    "instance": (_InstanceNorm,),
}
"""Classes of each type of norm; a layer belongs to the first type that it is an instance of."""


def type_of(layer: nn.Module) -> str:
    """Return which norm a layer is: batch, group, layer or instance; empty for any other layer."""
    return next((name for name, classes in TYPES.items() if isinstance(layer, classes)), "")


def norm_layers(model: nn.Module, norms: Collection[str] = NORMS) -> dict[str, nn.Module]:
    """Return the norms of a model that are of these types, by name and in the order of the network."""
    return {name: layer for name, layer in model.named_modules() if type_of(layer) in norms}


class Count(NamedTuple):
    """Norms of one type in a network: layers, and the tensors and floats of affine parts and running statistics."""

    layers: int
    affine: int
    affine_floats: int
    statistics: int
    statistics_floats: int


def counts(model: nn.Module, norms: Collection[str] = NORMS) -> dict[str, Count]:
    """Return what a policy over `norms` governs in a network, by type of norm; types without a layer are left out."""
    found: dict[str, Count] = {}
    for kind in norms:
        if layers := norm_layers(model, (kind,)):
            affine, statistics = tensors_of(layers, affine=True), tensors_of(layers, statistics=True)
            sizes = [sum(map(Tensor.numel, tensors.values())) for tensors in (affine, statistics)]
            found[kind] = Count(len(layers), len(affine), sizes[0], len(statistics), sizes[1])
    return found


def tensors_of(layers: dict[str, nn.Module], affine: bool = False, statistics: bool = False) -> dict[str, Tensor]:
    """Return affine parts, running statistics or both of some layers, by the names that a `state_dict` has."""
    found: dict[str, Tensor] = {}
    for name, layer in layers.items():
        if affine:
            found |= layer.named_parameters(name, recurse=False)
        if statistics:
            found |= ((key, b) for key, b in layer.named_buffers(name, recurse=False) if b.is_floating_point())
    return found


@dataclass(frozen=True)
class Audit:
    """What a policy that keeps norms at home finds by the types of layers, and by letters in the names of tensors.

    Attributes
    ----------
    by_type, by_letters : names of entries of the network's `state_dict`, counters included
    """

    by_type: frozenset[str]
    by_letters: frozenset[str]

    @property
    def missed(self) -> frozenset[str]:
        """Tensors of norms that the letters do not find: they would be averaged without a word."""
        return self.by_type - self.by_letters

    @property
    def strangers(self) -> frozenset[str]:
        """Tensors that the letters find and that belong to no norm of these types: they would stay at home."""
        return self.by_letters - self.by_type


def audit(model: nn.Module, norms: Collection[str] = BATCH, letters: str = LETTERS) -> Audit:
    """Compare what policies by type find in a network with what code finds that looks for letters in names."""
    layers, names = norm_layers(model, norms), model.state_dict().keys()
    of_norms = (name for name in names if name.rpartition(".")[0] in layers)
    return Audit(frozenset(of_norms), frozenset(name for name in names if letters in name))
