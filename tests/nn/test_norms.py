"""Norms of every type: how many a network has, what policies keep of them, and what the letters "bn" find."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from fedshift.core.errors import UserError
from fedshift.nn.batchnorm import batch_norm_by, by_batch
from fedshift.nn.device import without_memory
from fedshift.nn.flat_state import Layout
from fedshift.nn.norms import ImageLayerNorm, Mixture, audit, counts, kept, remarks, type_of
from fedshift.nn.policies import NORMS, norm_types, policy

X = torch.tensor([[1.0, 3.0], [5.0, 11.0]], dtype=torch.float64)


def test_norms_of_one_image_by_hand() -> None:
    """One image of two channels, (1, 3) and (5, 11), without eps; the mean of all four is 5, their variance 14."""
    image = X.view(1, 2, 1, 2)
    by_channel = torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]).double()
    for layer in (nn.InstanceNorm2d(2, affine=True, eps=0), nn.GroupNorm(2, 2, eps=0)):
        torch.testing.assert_close(layer.double()(image).view(2, 2), by_channel)
    whole = ImageLayerNorm(2).double()
    whole.eps = 0
    torch.testing.assert_close(whole(image).view(2, 2), (X - 5) / 14**0.5)
    assert whole(image).flatten().tolist() == pytest.approx([-1.069045, -0.534522, 0, 1.603567], abs=1e-6)


def test_instance_norm_with_running_statistics_has_no_test_time_statistics() -> None:
    """It normalises by the image in training, afterwards by mean .1 (2 + 8) / 2 and variance .9 + .1 (2 + 18) / 2."""
    layer = nn.InstanceNorm2d(1, track_running_stats=True, eps=0).double()
    images = X.view(2, 1, 1, 2)
    torch.testing.assert_close(layer(images).view(2, 2), torch.tensor([[-1.0, 1.0], [-1.0, 1.0]]).double())
    torch.testing.assert_close(layer.eval()(images).view(2, 2), (X - 0.5) / 1.9**0.5)
    assert layer(images).flatten().tolist() == pytest.approx([0.3627, 1.8137, 3.2646, 7.6175], abs=1e-4)
    both = nn.Sequential(nn.BatchNorm2d(1), layer)
    with (
        pytest.raises(UserError, match=r"layer 1: is instance norm with running statistics"),
        batch_norm_by(both, by_batch),
    ):
        pass


# ---- types


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.BatchNorm1d(2), "batch"),
        (nn.SyncBatchNorm(2), "batch"),
        (nn.GroupNorm(2, 4), "group"),
        (nn.GroupNorm(1, 4), "group"),
        (ImageLayerNorm(4), "layer"),
        (nn.LayerNorm(4), "layer"),
        (nn.InstanceNorm3d(2), "instance"),
        (Mixture(2).batch, "batch"),
        (Mixture(2).instance, "instance"),
        (Mixture(2), ""),
        (nn.Linear(2, 2), ""),
    ],
)
def test_norms_are_found_by_type(layer: nn.Module, expected: str) -> None:
    assert type_of(layer) == expected


def test_types_of_norms_are_named_in_one_order() -> None:
    assert norm_types("all") == NORMS == ("batch", "group", "layer", "instance")
    assert norm_types(["instance", "batch", "batch"]) == ("batch", "instance")
    assert norm_types("group") == ("group",)
    with pytest.raises(UserError, match=r"norms: unknown type of norm 'grop'; did you mean 'group'\?"):
        norm_types(["grop"])
    with pytest.raises(UserError, match="norms: is an empty list"):
        norm_types([])


def mixed(kinds: tuple[str, ...] = ("batch", "group", "layer", "instance", "tracked")) -> nn.Sequential:
    """Return a network with one norm of each kind over 2 channels; the last has statistics and no affine part."""
    makes: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(2),
        "group": lambda: nn.GroupNorm(2, 2),
        "layer": lambda: ImageLayerNorm(2),
        "instance": lambda: nn.InstanceNorm2d(2, affine=True),
        "plain": lambda: nn.InstanceNorm2d(2),
        "tracked": lambda: nn.InstanceNorm2d(2, track_running_stats=True),
    }
    layers = [(name, makes[name]()) for name in kinds]
    model = nn.Sequential()
    model.add_module("body", nn.Conv2d(1, 2, 1))
    for name, layer in layers:
        model.add_module(name, layer)
    return model


@pytest.mark.parametrize(
    ("norms", "bn", "expected"),
    [
        (("batch",), "local", {"batch.weight", "batch.bias", "batch.running_mean", "batch.running_var"}),
        (("batch",), "local_statistics", {"batch.running_mean", "batch.running_var"}),
        (("group", "layer"), "local", {"group.weight", "group.bias", "layer.weight", "layer.bias"}),
        (("group", "layer"), "local_statistics", set()),
        (("instance",), "local_affine", {"instance.weight", "instance.bias"}),
        (("instance",), "local_statistics", {"tracked.running_mean", "tracked.running_var"}),
        (NORMS, "aggregated", set()),
    ],
)
def test_what_a_policy_keeps_is_what_the_flat_state_leaves_at_home(
    norms: tuple[str, ...], bn: str, expected: set[str]
) -> None:
    """Statistics of norms that the policy is not about travel, also under a policy that keeps statistics."""
    model, chosen = mixed(), policy(bn, norms)
    layout = Layout(model, norms=norms)
    travels = layout.shared(chosen)
    names = {name for name in layout.places if name not in layout.names(travels)}
    assert set(kept(model, chosen)) == names == expected
    assert layout.counters == ["batch.num_batches_tracked"]  # counted in any case


def test_by_default_the_flat_state_is_that_of_batch_norm() -> None:
    model = mixed(("batch", "group", "instance"))
    places = Layout(model).places
    assert [*places] == [
        *("batch.weight", "batch.bias"),
        *("body.weight", "body.bias", "group.weight", "group.bias", "instance.weight", "instance.bias"),
        *("batch.running_mean", "batch.running_var"),
    ]


@pytest.mark.parametrize(
    ("kinds", "norms", "bn", "expected"),
    [
        (("batch",), ("batch",), "local", []),
        (("batch",), ("batch",), "aggregated", []),
        (("group",), ("batch",), "local", ["no effect, since the network has no batch-norm layer"]),
        (("group",), ("group",), "local", ["keeps 2 tensors of group norm at home; they have no running statistics"]),
        (("group",), ("group",), "local", ["and 'local_affine' is the same"]),
        (("layer",), NORMS, "local_affine", ["and 'local' is the same"]),
        (("layer",), NORMS, "local_statistics", ["since layer norm has no running statistics in this network"]),
        (("instance",), NORMS, "local_statistics", ["no effect"]),
        (("plain",), NORMS, "local", ["since instance norm has no tensors in this network"]),
        (("tracked",), NORMS, "local_affine", ["since instance norm has no gamma and beta in this network"]),
        (("tracked",), NORMS, "local", ["keeps 2 tensors of instance norm at home; 'local_statistics' is the same"]),
        (("batch", "group"), NORMS, "local", ["keeps 6 tensors of batch norm and group norm at home"]),
    ],
)
def test_policies_that_coincide_are_said_in_a_line(
    kinds: tuple[str, ...], norms: tuple[str, ...], bn: str, expected: list[str]
) -> None:
    lines = list(remarks(mixed(kinds), bn, norms))
    assert len(lines) == len(expected)
    assert all(text in line and line.startswith(f"bn: {bn!r} ") for text, line in zip(expected, lines, strict=True))


# ---- the sheet of networks: counts by type, and what the letters "bn" find


@functools.cache
def network(name: str) -> nn.Module:
    """Return a network of the table, without memory for its numbers."""
    import monai.networks.nets as monai
    import torchvision.models as vision

    unet = functools.partial(
        monai.UNet, 2, 1, 2, channels=(16, 32, 64, 128, 256), strides=(2, 2, 2, 2), num_res_units=2
    )
    makes: dict[str, Callable[[], nn.Module]] = {
        "MONAI UNet, batch": lambda: unet(norm="batch"),
        "MONAI UNet, its default": unet,
        "MONAI UNet, instance with affine": lambda: unet(norm=("instance", {"affine": True})),
        "MONAI BasicUNet, its default": lambda: monai.BasicUNet(2, 1, 2),
        "MONAI SegResNet": lambda: monai.SegResNet(2, in_channels=1, out_channels=2),
        "MONAI AttentionUnet": lambda: monai.AttentionUnet(2, 1, 2, (16, 32, 64), (2, 2)),
        "resnet18": vision.resnet18,
        "densenet121": vision.densenet121,
        "mobilenet_v2": vision.mobilenet_v2,
        "convnext_tiny": vision.convnext_tiny,
        "swin_t": vision.swin_t,
    }
    with without_memory():
        return makes[name]()


TABLE = {  # by type: layers, affine tensors and floats, statistics and floats; then how many of all have "bn"
    "MONAI UNet, batch": ({"batch": (17, 34, 2_436, 34, 2_436)}, (0, 85)),
    "MONAI UNet, its default": ({"instance": (17, 0, 0, 0, 0)}, (0, 0)),
    "MONAI UNet, instance with affine": ({"instance": (17, 34, 2_436, 0, 0)}, (0, 34)),
    "MONAI BasicUNet, its default": ({"instance": (18, 36, 3_072, 0, 0)}, (0, 36)),
    "MONAI SegResNet": ({"group": (25, 50, 1_680, 0, 0)}, (0, 50)),
    "MONAI AttentionUnet": ({"batch": (14, 28, 644, 28, 644), "instance": (2, 0, 0, 0, 0)}, (0, 70)),
    "resnet18": ({"batch": (20, 40, 9_600, 40, 9_600)}, (85, 100)),
    "densenet121": ({"batch": (121, 242, 83_648, 242, 83_648)}, (0, 605)),
    "mobilenet_v2": ({"batch": (52, 104, 34_112, 104, 34_112)}, (0, 260)),
    "convnext_tiny": ({"layer": (23, 46, 16_320, 0, 0)}, (0, 46)),
    "swin_t": ({"layer": (29, 58, 24_768, 0, 0)}, (0, 58)),
}
"""Counted for facts/norms by torch 2.15, torchvision 0.29 and MONAI 1.6."""


@pytest.mark.parametrize("name", TABLE)
def test_networks_have_the_norms_of_the_table(name: str) -> None:
    by_type, (letters, every) = TABLE[name]
    assert counts(network(name)) == by_type
    found = audit(network(name), NORMS)
    assert (len(found.by_type & found.by_letters), len(found.by_type)) == (letters, every)
    assert found.strangers == set()
    assert len(found.missed) == every - letters


def test_the_page_has_the_counts_of_the_product() -> None:
    """A row for each network with norms, in the order of the table here, and no other row of that length."""
    page = (Path(__file__).parents[2] / "docs" / "norms.md").read_text(encoding="utf-8")
    rows = []
    for name in TABLE:
        found, letters = counts(network(name)), audit(network(name), NORMS)
        _, affine, floats, statistics, of_statistics = map(sum, zip(*found.values(), strict=True))
        norms = ", ".join(f"{count.layers} {kind}" for kind, count in found.items())
        called = f"{len(letters.by_type & letters.by_letters)} of {len(letters.by_type)}"
        cells = norms, f"{affine} ({floats:,})", f"{statistics} ({of_statistics:,})", called
        rows.append(f"| {name} | {' | '.join(cells)} |")
    assert [line for line in page.splitlines() if line.count("|") == 6][2:] == rows


def test_letters_find_what_is_called_bn_whatever_it_is() -> None:
    """Instance norm called bn, and the bias of a "subnet", would stay at home; batch norm called norm would travel."""
    layers = {"bn1": nn.InstanceNorm2d(2, affine=True), "norm": nn.BatchNorm2d(2), "subnet": nn.Linear(1, 1)}
    found = audit(nn.ModuleDict(layers))
    assert found.strangers == {"bn1.weight", "bn1.bias", "subnet.weight", "subnet.bias"}
    assert found.missed == {f"norm.{leaf}" for leaf in layers["norm"].state_dict()}
    assert audit(nn.ModuleDict(layers), ("instance",)).strangers == {"subnet.weight", "subnet.bias"}
