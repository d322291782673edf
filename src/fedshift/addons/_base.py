"""The base of add-ons: domain-generalisation methods that can be combined with any algorithm.

An add-on changes the local objective, and may add layers to the network. The algorithm handles gradients and
tensors as before. At test time the network answers as if there were no add-on, unless the add-on says otherwise.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ..core.errors import UserError
from ..core.registry import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..algorithms import Algorithm, Images, Local, Server, Training


class Addon(Plugin):
    """Base class of add-ons: they change the local objective of any algorithm, and may add layers to the network."""

    kind: ClassVar[str] = "addon"
    paper: ClassVar[str] = ""
    weighs_classes: ClassVar[bool] = False
    """True if the loss is made with `algorithms.class_loss`, so that the class weights of the training take effect."""

    def require(self, training: Training) -> None:
        """Raise UserError for settings of the training that the add-on cannot be combined with."""
        if training.class_weights and not self.weighs_classes:
            problem = f"have no effect with the add-on {self.name}, whose loss does not use them"
            raise UserError("training.class_weights", problem, "leave out one of the two")

    def extend(self, model: nn.Module) -> nn.Module:
        """Return the network with the add-on's layers; its forward pass still gives (batch, classes) logits.

        The caller sets a keyed random state, so initial weights may be drawn freely.
        """
        return model

    def stays(self, model: nn.Module) -> Sequence[str]:
        """Return the names of parameters of the extended network that never leave a client."""
        return ()

    def offer(self, images: Images) -> dict[str, Tensor]:
        """Return tensors, by name, that a client sends to all others once, before the first round.

        `images` are the client's training images. The ledger counts the tensors: up once, and down at every other
        client. A client gets all clients' tensors as `local.offers`, and only its own if it trains alone.
        """
        return {}

    def client_state(self, server: Server) -> dict[str, Tensor]:
        """Return the tensors that a client keeps for the add-on between rounds, as they are before the first round.

        Hooks find them in `local.state`, beside those of the algorithm: begin their names with that of the add-on.
        """
        return {}

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local objective of one batch (scalar), and class logits (batch, classes).

        It may draw from torch's default generator, which is seeded by run, round and client.
        """
        raise TypeError(f"{type(self).__name__} has no objective")


def home_names(addon: Addon | None, algorithm: Algorithm, model: nn.Module) -> set[str]:
    """Return the names of all parameters that never leave a client, as add-on and algorithm name them (`stays`).

    Raises UserError for a name of no parameter.
    """
    known = {name for name, _ in model.named_parameters()}
    names = dict[str, str]()
    plugins: tuple[Addon | Algorithm | None, ...] = (addon, algorithm)
    for plugin in plugins:
        if plugin is not None:
            names |= dict.fromkeys(plugin.stays(model), f"{plugin.name}.stays")
    for name, hook in names.items():
        if name not in known:
            problem = f"names {name!r}, which is no parameter of the network"
            raise UserError(hook, problem, "give names of model.named_parameters()")
    return set(names)


def extended(plugin: Addon | Algorithm | None, model: nn.Module, seed: int) -> nn.Module:
    """Return the network with the plug-in's own layers, whose initial weights depend on `seed` alone."""
    if plugin is None:
        return model
    from ..core.rng import keyed

    device = next((parameter.device for parameter in model.parameters()), None)
    elsewhere = device is not None and device.type not in ("cpu", "meta")
    with keyed(seed, f"{plugin.kind} weights"):
        # Drawn on the CPU, so that weights are the same on every device.
        if elsewhere:
            return plugin.extend(copy.deepcopy(model).cpu()).to(device)
        return plugin.extend(model)
