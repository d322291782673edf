"""Last layers and outputs of networks: classifier, features, pixels of dense outputs, several networks together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.nn.modules.conv import _ConvNd

from ..core.errors import UserError
from ..core.units import IGNORED

Outputs = Literal["logits", "probabilities"]
"""The outputs of several networks that are averaged: logits, or the probabilities that softmax makes of them."""


class Blended(nn.Module):
    """Networks that predict together: the weighted mean of their logits, or the logarithm of their mean probabilities.

    Parameters
    ----------
    networks : modules that map a batch to logits (batch, classes)
    weights : weight of each network; the sum is 1, and with probabilities all are above 0
    of : the outputs that are averaged
    """

    def __init__(self, networks: Sequence[nn.Module], weights: Sequence[float], of: Outputs) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.weights = tuple(weights)
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, classes) whose softmax is the prediction of all networks together."""
        outputs = [network(x) for network in self.networks]
        if self.of == "logits":
            return torch.stack([z * weight for z, weight in zip(outputs, self.weights, strict=True)]).sum(0)
        parts = [z.log_softmax(1) + math.log(weight) for z, weight in zip(outputs, self.weights, strict=True)]
        return torch.stack(parts).logsumexp(0)


def classifier(model: nn.Module) -> nn.Linear:
    """Return a network's last linear layer, in the order of its modules.

    Raises UserError for a network without one, and for several networks that predict together.
    """
    if isinstance(model, Blended):
        problem = "is made of several networks that predict together, which have no common last layer"
        raise UserError("model", problem, "choose an inference that needs none, such as source")
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise UserError("model", "has no linear layer, whose input would be its features", "end it in a linear layer")
    return layers[-1]


def head(model: nn.Module) -> nn.Module:
    """Return a network's last linear layer or, in a network without one, its last convolution.

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


# ---- dense outputs, of which each pixel is a sample: to test-time methods, and to the cross-entropy


NONE_IGNORED = -100
"""Torch's default for the class number to ignore, which no label has."""


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample (batch,), or of each pixel of dense outputs (batch, height, width).

    `logits` are (batch, classes, ...), and `y` (batch, ...), int64. Pixels of class IGNORED (255) have 0. The bits are
    those of torch's `cross_entropy`, which for images has no deterministic kernel on a GPU.
    """
    samples = logits.log_softmax(1).movedim(1, -1).flatten(0, -2)
    ignored = IGNORED if y.dim() > 1 else NONE_IGNORED
    return nll_loss(samples, y.flatten(), reduction="none", ignore_index=ignored).reshape_as(y)


class Pixelwise(nn.Module):
    """Wraps a network whose outputs (batch, classes, height, width) become (batch * height * width, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.grid: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all pixels of a batch (pixels, classes), image by image."""
        logits: Tensor = self.network(x)
        self.grid = (len(logits), *logits.shape[2:])
        return logits.movedim(1, -1).flatten(0, -2)

    def as_images(self, logits: Tensor) -> Tensor:
        """Return the logits of the last batch's pixels (pixels, classes) as (batch, classes, height, width)."""
        return logits.unflatten(0, self.grid).movedim(-1, 1)
