"""A run of masks in other tools: MONAI runs its bundle and finds the masks of `fedshift apply`; trackers get Dice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import disc_study
import numpy as np
import pytest
import torch
from PIL import Image

import fedshift
from fedshift.analysis import study_results
from fedshift.cli import parser as cli
from fedshift.export import mlflow
from fedshift.export.bundle import export
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs.apply import apply, chosen
from fedshift.study.plan import Plan

pytest.importorskip("ignite", reason="pytorch-ignite is not installed: the extra 'bundle'")

FILES = {"config_file": "configs/inference.json", "meta_file": "configs/metadata.json"}


@pytest.fixture(scope="module")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    root = tmp_path_factory.mktemp("discs")
    return disc_study.finished(root, training={"rounds": 12, "batch_size": 4, "lr": 0.1, "momentum": 0.9})


@pytest.fixture(scope="module")
def run(finished_study: tuple[Plan, Paths]) -> Path:
    plan, paths = finished_study
    (run,) = plan.runs
    return paths.run(run)


@pytest.fixture(scope="module")
def bundle(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(run, chosen("source", [], None), tmp_path_factory.mktemp("exported") / "bundle")


def files_of(bundle: Path) -> dict[str, str]:
    return {key: str(bundle / name) for key, name in FILES.items()}


def hospital(folder: Path) -> Path:
    """Seven grey images with a bright square, of which some are wide."""
    folder.mkdir()
    drawn = np.random.default_rng(0).normal(100, 8, (7, 24, 40))
    for n, image in enumerate(drawn):
        image[6:14, 10 + n : 19 + n] += 60
        width = 24 + 16 * (n % 2)
        Image.fromarray(image[:, :width].clip(0, 255).astype(np.uint8)).save(folder / f"{n}.png")
    return folder


def test_the_exported_network_gives_the_logits_of_the_run(run: Path, bundle: Path) -> None:
    from monai.bundle import ConfigParser

    parser = ConfigParser()
    parser.read_config(str(bundle / FILES["config_file"]))
    parser["bundle_root"] = str(bundle)
    network = parser.get_parsed_content("network_def")
    network.load_state_dict(torch.load(bundle / "models" / "model.pt", weights_only=True), strict=True)
    # A run predicts with the channels last in memory, where sums of float32 are rounded differently.
    model = fedshift.open_run(run).model().to(memory_format=torch.contiguous_format)
    x = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = network.eval()(x), model(x)
    assert found.shape == (3, 2, 16, 16)
    assert torch.equal(found, wanted)


def test_monai_verifies_what_the_metadata_say_of_outputs(bundle: Path, tmp_path: Path) -> None:
    from monai.bundle import verify_net_in_out

    verify_net_in_out("network_def", **files_of(bundle), bundle_root=str(bundle))
    meta = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
    assert meta["task"] == "Segmentation: background, disc"
    assert meta["network_data_format"]["outputs"]["pred"] == {
        "type": "image",
        "format": "segmentation",
        "num_channels": 2,
        "spatial_shape": [16, 16],
        "dtype": "float32",
        "value_range": [],
        "is_patch_data": False,
        "channel_def": {"0": "background", "1": "disc"},
    }
    meta["network_data_format"]["outputs"]["pred"]["num_channels"] = 3
    (tmp_path / "wrong.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="doesn't match"):
        files = files_of(bundle) | {"meta_file": str(tmp_path / "wrong.json")}
        verify_net_in_out("network_def", **files, bundle_root=str(bundle))


@pytest.mark.parametrize("how", [{"name": "source"}, {"name": "tsmobn", "batch_size": 3, "order": 1}], ids=str)
def test_monai_finds_the_masks_that_apply_finds(run: Path, bundle: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    from monai.bundle import run as carried_out

    source = hospital(tmp_path / "images")
    out = tmp_path / "eval"
    places = {"bundle_root": str(bundle), "dataset_dir": str(source), "output_dir": str(out)}
    carried_out(**files_of(bundle), **places, inference=how)
    settings = [f"{key}={value}" for key, value in how.items() if key != "name"]
    apply(run, source, chosen(how["name"], settings, None), tmp_path / "applied")
    table, wanted = (read_table(folder / "predictions.csv") for folder in (out, tmp_path / "applied"))
    assert table.to_dict("list") == wanted.to_dict("list")
    assert table["pixels_disc"].max() > 0, "the network has learnt something"
    for kind in ("masks", "overlays"):
        names = sorted(path.name for path in (tmp_path / "applied" / kind).iterdir())
        assert names == sorted(path.name for path in (out / kind).iterdir())
        assert len(names) == 7
        assert all(
            (out / kind / name).read_bytes() == (tmp_path / "applied" / kind / name).read_bytes() for name in names
        )


def test_the_command_and_the_readme(run: Path, tmp_path: Path) -> None:
    assert cli.main(["bundle", str(run), "--out", str(tmp_path / "bundle")]) == 0
    readme = (tmp_path / "bundle" / "docs" / "README.md").read_text(encoding="utf-8")
    assert "a PNG file of each into eval/masks and eval/overlays." in readme
    assert "probability" not in readme


def test_trackers_get_dice_by_site(finished_study: tuple[Plan, Paths]) -> None:
    plan, paths = finished_study
    (told,) = mlflow.accounts(plan, paths, mlflow.trained(plan, paths))
    scores = study_results.load(plan, paths).scores.query("metric == 'dice'").dropna(subset="value")
    expected = {f"dice/{row['inference_id']}/{row['site']}": row["value"] for row in scores.to_dict("records")}
    assert len(expected) == 6, "three sites by two inferences"
    assert {tag: value for tag, value in told.scores if tag.startswith("dice/")} == expected
