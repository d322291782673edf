"""The networks that predict a site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from ..nn.features import Outputs
from .client import ClientTensors
from .local_training import LocalTrainer


class Networks(NamedTuple):
    """Networks that predict a site together: a name, a `state_dict` and a weight of each, and what is averaged."""

    names: Sequence[str]
    states: Sequence[dict[str, Tensor]]
    weights: Sequence[float]
    of: Outputs = "logits"


def client_networks(trainer: LocalTrainer, name: str, received: Tensor, kept: ClientTensors) -> Networks:
    """Return the networks that predict a client, given the shared tensors that it receives and what it keeps.

    Where several predict it, the first is the client's personal network.
    """
    state = kept.state if trainer.algorithm.has_personal_networks else None
    blend = trainer.load_personal(received, kept.own, kept.counters, state)
    states = [trainer.named(vector, kept.counters) for vector in blend.networks]
    return Networks((name, *(f"{name}/{n}" for n in range(1, len(states)))), states, blend.weights, blend.of)
