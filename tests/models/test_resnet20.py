"""ResNet-20: its counts, shortcuts and initial weights, worked out by hand."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.models import initialise
from fedshift.models._resnet import Block
from fedshift.models.resnet20 import ResNet20

SHAPE = (3, 32, 32)
CONVOLUTIONS = [(16, 3), *[(16, 16)] * 6, (32, 16), *[(32, 32)] * 5, (64, 32), *[(64, 64)] * 5]


def network(shape: tuple[int, ...] = SHAPE, classes: int = 10, **settings: Any) -> nn.Module:
    return initialise(ResNet20(**settings), shape, classes, seed=0)


def layers(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, kind)]


@pytest.mark.parametrize(
    ("norm", "classes", "trainable", "affine", "statistics", "batch_norms"),
    [("batch", 10, 269_722, 1376, 1376, 19), ("group", 10, 269_722, 0, 0, 0), ("batch", 100, 275_572, 1376, 1376, 19)],
)
def test_counts_are_those_of_the_paper(
    norm: str, classes: int, trainable: int, affine: int, statistics: int, batch_norms: int
) -> None:
    model = network(classes=classes, norm=norm)
    found = layers(model, nn.BatchNorm2d)
    assert len(found) == batch_norms
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable
    assert sum(p.numel() for layer in found for p in layer.parameters()) == affine
    assert sum(b.numel() for b in model.buffers() if b.is_floating_point()) == statistics


def test_one_channel_takes_two_filters_of_nine_weights_less_for_each_of_16_outputs() -> None:
    model = network((1, 28, 28))
    assert sum(p.numel() for p in model.parameters()) == 269_722 - 16 * 2 * 9
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_layers_follow_the_table(norm: str) -> None:
    model = network(norm=norm)
    convolutions = layers(model, nn.Conv2d)
    assert [c.weight.shape for c in convolutions] == [(after, before, 3, 3) for after, before in CONVOLUTIONS]
    assert all(c.bias is None for c in convolutions)
    assert [c.stride for c in convolutions] == [(2, 2) if k in (7, 13) else (1, 1) for k in range(19)]
    assert len(layers(model, nn.GroupNorm if norm == "group" else nn.BatchNorm2d)) == 19
    assert [line.weight.shape for line in layers(model, nn.Linear)] == [(10, 64)]


@pytest.mark.parametrize(("size", "last"), [(32, 8), (28, 7), (33, 9), (9, 3)])
def test_two_stages_halve_the_picture_and_round_up(size: int, last: int) -> None:
    model, seen = network((3, size, size)).eval(), []
    blocks = layers(model, Block)
    blocks[-1].register_forward_hook(lambda _, __, out: seen.append(out.shape))
    assert len(blocks) == 9
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 10)
    assert seen == [(2, 64, last, last)]


def test_the_shortcut_takes_every_second_pixel_and_pads_a_quarter_on_both_sides() -> None:
    """The residual branch is zero, so that a block shows its shortcut alone."""
    block = Block(16, 32, lambda _: nn.Identity())
    for convolution in (block.convolution1, block.convolution2):
        nn.init.zeros_(convolution.weight)
    x = np.random.default_rng(0).normal(size=(2, 16, 7, 6))
    expected = np.zeros((2, 32, 4, 3))
    expected[:, 8:24] = np.maximum(x[:, :, ::2, ::2], 0)
    np.testing.assert_array_equal(block.double()(torch.from_numpy(x)).detach().numpy(), expected)


def test_the_shortcut_of_equal_width_is_the_input_itself() -> None:
    block = Block(16, 16, nn.BatchNorm2d)
    nn.init.zeros_(block.norm2.weight)  # type: ignore[arg-type]
    x = torch.randn(2, 16, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x.clamp(min=0))


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_initial_weights_are_kaiming_normal_by_fan_in(norm: str) -> None:
    model = network(norm=norm)
    for convolution, (_, before) in zip(layers(model, nn.Conv2d), CONVOLUTIONS, strict=True):
        weight = convolution.weight.detach()
        expected = (2 / (9 * before)) ** 0.5
        assert float(weight.std()) == pytest.approx(expected, rel=4 / (2 * weight.numel()) ** 0.5)
        assert abs(float(weight.mean())) < 4 * expected / weight.numel() ** 0.5
        assert float(weight.abs().max()) > 2 * expected, "a uniform draw of this width ends at 1.74"
    (line,) = layers(model, nn.Linear)
    assert float(line.weight.detach().std()) == pytest.approx((2 / 64) ** 0.5, rel=4 / 1280**0.5)
    assert 0 < float(line.bias.detach().abs().max()) <= 1 / 8, "PyTorch's own: uniform to 1 / sqrt(64)"
    for layer in layers(model, nn.GroupNorm if norm == "group" else nn.BatchNorm2d):
        assert (layer.weight == 1).all()
        assert (layer.bias == 0).all()


def test_groups_are_those_asked_for() -> None:
    assert {layer.num_groups for layer in layers(network(norm="group"), nn.GroupNorm)} == {2}
    assert {layer.num_groups for layer in layers(network(norm="group", groups=8), nn.GroupNorm)} == {8}


def test_with_group_norm_an_image_does_not_depend_on_its_batch() -> None:
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    grouped, batched = network(norm="group").train(), network(norm="batch").train()
    torch.testing.assert_close(grouped(x)[:2], grouped(x[:2]))
    assert float((batched(x)[:2] - batched(x[:2])).detach().abs().max()) > 0.01


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_every_parameter_gets_a_gradient(norm: str) -> None:
    model = network(norm=norm).train()
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"groups": 3},
            r"model \(resnet20\)\.groups: 3 groups do not divide 16 channels evenly; take 1, 2, 4, 8 or 16",
        ),
        ({"groups": 0}, r"model \(resnet20\)\.groups: .*greater than or equal to 1"),
        ({"groups": 32}, r"model \(resnet20\)\.groups: .*less than or equal to 16"),
        ({"norm": "grup"}, r"model \(resnet20\)\.norm: unknown value 'grup'; did you mean 'group'\?"),
    ],
)
def test_a_setting_without_meaning_is_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build("model", {"name": "resnet20", **settings})
    assert "\n" not in str(caught.value)


def test_models_and_datasets_are_found_without_torch() -> None:
    code = (
        "import sys; from fedshift.core.registry import build, discover; discover('model'), discover('dataset');"
        "build('model', {'name': 'resnet20', 'norm': 'group'}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_norms_it_has_their_parameters_less() -> None:
    """19 norms of 688 channels in all, a factor and a shift each."""
    network = ResNet20(norm="none").build((3, 32, 32), 10)
    assert sum(p.numel() for p in network.parameters()) == 269_722 - 2 * 688
    assert list(network.buffers()) == []
