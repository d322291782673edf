"""Policies: which tensors of norms, and which layers, are aggregated, and which stay at the clients. Imports no torch.

A BN policy is about batch norm, unless a study says that it is about norms of other types, too. These mostly have no
running statistics: `nn.norms` says which policies then coincide.

| policy | affine (gamma, beta) | statistics (running mean, variance) | also known as |
|---|---|---|---|
| aggregated | travels | travels | FedAvg, FedProx, ... as published |
| local | stays | stays | FedBN; UniFed's client-specific BN |
| local_statistics | travels | stays | SiloBN |
| local_affine | stays | travels | its complement (Mills et al.) |

A layer policy says which layers stay at home beside these. Batch norm is part of the body; what the BN policy keeps at
home stays there under every layer policy.

| policy | last linear layer, or else convolution (head) | all other layers (body) | used by |
|---|---|---|---|
| full | travels | travels | FedAvg and most other algorithms |
| head_home | stays | travels | FedPer, FedRep, FedBABU |
| body_home | travels | stays | LG-FedAvg |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

NORMS = ("batch", "group", "layer", "instance")
"""Types of normalisation layers that a policy can govern."""
BATCH = ("batch",)


def norm_types(norms: str | Iterable[str], where: str = "norms") -> tuple[str, ...]:
    """Return the types of normalisation layers that `norms` names, in the order of `NORMS` and without repetitions.

    `norms` is `all`, one type, or a list of types. Raises UserError, at the place `where`, for an unknown type and for
    an empty list.
    """
    given = NORMS if norms == "all" else (norms,) if isinstance(norms, str) else tuple(norms)
    for name in given:
        if name not in NORMS:
            raise UserError(where, f"unknown type of norm {name!r}", did_you_mean(str(name), ("all", *NORMS)))
    if not given:
        raise UserError(where, "is an empty list", "name a type of norm, or say bn: aggregated")
    return tuple(name for name in NORMS if name in given)


@dataclass(frozen=True)
class BNPolicy:
    """Which tensors of normalisation layers are aggregated (True), and which stay at the clients (False).

    `affine` is about gamma and beta, `statistics` about running mean and variance, `norms` are the types of layers that
    the policy governs. All other layers travel.
    """

    affine: bool
    statistics: bool
    norms: tuple[str, ...] = BATCH


POLICIES: dict[str, BNPolicy] = {
    "aggregated": BNPolicy(affine=True, statistics=True),
    "local": BNPolicy(affine=False, statistics=False),
    "local_statistics": BNPolicy(affine=True, statistics=False),
    "local_affine": BNPolicy(affine=False, statistics=True),
}


def policy(bn: str, norms: Iterable[str] = BATCH) -> BNPolicy:
    """Return the BN policy named `bn`, applied to normalisation layers of the types `norms`."""
    return replace(POLICIES[bn], norms=tuple(norms))


@dataclass(frozen=True)
class LayerPolicy:
    """Which layers are aggregated (True) or stay at the clients (False): the head (last layer), the body (others)."""

    head: bool
    body: bool

    def stays(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that stay at the clients, in the order of the network.

        The head is found as a module, never by name; parameters that an add-on put into it belong to it. In a flat
        state `[private | affine | weights | statistics]` they are private, so that what travels is still one slice.
        Raises UserError if the network has neither a linear layer nor a convolution to be its head.
        """
        if self.head and self.body:
            return []
        from .features import head

        last = {id(parameter) for parameter in head(model).parameters()}
        travels = {True: self.head, False: self.body}
        return [name for name, parameter in model.named_parameters() if not travels[id(parameter) in last]]


LAYERS: dict[str, LayerPolicy] = {
    "full": LayerPolicy(head=True, body=True),
    "head_home": LayerPolicy(head=False, body=True),
    "body_home": LayerPolicy(head=True, body=False),
}
