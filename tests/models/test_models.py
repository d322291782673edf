"""The published networks, counted by hand from their layer tables; initial and pretrained weights.

ResNet-20 has a file of its own.
"""

from __future__ import annotations

import gc
import hashlib
import math
import re
import urllib.error
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

from fedshift import UserError
from fedshift.core.registry import build
from fedshift.models import initialise
from fedshift.models._imagenet import Pretrained
from fedshift.models.alexnet_bn import AlexNetBN
from fedshift.models.densenet121 import DenseNet121
from fedshift.models.densenet_small import DenseNetSmall
from fedshift.models.digit_cnn import DigitCNN
from fedshift.models.mlp import MLP
from fedshift.models.resnet20 import ResNet20
from fedshift.models.two_layer import TwoLayer

BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d


def of_kind(network: nn.Module, *kinds: type[nn.Module]) -> list[Any]:
    return [m for m in network.modules() if isinstance(m, kinds)]


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters() if p.requires_grad)


def layer(before: int, after: int, side: int = 1) -> int:
    """Weights and biases of a convolution with square filters, or of a linear layer."""
    return (before * side**2 + 1) * after


# ---- counts


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"), [((3, 28, 28), 10, 14_219_210), ((1, 28, 28), 10, 14_219_210 - 2 * 64 * 25)]
)
def test_digit_cnn(shape: tuple[int, ...], classes: int, parameters: int) -> None:
    network = initialise(DigitCNN(), shape, classes, seed=0)
    assert count(network) == parameters
    assert [bn.num_features for bn in of_kind(network, *BATCH_NORMS)] == [64, 64, 128, 2048, 512]
    assert [c.weight.shape[::-1] for c in of_kind(network, nn.Conv2d)] == [
        (5, 5, shape[0], 64),
        (5, 5, 64, 64),
        (5, 5, 64, 128),
    ]
    assert [tuple(line.weight.shape) for line in of_kind(network, nn.Linear)] == [(2048, 6272), (512, 2048), (10, 512)]
    assert network(torch.zeros(2, *shape)).shape == (2, classes)


def test_a_narrow_digit_cnn_has_the_same_layers() -> None:
    network = initialise(DigitCNN(width=16), (3, 28, 28), 10, seed=0)
    assert [bn.num_features for bn in of_kind(network, *BATCH_NORMS)] == [16, 16, 32, 512, 128]
    convolutions = layer(3, 16, 5) + layer(16, 16, 5) + layer(16, 32, 5)
    lines = layer(32 * 7 * 7, 512) + layer(512, 128) + layer(128, 10)
    assert count(network) == convolutions + lines + 2 * (16 + 16 + 32 + 512 + 128)


def test_the_count_of_digit_cnn_follows_from_its_table() -> None:
    convolutions = layer(3, 64, 5) + layer(64, 64, 5) + layer(64, 128, 5)
    lines = layer(128 * 7 * 7, 2048) + layer(2048, 512) + layer(512, 10)
    assert convolutions + lines + 2 * (64 + 64 + 128 + 2048 + 512) == 14_219_210


@pytest.fixture
def alexnet() -> nn.Module:
    """57 million parameters, which no other test holds, too."""
    return initialise(AlexNetBN(), (3, 256, 256), 10, seed=0)


def test_alexnet_with_batch_norm(alexnet: nn.Module) -> None:
    assert count(alexnet) == 57_063_498
    assert [bn.num_features for bn in of_kind(alexnet, *BATCH_NORMS)] == [64, 192, 384, 256, 256, 4096, 4096]
    assert of_kind(alexnet, nn.Dropout) == []
    assert all(m.bias is not None for m in of_kind(alexnet, nn.Conv2d, nn.Linear))
    with torch.no_grad():
        assert alexnet.eval()(torch.zeros(1, 3, 63, 63)).shape == (1, 10)


def test_alexnet_without_its_batch_norm_is_torchvisions(alexnet: nn.Module) -> None:
    """1000 classes in place of 10 are 990 more columns of 4096 weights and a bias; each BN has 2 numbers a channel."""
    with torch.device("meta"):
        plain = torchvision.models.alexnet(weights=None)
    shapes = [
        [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in of_kind(network, nn.Conv2d)]
        for network in (alexnet, plain)
    ]
    assert shapes[0] == shapes[1]
    norms = 2 * (64 + 192 + 384 + 256 + 256 + 4096 + 4096)
    assert count(plain) == 57_063_498 - norms + 990 * 4097


def test_densenet121() -> None:
    network = initialise(DenseNet121(), (3, 96, 96), 2, seed=0)
    assert count(network) == 6_955_906
    norms = dict(network.named_modules())
    norms = {name: m for name, m in norms.items() if isinstance(m, nn.BatchNorm2d)}
    assert len(norms) == 121
    assert {name.rpartition(".")[2] for name in norms} == {"norm0", "norm1", "norm2", "norm5", "norm"}
    seen: list[torch.Size] = []
    norms["features.norm5"].register_forward_hook(lambda _, __, out: seen.append(out.shape))
    with torch.no_grad():
        assert network.eval()(torch.zeros(1, 3, 96, 96)).shape == (1, 2)
    assert seen == [(1, 1024, 3, 3)]


@pytest.mark.parametrize(
    ("hidden", "shape", "classes", "parameters"),
    [
        ([30], (1, 28, 28), 10, 23_920),
        ([16, 16], (5995,), 2, 96_306),
        ([4, 3, 2], (5,), 2, layer(5, 4) + layer(4, 3) + layer(3, 2) + layer(2, 2) + 2 * (4 + 3 + 2)),
    ],
)
def test_perceptrons(hidden: list[int], shape: tuple[int, ...], classes: int, parameters: int) -> None:
    network = initialise(build("model", {"name": "mlp", "hidden": hidden}), shape, classes, seed=0)
    assert count(network) == parameters
    assert [bn.num_features for bn in of_kind(network, *BATCH_NORMS)] == hidden
    kinds = [type(m) for m in network.children()]
    assert kinds == [nn.Flatten, *[nn.Linear, nn.BatchNorm1d, nn.ReLU] * len(hidden), nn.Linear]
    assert network(torch.zeros(3, *shape)).shape == (3, classes)


def test_one_hidden_layer_is_the_same_as_a_number_or_a_list() -> None:
    one, two = (initialise(MLP(hidden=h), (5,), 2, seed=0).state_dict() for h in (7, (7,)))
    assert all(torch.equal(one[k], two[k]) for k in one | two)
    assert build("model", "mlp").identity() == {"name": "mlp", "hidden": 30}, "whose digest is in the names of old runs"


@pytest.mark.parametrize("hidden", [0, [], [16, -1], "many", True, 2.5, [[16]], None])
def test_hidden_layers_without_units_are_one_line(hidden: Any) -> None:
    with pytest.raises(UserError, match=r"model \(mlp\)\.hidden: .* is not a number of hidden units; give") as e:
        build("model", {"name": "mlp", "hidden": hidden})
    assert "\n" not in str(e.value)


# ---- the network of the synthetic study


def test_two_layers_and_how_they_start() -> None:
    network = initialise(TwoLayer(), (10,), 2, seed=0)
    assert count(network) == layer(10, 100) + 2 * 100 + layer(100, 2) == 1502
    assert [type(m) for m in network.children()] == [nn.Flatten, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    for line in of_kind(network, nn.Linear):
        assert (line.weight.abs() > 1).float().mean() > 0.8, "PyTorch's own end below 0.4"
    drawn = torch.cat([p.detach().flatten() for m in of_kind(network, nn.Linear) for p in m.parameters()])
    assert abs(float(drawn.mean())) < 4 * 10 / math.sqrt(len(drawn))
    assert float(drawn.std()) == pytest.approx(10, rel=4 / math.sqrt(2 * len(drawn)))
    (bn,) = of_kind(network, nn.BatchNorm1d)
    assert (bn.weight == 1).all()
    assert (bn.bias == 0).all()


def test_the_spread_of_the_first_weights_is_alpha() -> None:
    one, ten = (initialise(TwoLayer(alpha=a), (10,), 2, seed=0).state_dict() for a in (1, 10))
    for name in ("1.weight", "1.bias", "4.weight", "4.bias"):
        torch.testing.assert_close(ten[name], 10 * one[name])


def test_the_hidden_layer_alone_can_be_wide() -> None:
    """The hidden layer starts as with both; the output layer has PyTorch's bound, 1 / sqrt(100) = 0.1."""
    both, hidden = (initialise(TwoLayer(wide=wide), (10,), 2, seed=0).state_dict() for wide in ("both", "hidden"))
    for name in ("1.weight", "1.bias"):
        torch.testing.assert_close(hidden[name], both[name], rtol=0, atol=0)
    for name in ("4.weight", "4.bias"):
        assert hidden[name].abs().max() <= 0.1 < both[name].abs().max()
    assert TwoLayer(wide="both").identity() == {"name": "two_layer", "hidden": 100, "alpha": 10.0}


# ---- images of another size


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (DigitCNN(), (3, 32, 32), "model digit_cnn: takes images of 28x28, these have 32x32; resize them"),
        (
            AlexNetBN(),
            (3, 62, 256),
            "model alexnet_bn: takes images of at least 63x63 pixels, these have 62x256; resize them",
        ),
        (AlexNetBN(), (10,), "model alexnet_bn: takes images of at least 63x63 pixels, these have no pixels"),
        (DenseNet121(), (1, 96, 96), "model densenet121: takes images of 3 channels, these have 1; choose another"),
        (
            DenseNet121(),
            (3, 28, 28),
            "model densenet121: takes images of at least 29x29 pixels, these have 28x28; resize them",
        ),
        (
            DenseNetSmall(),
            (3, 12, 40),
            "model densenet_small: takes images of at least 13x13 pixels, these have 12x40; resize",
        ),
        (ResNet20(), (5995,), "model resnet20: takes images of at least 1x1 pixels, these have no pixels"),
    ],
)
def test_images_that_do_not_fit_are_one_line(model: Any, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        model.build(shape, 10)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "least"),
    [(AlexNetBN(), 63), (DenseNet121(), 29), (DenseNetSmall(), 13), (DenseNetSmall(blocks=(1, 1, 1, 1)), 29)],
)
def test_the_smallest_images_that_are_taken_go_through(model: Any, least: int) -> None:
    with torch.no_grad():
        assert model.build((3, least, least), 4).eval()(torch.zeros(2, 3, least, least)).shape == (2, 4)
    with pytest.raises(UserError, match="resize"):
        model.build((3, least, least - 1), 4)


# ---- ImageNet's weights


def spread(shape: torch.Size, seed: int) -> Tensor:
    """Random numbers that overlap in memory: 61 million of them take a few kB in a file."""
    drawn = torch.randn(sum(shape), generator=torch.Generator().manual_seed(seed))
    return drawn.as_strided(shape, [1] * len(shape))


@pytest.fixture(scope="module")
def imagenet() -> dict[str, Tensor]:
    """Return weights in the form of torchvision's state of AlexNet with 1000 classes."""
    with torch.device("meta"):
        state = torchvision.models.alexnet(weights=None).state_dict()
    return {name: spread(value.shape, k) for k, (name, value) in enumerate(state.items())}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Torch's own folder of weights, empty; nothing is to be had from the network.

    A network that could not be made is held by the error until garbage is collected.
    """

    def offline(*_: Any, **__: Any) -> Any:
        raise urllib.error.URLError("no network")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "urlopen", offline)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    yield tmp_path / "hub" / "checkpoints"
    gc.collect()


def stored(state: Any, cache: Path, monkeypatch: pytest.MonkeyPatch, model: type[Pretrained] = AlexNetBN) -> Path:
    """A file in the cache, named by its SHA-256 as torchvision's are, which stands in for torchvision's."""
    torch.save(state, cache / "new")
    name = f"alexnet-owt-{hashlib.sha256((cache / 'new').read_bytes()).hexdigest()[:8]}.pth"
    monkeypatch.setattr(model, "published", replace(model.published, file=name))
    return (cache / "new").rename(cache / name)


def test_all_is_pretrained_but_batch_norm_and_the_last_layer(
    imagenet: dict[str, Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(imagenet, cache, monkeypatch)
    taken = {  # of ours, of torchvision's
        "0": "features.0",
        "4": "features.3",
        "8": "features.6",
        "11": "features.8",
        "14": "features.10",
        "20": "classifier.1",
        "23": "classifier.4",
    }
    untaken = initialise(AlexNetBN(), (3, 256, 256), 10, seed=0).state_dict().items()
    fresh = {name: tensor.clone() for name, tensor in untaken if name.rpartition(".")[0] not in taken}
    del untaken  # the large layers, before there are others
    network = initialise(AlexNetBN(pretrained=True), (3, 256, 256), 10, seed=0)
    assert count(network) == 57_063_498
    found = network.state_dict()
    pretrained = {f"{own}.{leaf}": f"{given}.{leaf}" for own, given in taken.items() for leaf in ("weight", "bias")}
    assert [name for name, given in pretrained.items() if not torch.equal(found[name], imagenet[given])] == []
    left = sorted(set(found) - set(pretrained))
    assert len(left) == 7 * 5 + 2
    assert left == sorted(fresh)
    assert [name for name in left if not torch.equal(found[name], fresh[name])] == []


def refuse(words: str, channels: int = 3) -> None:
    """Require that pretrained weights of AlexNet are refused with these words, in one line."""
    with pytest.raises(UserError, match=words) as caught:
        AlexNetBN(pretrained=True).build((channels, 64, 64), 10)
    assert "\n" not in str(caught.value)


def test_grey_images_cannot_have_imagenets_weights(
    imagenet: dict[str, Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(imagenet, cache, monkeypatch)
    refuse("model alexnet_bn: its first layer takes 1 channels, ImageNet's has 3", channels=1)


def test_weights_that_cannot_be_had_are_named(cache: Path) -> None:
    refuse(rf"the ImageNet weights \(no network\); download alexnet-owt-7be5be79\.pth and put it into {cache}$")


def test_a_file_with_another_content_is_refused(imagenet: dict[str, Tensor], cache: Path) -> None:
    """Torch takes what it finds in its cache, and a person may have put another file there."""
    torch.save(imagenet, cache / "alexnet-owt-7be5be79.pth")
    name = r"alexnet-owt-7be5be79\.pth"
    refuse(rf"{name}: does not hold torchvision's AlexNet: sha256 is [0-9a-f]{{64}}, expected 7be5be79")


def test_a_file_that_is_no_state_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(nn.Linear(2, 2), cache, monkeypatch)  # a whole module, which takes code to load
    refuse(rf"{file.name}: holds no weights of AlexNet \(.*remove it, and start again to download")


def earlier(name: str) -> str:
    """The name of a tensor of DenseNet121 in torchvision's file, which is of an earlier version."""
    return re.sub(r"(denselayer\d+\.(?:norm|conv))([12])\.", r"\1.\2.", name)


def test_all_of_densenet_but_the_last_layer_is_pretrained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        state = torchvision.models.densenet121(weights=None).state_dict()
    names = [name for name in state if not name.endswith("num_batches_tracked")]
    given = {earlier(name): spread(state[name].shape, n) for n, name in enumerate(names)}
    assert sum(".norm.1." in name for name in given) == 58 * 4
    stored(given, cache, monkeypatch, DenseNet121)
    plain, taken = (initialise(DenseNet121(pretrained=p), (3, 32, 32), 2, seed=0).state_dict() for p in (False, True))
    for name, tensor in taken.items():
        kept = name.startswith("classifier.") or name.endswith("num_batches_tracked")
        assert torch.equal(tensor, plain[name] if kept else given[earlier(name)]), name


def test_weights_of_densenet_that_cannot_be_had_are_named(cache: Path) -> None:
    words = (
        r"model densenet121: cannot download the ImageNet weights \(no network\); download densenet121-a639ec97\.pth"
    )
    with pytest.raises(UserError, match=words):
        DenseNet121(pretrained=True).build((3, 64, 64), 2)


def test_a_densenet_that_is_not_pretrained_keeps_its_id() -> None:
    assert DenseNet121().identity() == {"name": "densenet121"}
    assert DenseNet121(pretrained=True).identity() == {"name": "densenet121", "pretrained": True}
