"""The choice of the memory format: channels last for networks that convolve images on a CPU, if they can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from toy import SHAPE, clients, fingerprint, network

from fedshift import Federation
from fedshift.nn.memory_format import channels_last

CPU = torch.device("cpu")


class Viewing(nn.Module):
    """A network that takes the output of a convolution for contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(2, 4, 3), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolution(x).view(len(x), -1))


@pytest.mark.parametrize(
    ("model", "shape", "device", "expected"),
    [
        (network(), SHAPE, "cpu", True),
        (network(dtype=torch.float32), SHAPE, "cpu", True),
        (network(), SHAPE, "cuda", False),
        (nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), SHAPE, "cpu", False),
        (nn.Linear(5, 3), (5,), "cpu", False),
        (Viewing(), SHAPE, "cpu", False),
    ],
    ids=["convolutions", "float32", "cuda", "linear", "vectors", "view"],
)
def test_channels_are_last_where_a_network_convolves_images(
    model: nn.Module, shape: tuple[int, ...], device: str, expected: bool
) -> None:
    before, generator = fingerprint(model), torch.random.get_rng_state()
    assert channels_last(None, model, shape, torch.device(device)) is expected
    assert fingerprint(model) == before
    assert torch.equal(torch.random.get_rng_state(), generator)


@pytest.mark.parametrize("wanted", [True, False])
def test_a_setting_decides_without_a_look_at_the_network(wanted: bool) -> None:
    assert channels_last(wanted, nn.Identity(), (), CPU) is wanted


def test_a_network_that_asks_for_a_view_trains_in_the_usual_format() -> None:
    """With the channels last, torch refuses this network's view."""

    trained = Federation(Viewing().double(), clients(), training={"rounds": 1, "batch_size": 4}).run()
    assert not trained.trainer.channels_last
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        Federation(Viewing().double(), clients(), training={"rounds": 1, "batch_size": 4, "channels_last": True}).run()
