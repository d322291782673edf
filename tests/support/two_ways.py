"""A small run, trained and predicted by jobs and by the library on one device: what differs, and how torch was set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import predicting
import torch
from torch import nn

from fedshift import Federation, open_run
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.jobs.run_images import RunImages
from fedshift.models import initialise
from fedshift.study.run import Run
from fedshift.transforms import shape_after

STUDY: dict[str, Any] = {
    "model": "resnet20",
    "inferences": ["source", "tsmobn", "eata", "t3a"],
    "runs": [{"algorithm": "fedavg", "bn": "local"}],
}
Settings = tuple[str, str, int, bool]
"""Formats of products and of convolutions, torch's mode for deterministic kernels, and whether cuDNN tries kernels."""


def differing(folder: Path, device: torch.device, **changes: Any) -> list[str]:
    """Return what the library computes otherwise than the jobs: tensors of the training, and predictions of sites.

    Jobs take the GPU of the machine; for another device, `take_device` must give it. `changes` are those of the study.
    """
    with chdir(folder):
        return _differing(Path(), device, changes)


def _differing(folder: Path, device: torch.device, changes: Mapping[str, Any]) -> list[str]:
    plan, paths = predicting.trained(folder, **{**STUDY, **changes})
    (run,) = plan.runs.values()
    stored, ours = read_tensors(paths.run_files(run.id).model)[0], trained(run, paths, device).global_state()
    found = [f"training: {name}" for name, tensor in stored.items() if not tensor.equal(ours[name])]
    table = predicting.written(plan, paths, run.id, *plan.inferences)
    table = table[table["split"] == "test"]
    opened = open_run(paths.run(run.id), device=device)
    for (key, site), rows in table.groupby(["inference", "site"]):
        images = opened.images(site)[0]
        here = opened.predict(images, site=site, inference=plan.inferences[key])
        if not np.array_equal(here, rows[["p0", "p1"]].to_numpy()):
            found.append(f"{key} at {site}")
    assert len(table) and len(stored)
    return found


def trained(run: Run, paths: Paths, device: torch.device) -> Federation:
    """Train a run as a script does, on the samples of its project."""
    images = RunImages(run, paths, device)
    train, val = (
        {site: images.samples(rows) for site, rows in images.by_site(split, run.partition.internal).items()}
        for split in ("train", "val")
    )
    shape = shape_after(run.transforms, images.prepared.shape)
    model = initialise(run.model, shape, len(run.data.dataset.classes), run.seed)
    settings: dict[str, Any] = {"algorithm": run.algorithm, "bn": run.bn, "training": run.training, "seed": run.seed}
    return Federation(model, train, validation=val, device=device, **settings).run()


@contextmanager
def watched() -> Iterator[set[Settings]]:
    """Give the context what torch was set to in the forward passes inside it."""
    seen = set[Settings]()

    def look(*_: Any) -> None:
        formats = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
        seen.add((*formats, torch.get_deterministic_debug_mode(), torch.backends.cudnn.benchmark))

    handle = nn.modules.module.register_module_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()
