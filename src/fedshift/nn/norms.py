"""Normalisation layers of every type: where they are, what they hold, and what of them a BN policy keeps at home.

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


def rest(model: nn.Module, train: str | Collection[str]) -> set[str]:
    """Stop the gradient of all that is not trained, and return the names of the tensors that stay as they are.

    What `training.train` leaves out rests: it has no gradient and no weight decay, is the same at all clients for ever,
    and does not travel.

    | train | head | gamma, beta of norms | running statistics | all else |
    |---|---|---|---|---|
    | all | trained | trained | move | trained |
    | head (linear probe) | trained | rest | rest: batch norm is in evaluation mode in training, too | rests |
    | norm, head (norm tuning) | trained | trained | move | rests |

    `train` is `all`, `head`, or the parts `norm` and `head`. Norms are found by type; without them, batch norm rests
    with its running statistics and counters, and the caller keeps it in evaluation mode. Of dropout nothing is said
    here: it goes on, as part of the training of the head.
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
        """Tensors of normalisation layers whose names lack the letters, such as `bn`: they would be averaged."""
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


# ---- in the place of norms: convolutions with standardised weights, and adaptive gradient clipping
# FedWon, Zhuang & Lyu 2024 (ICLR, arXiv 2306.05879), after Brock et al. 2021 (arXiv 2101.08692 and 2102.06171)


LEAST_NORM = 1e-3
"""Norm that a row of weights counts with at least in adaptive clipping, so that zeros can grow."""


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weights have mean 0 and a fixed variance in each filter, times a learnt gain (FedWon).

    With w the N weights of a filter, the convolution is by

        gain * 1.712859 * (w - mean(w)) / sqrt(N var(w) + 1e-4),

    var biased. The constant is sqrt(2 / (1 - 1/pi)), which gives ReLU's outputs variance 1; `gain` (filters,) starts at
    1. All of it travels, and no policy of norms is about it: there are no statistics.

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
        """Return the weights that the convolution is by, (filters, channels, height, width)."""
        rows = self.weight.flatten(1)
        centred = rows - rows.mean(1, keepdim=True)
        factor = self.gain[:, None] * self.scale / (centred.square().sum(1, keepdim=True) + self.eps).sqrt()
        return (centred * factor).view_as(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of images (batch, channels, height, width)."""
        return self._conv_forward(x, self.standardised(), self.bias)


def clipped_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters whose gradients adaptive clipping is about: all but those of the network's last layer."""
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
