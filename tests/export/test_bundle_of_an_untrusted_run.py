"""A bundle of a run whose names are expressions of MONAI: its parser runs none, loads nothing and looks nothing up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import own_images
import pytest
import torch
from own_images import Project

from fedshift.core.errors import UserError
from fedshift.export.bundle import export, quoted
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.jobs.apply import chosen

pytest.importorskip("ignite", reason="pytorch-ignite is not installed: the extra 'bundle'")

TOUCH = "$__import__('pathlib').Path({!r}).touch()"


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that an expression would leave behind."""
    return tmp_path_factory.mktemp("marks") / "ran"


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory, mark: Path) -> Project:
    """A project whose classes, title and citation are expressions, macros and references."""
    classes = [TOUCH.format(str(mark)), "%/etc/hostname.json::a", "@network", "a @##device", "$import os"]
    words = {"classes": classes, "title": classes[0], "citation": classes[0], "licence": "%x", "caveat": "@#y"}
    changes = {"dataset": own_images.STUDY["dataset"] | words, "runs": [{"algorithm": "fedavg", "bn": "local"}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_images, "STUDY", own_images.STUDY | changes)
        return Project(tmp_path_factory.mktemp("untrusted"))


def parsed(bundle: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    """Let MONAI parse and evaluate every entry of the metadata, beside the bundle's configuration."""
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config(str(bundle / "configs" / "inference.json"))
    parser["_meta_"] = metadata
    parser.parse()
    content: dict[str, Any] = parser.get_parsed_content("_meta_")
    return content


def test_names_are_text_to_monai(untrusted: Project, mark: Path, tmp_path: Path) -> None:
    bundle = export(untrusted.folder(), chosen("source", [], None), tmp_path / "bundle")
    text = (bundle / "configs" / "metadata.json").read_text(encoding="utf-8")
    metadata = json.loads(text)
    assert parsed(bundle, json.loads(text)) == json.loads(text.replace("#", "::")), "MONAI spells # so; all else stays"
    assert not mark.exists()
    names = metadata["network_data_format"]["outputs"]["pred"]["channel_def"]
    assert names["0"] == f"'{TOUCH.format(str(mark))}"
    assert names["1"].startswith("'%") and names["2"].startswith("'@")
    assert names["3"] == "a @ ##device"


def test_monai_would_run_what_is_not_quoted(untrusted: Project, mark: Path, tmp_path: Path) -> None:
    """The test above would notice: the same words without their apostrophes leave the file behind."""
    bundle = export(untrusted.folder(), chosen("source", [], None), tmp_path / "bundle")
    parsed(bundle, {"name": TOUCH.format(str(mark))})
    assert mark.exists()
    mark.unlink()


def test_the_workflow_runs_with_such_names(untrusted: Project, mark: Path, tmp_path: Path) -> None:
    from monai.bundle import run

    bundle = export(untrusted.folder(), chosen("source", [], None), tmp_path / "bundle")
    files = {"config_file": str(bundle / "configs/inference.json"), "meta_file": str(bundle / "configs/metadata.json")}
    run(**files, bundle_root=str(bundle), dataset_dir=str(untrusted.root / "images"))
    assert len((bundle / "eval" / "predictions.csv").read_text().splitlines()) == 76
    assert not mark.exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tumour", "tumour"),
        ("costs 5 $ or 3 %", "costs 5 $ or 3 %"),
        ("a@b.org", "a@b.org"),
        ("$x", "'$x"),
        ("%x", "'%x"),
        ("@x", "'@x"),
        ("see @::x and %#y", "see @ ::x and % #y"),
        (5, 5),
        ([{"$k": ("@x", None)}], [{"'$k": ["'@x", None]}]),
    ],
    ids=str,
)
def test_only_what_monai_reads_as_more_is_quoted(text: Any, wanted: Any) -> None:
    assert quoted(text) == wanted


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(untrusted: Project, tmp_path: Path, value: float) -> None:
    model = untrusted.folder() / "model.safetensors"
    before = model.read_bytes()
    tensors, _ = read_tensors(model)
    name = next(k for k, v in tensors.items() if v.is_floating_point() and v.dim() == 2)
    write_tensors(model, {**tensors, name: torch.full_like(tensors[name], value)}, {})
    try:
        with pytest.raises(UserError, match=rf"model\.safetensors: its tensor '{name}' holds NaN or infinity"):
            export(untrusted.folder(), chosen("source", [], None), tmp_path / "bundle")
    finally:
        model.write_bytes(before)
    assert not (tmp_path / "bundle").exists()
