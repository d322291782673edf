"""The setting `norm` of models: another norm in the place of every batch norm, and all else as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedshift.core.errors import UserError
from fedshift.core.registry import build
from fedshift.models import Model, initialise, shaped
from fedshift.nn.norms import ImageLayerNorm, Mixture, StandardisedConv2d, type_of

SHAPES = {
    "unet_small": (3, 32, 32),
    "densenet_small": (3, 32, 32),
    "digit_cnn": (3, 28, 28),
    "alexnet_bn": (3, 63, 63),
    "resnet20": (3, 32, 32),
    "mlp": (10,),
}
OTHERS = ("group", "instance", "layer", "mixture", "weight", "none")
BUILT = {
    "unet_small": OTHERS,
    "densenet_small": ("group", "instance", "layer", "mixture", "none"),
    "digit_cnn": ("group", "layer", "weight", "none"),
    "alexnet_bn": ("group", "layer", "weight", "none"),
    "resnet20": ("group", "instance", "layer", "mixture", "none"),
    "mlp": ("group", "layer", "none"),
}
MADE = {"group": nn.GroupNorm, "instance": nn.InstanceNorm2d, "layer": ImageLayerNorm, "mixture": Mixture}


def model(name: str, norm: str = "batch", **settings: object) -> Model:
    made: Model = build("model", {"name": name, "norm": norm, **settings})
    return made


@pytest.mark.parametrize(("name", "norm"), [(name, norm) for name, norms in BUILT.items() for norm in norms])
def test_another_norm_takes_the_place_of_every_batch_norm(name: str, norm: str) -> None:
    """Other tensors keep their names and initial weights: those of the network with batch norm."""
    shape = SHAPES[name]
    tiny: dict[str, Any] = {"hidden": [8, 4]} if name == "mlp" else {}
    usual = initialise(model(name, **tiny), shape, 2, seed=3)
    other = initialise(model(name, norm, **tiny), shape, 2, seed=3)
    norms = {path for path, layer in usual.named_modules() if type_of(layer)}
    for path in norms:
        assert isinstance(other.get_submodule(path), MADE.get(norm, nn.Identity))
    common = {k: v for k, v in usual.state_dict().items() if k.rpartition(".")[0] not in norms}
    assert all(torch.equal(other.state_dict()[k], v) for k, v in common.items())
    convolutions = sum(type(layer) is StandardisedConv2d for layer in other.modules())
    plain = sum(type(layer) is nn.Conv2d for layer in usual.modules())
    last = name == "unet_small"  # its head is a convolution
    assert convolutions == (plain - last if norm == "weight" else 0)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    logits = other.train()(x)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    assert [key for key, p in other.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize(
    ("name", "norm"), [(name, norm) for name, norms in BUILT.items() for norm in OTHERS if norm not in norms]
)
def test_what_cannot_be_built_is_refused_in_a_line(name: str, norm: str) -> None:
    with pytest.raises(UserError, match=rf"model \({name}\)\.norm: '{norm}' cannot be built: ") as error:
        model(name, norm)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "settings", "shape", "words"),
    [
        ("unet_small", {"norm": "instance"}, (3, 31, 31), "takes images of at least 32x32 pixels, these have 31x31"),
        ("densenet_small", {"norm": "mixture"}, (3, 28, 28), "takes images of at least 29x29 pixels, these have 28x28"),
        ("resnet20", {"norm": "instance"}, (3, 4, 4), "takes images of at least 5x5 pixels, these have 4x4"),
        ("unet_small", {"norm": "group", "groups": 16}, (3, 32, 32), "16 groups do not divide 8 channels evenly"),
        ("mlp", {"norm": "group", "groups": 30}, (10,), "30 groups do not divide 30 channels evenly"),
    ],
)
def test_sizes_that_a_norm_cannot_have_are_refused(
    name: str, settings: dict[str, object], shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        shaped(build("model", {"name": name, **settings}), shape, 2)


@pytest.mark.parametrize(("name", "side"), [("unet_small", 32), ("densenet_small", 29), ("resnet20", 5)])
def test_the_least_images_for_instance_norm_are_enough(name: str, side: int) -> None:
    network = initialise(model(name, "instance"), (3, side, side), 2, seed=0)
    assert network.train()(torch.zeros(1, 3, side, side)).isfinite().all()


@pytest.mark.parametrize("name", SHAPES)
def test_the_usual_norm_is_part_of_no_identity(name: str) -> None:
    """But of resnet20's, which had the setting before the others."""
    identity = model(name).identity()
    assert ("norm" in identity) == (name == "resnet20")
    assert model(name, "none").identity()["norm"] == "none"
