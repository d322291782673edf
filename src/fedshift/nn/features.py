"""The state of a network as one flat float vector.

The order is `[private | affine | weights | statistics]`: parameters that never leave a client (of add-ons; mostly
none), batch-norm gamma and beta (A), every other trainable tensor (W), batch-norm running mean and variance (S). In
this order the trainable part is one piece, and so is what travels under every BN policy: an aggregation is one fused
sum. Batch-norm layers are found by type, never by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from ..core.errors import UserError


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
