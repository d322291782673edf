"""A run that starts from a file of weights: what its manifest says, and that predictions need the file no more."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from predicting import predicted, trained

from fedshift.export.bundle import without_places
from fedshift.io.arrays import read_tensors
from fedshift.models import initialise
from fedshift.models.mobilenet_v2 import MobileNetV2

RESIZE = {"name": "monai", "transform": "Resize", "settings": {"spatial_size": [32, 32]}, "always": True}


def test_a_linear_probe_from_a_file_that_is_gone(tmp_path: Path) -> None:
    state = initialise(MobileNetV2(), (3, 32, 32), 1000, seed=3).state_dict()
    file = tmp_path / "private.pth"
    torch.save(state, file)
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    plan, paths = trained(
        tmp_path / "project",
        model={"name": "mobilenet_v2", "weights": str(file), "sha256": sha256},
        transforms=["scale_intensity", RESIZE],
        training={"rounds": 1, "local_steps": 1, "batch_size": 8, "train": "head"},
        runs=[{"algorithm": "fedavg"}],
    )
    (name, run) = next(iter(plan.runs.items()))
    files = paths.run_files(name)
    assert json.loads(files.manifest.read_text())["weights"] == f"a file with the SHA-256 {sha256}"
    tensors, _ = read_tensors(files.model)
    body = [k for k, v in tensors.items() if not k.startswith("classifier.") and v.is_floating_point()]
    assert len(body) == 314 - 2 - 52  # without the last layer and the counters of batch norm
    assert [k for k in body if not torch.equal(tensors[k], state[k])] == []
    file.unlink()
    assert predicted(plan, paths, name, "source")[["p0", "p1"]].notna().all(axis=None)
    assert "private.pth" in str(without_places(run).spec)
    assert str(tmp_path) not in str(without_places(run).spec["model"])
