"""The base of add-ons: domain-generalisation methods on top of an algorithm.

An add-on changes the local objective, and may give the network heads of its own; what an algorithm does with
gradients and tensors stays as it is. At test time the network answers as if there were no add-on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..core.registry import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..algorithms import Algorithm, Local


class Addon(Plugin):
    """Base of add-ons."""

    kind: ClassVar[str] = "addon"
    paper: ClassVar[str] = ""

    def extend(self, model: nn.Module) -> nn.Module:
        """The network with the add-on's heads, whose forward pass still gives (batch, classes) logits.

        Called inside a keyed random state: it may draw initial weights freely.
        """
        return model

    def stays(self, model: nn.Module) -> Sequence[str]:
        """Names of parameters of the extended network that never leave a client."""
        return ()

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The local objective of one batch (scalar), and class logits (batch, classes).

        May draw from torch's default generator, which is keyed while clients train.
        """
        raise TypeError(f"{type(self).__name__} has no objective")


def extended(plugin: Addon | Algorithm | None, model: nn.Module, seed: int) -> nn.Module:
    """The network with the plug-in's own layers, whose initial weights depend on `seed` alone."""
    if plugin is None:
        return model
    from ..core.rng import keyed

    with keyed(seed, f"{plugin.kind} weights"):
        return plugin.extend(model)
