"""FedAvg under every BN policy as one would write it without this library: modules, state dicts and torch's optimiser.

It takes the batches that the library noted to have taken; which these are is tested apart.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy import TRAVELS, kinds

from fedshift.algorithms import Training

State = dict[str, Tensor]


def local_epochs(model: nn.Module, x: Tensor, y: Tensor, training: Training, batches: Iterator[Tensor]) -> float:
    """One round's local work with a new optimiser. Returns the mean loss over all samples seen."""
    optimiser = torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )
    total, seen = 0.0, 0
    model.train()
    while seen < training.local_epochs * len(y):
        index = next(batches)
        optimiser.zero_grad()
        loss = cross_entropy(model(x[index]), y[index])
        loss.backward()
        optimiser.step()
        total, seen = total + loss.item() * len(index), seen + len(index)
    return total / seen


def weights(data: Mapping[str, Any], training: Training) -> dict[str, float]:
    total = sum(len(y) for _, y in data.values())
    return {name: len(y) / total if training.weights == "size" else 1 / len(data) for name, (_, y) in data.items()}


def fedavg(
    model: nn.Module,
    data: Mapping[str, Any],
    training: Training,
    bn: str,
    rounds: int,
    taken: Mapping[str, list[Tensor]],
) -> tuple[State, dict[str, State], list[dict[str, float]]]:
    """The averaged tensors, each client's whole state with them, and each round's training losses."""
    travels = [name for kind in TRAVELS[bn] for name in kinds(model)[kind]]
    nets = {name: copy.deepcopy(model) for name in data}
    batches = {name: iter(of) for name, of in taken.items()}
    share = weights(data, training)
    losses = []
    for _ in range(rounds):
        losses.append({k: local_epochs(net, *data[k], training, batches[k]) for k, net in nets.items()})
        mean = {k: sum(share[name] * net.state_dict()[k] for name, net in nets.items()) for k in travels}
        for net in nets.values():
            net.load_state_dict(mean, strict=False)
    assert not any(list(left) for left in batches.values()), "all batches are accounted for"
    return mean, {name: dict(net.state_dict()) for name, net in nets.items()}, losses
