"""One step of an algorithm with personal networks, small enough for a pencil."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedshift import Federation
from fedshift.algorithms import Local
from fedshift.core.registry import get


def one_step(name: str, personal: float, **settings: Any) -> Federation:
    """Train one client for one step of 0.1 on f = m^2 / 2, from w = 1 and a personal network v = `personal`."""

    def loss(self: Any, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = local.model(x)
        return 0.5 * out.square().mean(), out

    model = nn.Linear(1, 1, bias=False).double()
    nn.init.ones_(model.weight)
    data = {"one": (torch.ones(2, 1).double(), torch.zeros(2, dtype=torch.long))}
    algorithm = type("Squared", (get("algorithm", name),), {"loss": loss})(**settings)
    training = {"lr": 0.1, "batch_size": 2, "rounds": 1, "select": "last"}
    trained = Federation(model, data, algorithm=algorithm, training=training)
    trained.clients[0].state["personal"] = torch.tensor([personal], dtype=torch.float64)
    return trained.run()
