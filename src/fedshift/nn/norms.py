"""Normalisation layers of every type: where they are, what they hold, and what of them a BN policy keeps at home.

Layers are found by type, subclasses included, and never by name. What a layer learns (gamma and beta, and any other
parameter of its own) is its affine part; what it collects (running mean and variance) are its statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .bn_policy import BATCH, NORMS, POLICIES, BNPolicy, policy

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


class ScoredBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with a score (1,), which belongs to its parameters: where they stay at home, so does the score."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.score = nn.Parameter(torch.ones(1))


class ScoredInstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm with factor, shift and a score (1,), and without running statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=True)
        self.score = nn.Parameter(torch.ones(1))


class Mixture(nn.Module):
    """Batch norm and instance norm of the same images, in shares that are learnt: y = w_B BN(x) + w_I IN(x).

    The shares are the softmax of the two parts' scores, which start at 1, so that both have one half. A policy that
    keeps batch norm at home keeps the batch part with its score; the instance part and its score travel. Test-time
    statistics replace those of the batch part alone.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.batch = ScoredBatchNorm2d(channels)
        self.instance = ScoredInstanceNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixture of a batch (batch, channels, height, width)."""
        share = torch.sigmoid(self.batch.score - self.instance.score)  # softmax of two scores
        mixed: Any = share * self.batch(x) + (1 - share) * self.instance(x)
        return mixed


def kept(model: nn.Module, chosen: BNPolicy) -> dict[str, Tensor]:
    """Return the tensors of norms, by name, that stay at the clients under a policy; counters are left out."""
    return tensors_of(norm_layers(model, chosen.norms), not chosen.affine, not chosen.statistics)


def remarks(model: nn.Module, bn: str, norms: tuple[str, ...] = BATCH) -> Iterator[str]:
    """Yield a line where a policy would keep no tensor of the network at its client, or the same as another policy.

    With `norms` other than batch norm, a line says so in any case.

    Policies coincide where they keep the same tensors: group, layer and instance norm mostly have no running
    statistics, so that `local_statistics` is `aggregated`, and `local_affine` is `local`.
    """
    if bn == "aggregated":
        return
    found, keeps = counts(model, norms), kept(model, policy(bn, norms))
    types = " and ".join(f"{kind} norm" for kind in found)
    if not found:
        none = " or ".join(f"{kind}-norm" for kind in norms)
        yield f"bn: {bn!r} has no effect, since the network has no {none} layer"
    elif not keeps:
        lack = {"local_statistics": "no running statistics", "local_affine": "no gamma and beta"}
        yield f"bn: {bn!r} has no effect, since {types} has {lack.get(bn, 'no tensors')} in this network"
    else:
        same = [name for name in POLICIES if name != bn and kept(model, policy(name, norms)).keys() == keeps.keys()]
        if same or norms != BATCH:
            without = "" if any(count.statistics for count in found.values()) else "; they have no running statistics"
            equal = f"{' and' if without else ';'} {same[0]!r} is the same" if same else ""
            yield f"bn: {bn!r} keeps {len(keeps)} tensors of {types} at home{without}{equal}"
