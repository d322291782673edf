"""What `fedshift check` says of settings that switch an inference off."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.cli import parser

STUDY = """
title: Published constants
dataset: digits_five
partition: { internal: [mnist, svhn], external: [usps] }
model: digit_cnn
training: { rounds: 1 }
runs: [{ algorithm: fedavg }]
inferences: [source, eta, { name: eta, similarity: 0.05 }, sar]
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing is prepared."""
    monkeypatch.chdir(tmp_path)


def test_a_published_constant_that_switches_a_method_off_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ten classes no cosine with an even mean is below 1 / sqrt(10); the defaults suit them."""
    path = tmp_path / "published.yaml"
    path.write_text(STUDY)
    assert parser.main(["check", str(path), "--scale", "paper"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "lets hardly any image pass" in line]
    said = "with 10 classes no cosine with an even mean is below 0.316"
    assert lines == [f"{path}: eta: similarity 0.05 lets hardly any image pass: {said}"]


@pytest.mark.parametrize(
    ("transforms", "said"),
    [("", 1), (", normalize", 0), (", { name: normalize, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5] }", 0)],
)
def test_pretrained_weights_want_the_images_that_they_saw(
    transforms: str, said: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pretrained.yaml"
    larger = "{ name: resize, size: 32 }"
    model = f"model: {{ name: mobilenet_v2, pretrained: true }}\ntransforms: [{larger}{transforms}]"
    path.write_text(STUDY.replace("model: digit_cnn", model).replace(", { name: eta, similarity: 0.05 }", ""))
    assert parser.main(["check", str(path), "--scale", "paper"]) == 0
    assert capsys.readouterr().out.count(f"{path}: transforms: hold no normalize, and pretrained weights saw") == said
