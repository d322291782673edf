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
    """How a federation trains.

    Attributes
    ----------
    model : the network with the initial weights, and with the layers of algorithm and add-on
    algorithm, addon, task : plug-ins
    bn : name of the BN policy
    norms : types of the norms that the policy is about
    training : settings of local training and of the rounds, as they were asked for
    seed : seed of everything random
    features : inputs of the last linear layer of the network without the add-on; 0 if it has none
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
        """Return what the parameters of `fedshift.Federation` say.

        Raises UserError for an unknown plug-in or setting, and for a combination without meaning.
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
        """The BN policy, over layers of the types `norms`."""
        return policy(self.bn, self.norms)


def features_of(model: nn.Module) -> int:
    """Return the inputs of a network's last linear layer; 0 if it has none."""
    try:
        return classifier(model).in_features
    except UserError:
        return 0


def _report_norms(model: nn.Module, algorithm: Algorithm, bn: str, norms: tuple[str, ...], training: Training) -> None:
    """Say which settings have no effect on the norms of a network, and what a policy keeps of them."""
    why = "" if batch_norms(model) else "the network has no batch-norm layer"
    if training.train == "head":
        why = why or "batch norm rests with training.train: head"
        if bn != "aggregated" and algorithm.collaboration.has_global_model:
            say(f"bn: {bn!r} has no effect, since all norms rest with training.train: head")
    elif algorithm.collaboration.has_global_model:
        for line in remarks(model, bn, norms):
            say(line)
    if why and (algorithm.joint(1) or algorithm.freezes_statistics(training.rounds, training.rounds)):
        say(f"algorithm: {algorithm.name} is FedAvg here, since {why}")
