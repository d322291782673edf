"""What a BN policy keeps of the norms of a network, and which policies are the same there."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from .bn_policy import POLICIES, BNPolicy, policy
from .norm_types import BATCH
from .norms import counts, norm_layers, tensors_of


def kept(model: nn.Module, chosen: BNPolicy) -> dict[str, Tensor]:
    """Return the tensors of norms, by name, that stay at the clients under a policy; counters are left out."""
    return tensors_of(norm_layers(model, chosen.norms), not chosen.affine, not chosen.statistics)


def remarks(model: nn.Module, bn: str, norms: tuple[str, ...] = BATCH) -> Iterator[str]:
    """Yield a line if a policy keeps nothing, or the same as another one; over other norms than batch, in any case.

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
