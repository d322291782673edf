"""FedSAM: a step with pencil and paper, its limit FedAvg, dropout, and running statistics that move once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toy import TRAVELS, clients, differing, gap, kinds, network

from fedshift import Federation

TRAINING = {"rounds": 2, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.5, "select": "last"}


def trained(algorithm: Any, bn: str = "aggregated", dropout: float = 0.0, **training: Any) -> Federation:
    model = network(dropout=dropout)
    return Federation(model, clients(), algorithm=algorithm, bn=bn, training=TRAINING | training).run()


class Quadratic(nn.Module):
    """Logits 0 and log(e^q - 1), whose cross-entropy for class 0 is q = w' diag(2, 1) w / 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = self.w[0] ** 2 + self.w[1] ** 2 / 2
        return torch.stack([x[:, 0] * 0, torch.log(torch.expm1(loss)).expand(len(x))], 1)


def test_a_step_on_a_quadratic() -> None:
    """At (1, 1) g = (2, 1). With rho 0.05 the gradient at w + e is (2 (1 + 2 r), 1 + r) with r = 0.05 / sqrt 5."""
    x, y = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.long)
    federation = Federation(
        Quadratic(),
        {"a": (x, y)},
        algorithm={"name": "fedsam", "rho": 0.05},
        training={"rounds": 1, "lr": 0.1, "batch_size": 2},
    )
    w = federation.run().global_state()["w"].numpy()
    r = 0.05 / 5**0.5
    np.testing.assert_allclose(w, [1 - 0.1 * 2 * (1 + 2 * r), 1 - 0.1 * (1 + r)], rtol=0, atol=1e-12)
    np.testing.assert_allclose(w, [0.791056, 0.897764], rtol=0, atol=5e-7)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("bn", TRAVELS)
def test_without_a_climb_it_is_fedavg(bn: str, adaptive: bool) -> None:
    expected = trained("fedavg", bn, dropout=0.2).global_state()
    given = {"name": "fedsam", "adaptive": adaptive}
    assert differing(trained({**given, "rho": 0.0}, bn, dropout=0.2).global_state(), expected) == []
    assert gap(trained({**given, "rho": 1e-13}, bn, dropout=0.2).global_state(), expected) < 1e-11, "the same dropout"
    assert gap(trained({**given, "rho": 0.3}, bn, dropout=0.2).global_state(), expected) > 1e-3


def test_running_statistics_and_counters_move_once_a_step() -> None:
    """In one step from equal weights they are those of FedAvg to the last bit, although the parameters are not."""
    sam, plain = (
        trained(algorithm, rounds=1, local_epochs=1, local_steps=1, batch_size=32).client_state("b")
        for algorithm in ({"name": "fedsam", "rho": 0.5}, "fedavg")
    )
    tensors = kinds(network())
    changed = differing(sam, plain)
    assert not set(changed) & {*tensors["statistics"], *tensors["counters"]}
    assert {"3.weight", "9.weight"} <= set(changed)
