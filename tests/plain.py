"""FedAvg under every BN policy as one would write it without this library: modules, state dicts and torch's optimiser.

Only the order of the batches is taken from the library's streams.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy import TRAVELS, kinds

from fedshift.rng import stream
from fedshift.training import Training

State = dict[str, Tensor]


def batches(order: Any, size: int) -> list[Tensor]:
    """Pieces of `size`; a last piece of one element belongs to the piece before it."""
    pieces = list(torch.from_numpy(order).split(size))
    if len(pieces) > 1 and len(pieces[-1]) == 1:
        pieces[-2:] = [torch.cat(pieces[-2:])]
    return pieces


def local_epochs(model: nn.Module, x: Tensor, y: Tensor, training: Training, rng: Any) -> float:
    """One round's local work with a new optimiser. Returns the mean loss over all samples seen."""
    optimiser = torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    total = 0.0
    model.train()
    for _ in range(training.local_epochs):
        for index in batches(rng.permutation(len(y)), training.batch_size):
            optimiser.zero_grad()
            loss = cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimiser.step()
            total += loss.item() * len(index)
    return total / (len(y) * training.local_epochs)


def weights(data: Mapping[str, Any], training: Training) -> dict[str, float]:
    total = sum(len(y) for _, y in data.values())
    return {name: len(y) / total if training.weights == "size" else 1 / len(data) for name, (_, y) in data.items()}


def fedavg(
    model: nn.Module,
    data: Mapping[str, Any],
    training: Training,
    bn: str = "aggregated",
    rounds: int = 1,
    seed: int = 0,
) -> tuple[State, dict[str, State], list[dict[str, float]]]:
    """The averaged tensors, each client's whole state with them, and each round's training losses."""
    travels = [name for kind in TRAVELS[bn] for name in kinds(model)[kind]]
    nets = {name: copy.deepcopy(model) for name in data}
    share = weights(data, training)
    losses = []
    for number in range(1, rounds + 1):
        losses.append(
            {
                name: local_epochs(net, *data[name], training, stream(seed, number, name, "batches"))
                for name, net in nets.items()
            }
        )
        mean = {k: sum(share[name] * net.state_dict()[k] for name, net in nets.items()) for k in travels}
        for net in nets.values():
            net.load_state_dict(mean, strict=False)
    return mean, {name: dict(net.state_dict()) for name, net in nets.items()}, losses
