"""What all sites and the server of a federation must agree on: network, plug-ins and settings, without any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..addons import Addon, extended
from ..algorithms import Algorithm, Training
from ..core.console import say
from ..core.errors import UserError
from ..core.registry import build, validated
from ..nn.batchnorm import batch_norms
from ..nn.features import classifier
from ..nn.norms import remarks
from ..nn.policies import BATCH, BNPolicy, norm_types, policy
from ..tasks import CLASSIFICATION, Task


@dataclass(frozen=True, eq=False)
class Specification:
    """Settings of a federated training on which all sites and the server must agree. It holds no data.

    Attributes
    ----------
    model : the network with the initial weights, and with the layers of algorithm and add-on
    algorithm, addon, task : plug-ins
    bn : name of the BN policy, which says which batch-norm tensors are aggregated
    norms : types of normalisation layers that the BN policy governs, such as batch or group
    training : settings of local training and of the rounds, as the user gave them
    seed : seed of all random draws
    features : number of inputs of the last linear layer of the network without the add-on; 0 if it has none
    """

    model: nn.Module
    algorithm: Algorithm
    addon: Addon | None
    task: Task
    bn: str
    training: Training
    seed: int
    features: int
    norms: tuple[str, ...] = BATCH

    @classmethod
    def open(
        cls,
        model: nn.Module,
        *,
        algorithm: str | dict[str, Any] | Algorithm = "fedavg",
        bn: str | None = None,
        addon: str | dict[str, Any] | Addon | None = None,
        training: Training | dict[str, Any] | None = None,
        seed: int = 0,
        task: str | dict[str, Any] | Task = CLASSIFICATION,
        norms: str | Sequence[str] = BATCH,
    ) -> Specification:
        """Build the plug-ins and settings from their names or dicts, and add the plug-ins' layers to the network.

        The parameters are those of `fedshift.Federation`. Raises UserError for an unknown plug-in or setting, and for
        plug-ins and settings that cannot be combined.
        """
        requested: Algorithm = build("algorithm", algorithm)
        settings = training if isinstance(training, Training) else validated(Training, training or {}, "training")
        bn = bn or requested.policies[0]
        requested.require(settings, bn)
        added: Addon | None = build("addon", addon) if addon else None
        if added:
            added.require(settings)
        types = norm_types(norms)
        _report_norms(model, requested, bn, types, settings)
        canonical = requested.canonical()
        own_layers = extended(canonical, model, seed)
        return cls(
            extended(added, own_layers, seed),
            canonical,
            added,
            build("task", task),
            bn,
            settings,
            seed,
            features_of(own_layers),
            types,
        )

    @property
    def policy(self) -> BNPolicy:
        """The BN policy named `bn`, applied to normalisation layers of the types in `norms`."""
        return policy(self.bn, self.norms)


def features_of(model: nn.Module) -> int:
    """Return the number of inputs of a network's last linear layer, or 0 if it has no linear layer."""
    try:
        return classifier(model).in_features
    except UserError:
        return 0


def _report_norms(model: nn.Module, algorithm: Algorithm, bn: str, norms: tuple[str, ...], training: Training) -> None:
    """Print which settings have no effect on this network, and how many tensors the BN policy keeps at the clients."""
    why = "" if batch_norms(model) else "the network has no batch-norm layer"
    if training.train == "head":
        why = why or "training.train: head does not train batch norm"
        if bn != "aggregated" and algorithm.collaboration.has_global_model:
            say(f"bn: {bn!r} has no effect, since training.train: head trains no norm")
    elif algorithm.collaboration.has_global_model:
        for line in remarks(model, bn, norms):
            say(line)
    if why and (algorithm.joint(1) or algorithm.freezes_statistics(training.rounds, training.rounds)):
        say(f"algorithm: {algorithm.name} is FedAvg here, since {why}")
