"""Networks without memory have the shapes of real ones."""

from __future__ import annotations

import torch
from torch import nn

from fedshift.core.registry import build
from fedshift.core.rng import keyed
from fedshift.nn.device import without_memory


def shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in network.state_dict().items()}


def test_a_network_without_memory_has_the_shapes_of_a_real_one() -> None:
    for name in ("densenet_small", "resnet20", "two_layer"):
        model = build("model", name)
        with keyed(0, "size"):
            real = model.build((3, 32, 32), 4)
            with without_memory():
                sized = model.build((3, 32, 32), 4)
        assert shapes(sized) == shapes(real)
        assert {value.device.type for value in sized.state_dict().values()} == {"meta"}


def test_draws_outside_are_made() -> None:
    with without_memory():
        assert torch.empty(3).normal_().shape == (3,)
    assert torch.zeros(3).normal_(generator=torch.Generator().manual_seed(0)).abs().min() > 0
