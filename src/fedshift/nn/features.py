"""Tools for the end of a network: its classifier, and the features that the classifier sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ..core.errors import UserError
from .blend import Blended


def classifier(model: nn.Module) -> nn.Linear:
    """Return the last linear layer, in the order in which the network's modules are named.

    Raises UserError for a network without one, and for several networks that predict together.
    """
    if isinstance(model, Blended):
        problem = "is made of several networks that predict together, which have no common last layer"
        raise UserError("model", problem, "choose an inference that needs none, such as source")
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UserError("model", "has no linear layer, whose input would be its features", "use one that ends in one")
    return layers[-1]


def head(model: nn.Module) -> nn.Module:
    """Return the last linear layer or, in a network without one, the last convolution.

    Raises UserError for a network without both, and for several networks that predict together.
    """
    if not isinstance(model, Blended) and not any(isinstance(m, nn.Linear) for m in model.modules()):
        convolutions = [m for m in model.modules() if isinstance(m, _ConvNd)]
        if convolutions:
            return convolutions[-1]
    return classifier(model)


@contextmanager
def inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list to which every forward pass through `layer` adds its input: the features before a classifier.

    The list grows with every pass: take out what is no longer needed.
    """
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        handle.remove()
