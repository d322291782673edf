"""The choice of the memory format: channels last for networks that convolve images on a CPU or a GPU, if they can."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy import SHAPE, clients, fingerprint, gap, network

from fedshift import Federation
from fedshift.core.registry import build
from fedshift.models import initialise
from fedshift.nn.device import channels_last

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
        (network(), SHAPE, "cuda", True),
        (network(), SHAPE, "mps", False),
        (nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), SHAPE, "cpu", False),
        (nn.Linear(5, 3), (5,), "cpu", False),
        (Viewing(), SHAPE, "cpu", False),
    ],
    ids=["convolutions", "float32", "cuda", "mps", "linear", "vectors", "view"],
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


@pytest.mark.parametrize(
    ("name", "shape"), [("densenet_small", (3, 32, 32)), ("resnet20", (3, 32, 32)), ("digit_cnn", (3, 28, 28))]
)
def test_both_formats_compute_the_same_gradients(name: str, shape: tuple[int, ...]) -> None:
    """In float64, so that only rounding is left; in float32 some steps of SGD amplify it much."""
    x = torch.randn(4, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = []
    for layout in (torch.contiguous_format, torch.channels_last):
        model = initialise(build("model", name), shape, 3, 0).double().to(memory_format=layout)
        cross_entropy(model(x.contiguous(memory_format=layout)), torch.tensor([0, 1, 2, 0])).backward()
        gradients.append({k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    assert channels_last(None, model, shape, CPU)
    assert gap(gradients[1], gradients[0]) < 1e-12
