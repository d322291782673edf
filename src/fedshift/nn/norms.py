"""Normalisation layers of every type: find them, list their tensors, and tell which a BN policy keeps at clients.

Layers are found by type, subclasses included, and never by name. What a layer learns (gamma and beta, and any other
parameter of its own) is its affine part; what it collects (running mean and variance) are its statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from .features import head
from .policies import BATCH, NORMS, POLICIES, BNPolicy, policy

LETTERS = "bn"


class ImageLayerNorm(nn.GroupNorm):
    """Layer norm over channels and pixels of an image: group norm with one group, gamma and beta by channel."""

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
    """Return the type of a normalisation layer (batch, group, layer or instance), or "" for any other layer."""
    return next((name for name, classes in TYPES.items() if isinstance(layer, classes)), "")


def norm_layers(model: nn.Module, norms: Collection[str] = NORMS) -> dict[str, nn.Module]:
    """Return a model's normalisation layers of the types `norms`, by name and in the order of the network."""
    return {name: layer for name, layer in model.named_modules() if type_of(layer) in norms}


def rest(model: nn.Module, train: str | Collection[str]) -> set[str]:
    """Freeze all parameters that `train` leaves out, and return the names of the tensors that never change.

    Frozen tensors have no gradient and no weight decay, are the same at all clients for ever, and do not travel.

    | train | head | gamma, beta of norms | running statistics | all else |
    |---|---|---|---|---|
    | all | trained | trained | move | trained |
    | head (linear probe) | trained | frozen | frozen: batch norm is in evaluation mode in training, too | frozen |
    | norm, head (norm tuning) | trained | trained | move | frozen |

    `train` is `all`, `head` (the last layer), or the parts `norm` and `head`. Norms are found by type. With `head`
    alone, batch norm is frozen with its running statistics and counters, and the caller keeps it in evaluation mode.
    Dropout goes on in any case, as part of the training of the head.
    """
    if train == "all":
        return set()
    trained = {id(parameter) for parameter in head(model).parameters()}
    names = set[str]()
    if "norm" in train:
        trained |= {id(p) for layer in norm_layers(model).values() for p in layer.parameters(recurse=False)}
    else:
        names = {name for layer, m in norm_layers(model).items() for name, _ in m.named_buffers(layer)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
            names.add(name)
    return names


class Count(NamedTuple):
    """Norms of one type in a network: layers, and the tensors and floats of affine parts and running statistics."""

    layers: int
    affine: int
    affine_floats: int
    statistics: int
    statistics_floats: int


def counts(model: nn.Module, norms: Collection[str] = NORMS) -> dict[str, Count]:
    """Return the numbers of layers, tensors and floats that a policy over `norms` governs, by type of norm.

    Types without a layer are left out.
    """
    found: dict[str, Count] = {}
    for kind in norms:
        if layers := norm_layers(model, (kind,)):
            affine, statistics = tensors_of(layers, affine=True), tensors_of(layers, statistics=True)
            sizes = [sum(map(Tensor.numel, tensors.values())) for tensors in (affine, statistics)]
            found[kind] = Count(len(layers), len(affine), sizes[0], len(statistics), sizes[1])
    return found


def tensors_of(layers: dict[str, nn.Module], affine: bool = False, statistics: bool = False) -> dict[str, Tensor]:
    """Return affine parameters, running statistics or both of the `layers`, by their names in a `state_dict`."""
    found: dict[str, Tensor] = {}
    for name, layer in layers.items():
        if affine:
            found |= layer.named_parameters(name, recurse=False)
        if statistics:
            found |= ((key, b) for key, b in layer.named_buffers(name, recurse=False) if b.is_floating_point())
    return found


@dataclass(frozen=True)
class Audit:
    """Tensors of normalisation layers, as found by layer type and as found by letters in tensor names, such as `bn`.

    Attributes
    ----------
    by_type, by_letters : names of entries of the network's `state_dict`, counters included
    """

    by_type: frozenset[str]
    by_letters: frozenset[str]

    @property
    def missed(self) -> frozenset[str]:
        """Tensors of normalisation layers whose names lack the letters: code that looks for letters averages them."""
        return self.by_type - self.by_letters

    @property
    def strangers(self) -> frozenset[str]:
        """Tensors of other layers whose names have the letters: code that looks for letters keeps them at clients."""
        return self.by_letters - self.by_type


def audit(model: nn.Module, norms: Collection[str] = BATCH, letters: str = LETTERS) -> Audit:
    """Find the tensors of normalisation layers by type, and by `letters` in their names as other code does."""
    layers, names = norm_layers(model, norms), model.state_dict().keys()
    of_norms = (name for name in names if name.rpartition(".")[0] in layers)
    return Audit(frozenset(of_norms), frozenset(name for name in names if letters in name))


class ScoredBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with one more parameter, a score (1,), which stays at the clients where gamma and beta do."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.score = nn.Parameter(torch.ones(1))


class ScoredInstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm with factor, shift and a score (1,), and without running statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=True)
        self.score = nn.Parameter(torch.ones(1))


class Mixture(nn.Module):
    """A mean of batch norm and instance norm with learnt weights: y = w_B BN(x) + w_I IN(x).

    The weights are the softmax of the two layers' scores, which start at 1, so that both have one half. A policy that
    keeps batch norm at home keeps the batch part with its score; the instance part and its score travel. Test-time
    statistics replace those of the batch part alone.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.batch = ScoredBatchNorm2d(channels)
        self.instance = ScoredInstanceNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised features of a batch (batch, channels, height, width)."""
        share = torch.sigmoid(self.batch.score - self.instance.score)  # softmax of two scores
        mixed: Any = share * self.batch(x) + (1 - share) * self.instance(x)
        return mixed


def kept(model: nn.Module, chosen: BNPolicy) -> dict[str, Tensor]:
    """Return the tensors of normalisation layers, by name, that stay at the clients under a policy; no counters."""
    return tensors_of(norm_layers(model, chosen.norms), not chosen.affine, not chosen.statistics)


def remarks(model: nn.Module, bn: str, norms: tuple[str, ...] = BATCH) -> Iterator[str]:
    """Yield lines on a BN policy that keeps no tensor at the clients, or the same tensors as another policy.

    With `norms` other than batch norm, a line says in any case how many tensors stay.

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


# ---- in the place of norms: convolutions with standardised weights, and adaptive gradient clipping
# FedWon, Zhuang & Lyu 2024 (ICLR, arXiv 2306.05879), after Brock et al. 2021 (arXiv 2101.08692 and 2102.06171)


LEAST_NORM = 1e-3
"""Smallest norm with which a row of weights counts in adaptive clipping, so that rows of zeros can grow."""


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weights have mean 0 and a fixed variance in each filter, times a learnt gain (FedWon).

    With w the N weights of a filter, the layer convolves with

        gain * 1.712859 * (w - mean(w)) / sqrt(N var(w) + 1e-4),

    var biased. The constant is sqrt(2 / (1 - 1/pi)), which gives ReLU's outputs variance 1; `gain` (filters,) starts at
    1. All of it travels, and no BN policy governs it, since it has no statistics.

    Our decisions, where the authors' text differs or does not say: the last convolution of a network without linear
    layers, transposed convolutions and linear layers are as they were; biases stay; 1e-4 is added, where NFNets take
    the larger of both. The authors have published no code.

    The mean of two clients' filters is not the filter between them. Their weights are scale-free, so that the norm is
    a hidden weight: of (1, 3) and (2, -2) the mean (1.5, 0.5) is standardised to (.7071, -.7071), the second client's
    filter and the first one's reversed. This is what the method does; nothing is mended here.
    """

    eps: ClassVar[float] = 1e-4
    scale: ClassVar[float] = 1.7128585504496627

    def __init__(self, like: nn.Conv2d) -> None:
        """Take the place of a convolution, with its weights and bias."""
        size = like.in_channels, like.out_channels, like.kernel_size
        options = {name: getattr(like, name) for name in ("stride", "padding", "dilation", "groups", "padding_mode")}
        super().__init__(*size, bias=like.bias is not None, **options)  # type: ignore[arg-type]
        self.weight, self.bias = like.weight, like.bias
        self.gain = nn.Parameter(torch.ones(like.out_channels))

    def standardised(self) -> Tensor:
        """Return the standardised weights with which the layer convolves, (filters, channels, height, width)."""
        rows = self.weight.flatten(1)
        centred = rows - rows.mean(1, keepdim=True)
        factor = self.gain[:, None] * self.scale / (centred.square().sum(1, keepdim=True) + self.eps).sqrt()
        return (centred * factor).view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of images (batch, channels, height, width)."""
        return self._conv_forward(x, self.standardised(), self.bias)


def clipped_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters whose gradients adaptive clipping shortens: all trained ones except the last layer's."""
    last = {id(parameter) for parameter in head(model).parameters()}
    return [parameter for parameter in model.parameters() if parameter.requires_grad and id(parameter) not in last]


def clip_rows(pairs: Iterable[tuple[Tensor, Tensor]], most: float) -> None:
    """Shorten gradients in place, row by row, to `most` times the norm of their weights (adaptive gradient clipping).

    `pairs` are weights and their gradients, of one shape. A row is what makes one output: a filter, or the weights of
    a linear unit; a vector is one row. A row of weights counts with a norm of 0.001 at least.
    """
    for weight, grad in pairs:
        rows = [t.flatten(1) if t.dim() > 1 else t.reshape(1, -1) for t in (weight.detach(), grad)]
        bound, norm = (torch.linalg.vector_norm(row, dim=1) for row in rows)
        factor = (most * bound.clamp(min=LEAST_NORM) / norm).clamp(max=1)
        grad.mul_(factor.view(-1, *[1] * (grad.dim() - 1)) if grad.dim() > 1 else factor[0])
