"""FixBN: its backward pass by hand, what stays in training mode, and its setting; test_by_hand.py has its rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import clients, network

from fedshift import Federation, UserError
from fedshift.algorithms import Local
from fedshift.algorithms.fixbn import FixBN

EXACT: Any = {"rtol": 0, "atol": 5e-7}


class TwoLogits(nn.Module):
    """[0, z]."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], 1)


def channel() -> nn.Sequential:
    """Batch norm of one channel: eps plays no part, gamma 1, beta 0, running mean 1, running variance 4."""
    norm = nn.BatchNorm1d(1, eps=1e-12)
    norm.running_mean.fill_(1)
    norm.running_var.fill_(4)
    return nn.Sequential(norm, TwoLogits()).double()


class Passing(FixBN):
    """FixBN whose only step passes `UPSTREAM` back through the first layer, and notes y and dx by input."""

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        out = local.model[0](x)
        keys = x.detach().flatten().tolist()
        out.backward(torch.tensor([UPSTREAM[key] for key in keys]).double()[:, None])
        SEEN.update(dict(zip(keys, zip(out.flatten().tolist(), x.grad.flatten().tolist(), strict=True), strict=True)))
        AFFINE[:] = local.grad.tolist()
        return local.model[1](out).detach()


UPSTREAM: dict[float, float] = {}
SEEN: dict[float, tuple[float, float]] = {}
AFFINE: list[float] = []
FROZEN, MOVING = 0, 1
DGAMMA = -2 / (14 / 3) ** 0.5
"""That of the first case with moving statistics: its only output with a gradient is (0 - 2) / sqrt(14 / 3)."""


@pytest.mark.parametrize(
    ("upstream", "freeze_after", "y", "dx", "affine"),
    [
        ({0: 1, 1: 0, 5: 0}, FROZEN, [-0.5, 0, 2], [0.5, 0, 0], [-0.5, 1]),
        ({0: 1, 1: 0, 5: 0}, MOVING, [-0.925820, -0.462910, 1.388730], [0.176347, -0.220433, 0.044087], [DGAMMA, 1]),
        ({1: 1, 5: 3}, FROZEN, [0, 2], [0.5, 1.5], [6, 4]),
        ({1: 1, 5: 3}, MOVING, [-1, 1], [0, 0], [2, 4]),
    ],
)
def test_the_backward_pass_of_one_channel(
    upstream: dict[float, float], freeze_after: int, y: list[float], dx: list[float], affine: list[float]
) -> None:
    """Frozen statistics pass the gradient on by 1 / 2; those of the batch take its mean and its slope away."""
    UPSTREAM.update(upstream)
    x = torch.tensor([*upstream]).double()[:, None]
    training = {"rounds": 1, "batch_size": len(x), "select": "last"}
    algorithm = Passing(freeze_after=freeze_after)
    Federation(
        channel(), {"a": (x, torch.zeros(len(x), dtype=torch.long))}, algorithm=algorithm, training=training
    ).run()
    np.testing.assert_allclose([SEEN[key] for key in upstream], list(zip(y, dx, strict=True)), **EXACT)
    np.testing.assert_allclose(AFFINE, affine, **EXACT)


def test_only_batch_norm_leaves_the_training_mode() -> None:
    modes: list[dict[str, bool]] = []

    class Looking(FixBN):
        """FixBN that notes the modes of layers."""

        def correct(self, local: Local) -> None:
            modes.append({type(layer).__name__: layer.training for layer in local.model.children()})

    training = {"rounds": 2, "local_steps": 1, "batch_size": 4}
    Federation(network(dropout=0.2), {"a": clients()["a"]}, algorithm=Looking(freeze_after=1), training=training).run()
    before, after = modes
    assert all(before.values())
    assert {name for name, training in after.items() if not training} == {"BatchNorm2d"}
    assert after["Dropout"]


@pytest.mark.parametrize(("rounds", "half"), [(1, 1), (2, 1), (3, 2), (100, 50)])
def test_the_default_is_half_of_the_rounds(rounds: int, half: int) -> None:
    frozen = [FixBN().freezes_statistics(number, rounds) for number in range(1, rounds + 1)]
    assert frozen == [False] * half + [True] * (rounds - half)
    assert [FixBN(freeze_after=0).freezes_statistics(1, rounds), FixBN(freeze_after=1).freezes_statistics(1, 1)] == [
        True,
        False,
    ]


def test_more_rounds_than_the_training_has_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        Federation(network(), clients(), algorithm={"name": "fixbn", "freeze_after": 4}, training={"rounds": 3})
    assert str(caught.value) == (
        "algorithm (fixbn).freeze_after: is 4, more than the 3 rounds of the training; lower it, or use fedavg"
    )
