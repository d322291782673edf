"""A figure of the page on BN policies: batch-norm tensors by type, and by the letters "bn"."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from fedshift.core import registry

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "figures" / "bn_tensors.py"
EXPECTED = {
    "ResNet-18 (torchvision)": (100, 85),  # 20 layers of 5 tensors; 3 of them are called downsample.1
    "DenseNet121 (torchvision)": (605, 0),  # 121 layers, called norm0, norm1, ...
    "UNet (MONAI), three levels": (20, 0),  # 4 layers, called adn.N
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bn_tensors", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def found(script: ModuleType) -> dict[str, tuple[int, int]]:
    return {name: script.counts(build()) for name, build in script.NETWORKS.items()}


def test_the_counts_are_those_of_the_page(found: dict[str, tuple[int, int]]) -> None:
    assert found == EXPECTED
    page = (ROOT / "docs/concepts/bn-policies.md").read_text(encoding="utf-8")
    assert "ResNet-18 100 and 85, DenseNet121 605 and 0, MONAI's UNet 20 and 0" in page
    assert "figures/bn_tensors.svg" in page


def test_a_tensor_is_counted_where_its_layer_is_batch_norm(script: ModuleType) -> None:
    """Group norm does not count, whatever it is called; weight and bias are missing without affine."""
    network = nn.ModuleDict(
        {"bn": nn.GroupNorm(1, 4), "norm": nn.BatchNorm2d(4), "bn2": nn.BatchNorm1d(4, affine=False)}
    )
    assert script.counts(network) == (5 + 3, 3)


def test_the_densenet_of_studies_has_as_many(script: ModuleType) -> None:
    network = registry.build("model", "densenet121").build((3, 32, 32), 2)
    assert script.counts(network) == EXPECTED["DenseNet121 (torchvision)"]


def test_the_picture_is_the_one_that_the_script_draws(script: ModuleType, found: dict[str, tuple[int, int]]) -> None:
    """Its texts are compared, not its lines; and the script draws the same bytes twice."""
    picture = script.drawn(found)
    assert picture == script.drawn(found)
    kept = script.OUT.read_text(encoding="utf-8")
    for name, (by_type, by_letters) in EXPECTED.items():
        for text in (name, f"{by_type} of {by_type} by type", f'{by_letters} of {by_type} by the letters "bn"'):
            assert f">{text}</text>" in picture
            assert f">{text}</text>" in kept
