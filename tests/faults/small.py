"""A study that takes seconds, for campaigns of faults, and the commands that finish it without Snakemake."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fedshift.study.plan import Plan

STUDY = """
title: Faults
dataset: { name: own_images, table: images/samples.csv, size: 16 }
partition: { internal: [A, B], external: [C], split: { train: 0.6, val: 0.2, test: 0.2 } }
model: { name: mlp, hidden: 16 }
transforms: [scale_intensity, flip]
training: { rounds: 8, batch_size: 4, lr: 0.05 }
runs: [{ algorithm: scaffold, bn: local }]
inferences: [source]
metrics: [accuracy, auc]
figures: [convergence]
"""


def images(folder: Path, size: int = 16, each: int = 30) -> None:
    """Write grey noise of pairs of images at sites A, B and C, lighter for one class and from site to site."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), ["path,label,site,patient"]
    for k, site in enumerate("ABC"):
        for n in range(each):
            pixels = rng.integers(0, 120, (size, size, 3)) + 30 * k + 60 * (n % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{site}{n}.png")
            rows.append(f"{site}{n}.png,{n % 2},{site},{site}{n // 2}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")


def commands(plan: Plan, name: str) -> list[list[str]]:
    """Return the words of all commands that finish a study, in their order."""
    runs = plan.runs.values()
    return [
        *(["download", name, raw] for raw in dict.fromkeys(data.raw for data in plan.data.values())),
        *(["prepare", name, data] for data in plan.data),
        *(["partition", name, key] for key in dict.fromkeys(run.partition_id for run in runs)),
        *(["control", name, key] for key in plan.controls),
        *(["train", name, run] for run in plan.runs),
        *(["predict", name, run, job] for run, job in plan.prediction_jobs.items()),
        ["score", name],
        ["ledger", name, "--write"],
        *([["divergence", name]] if plan.measures_divergence else []),
        ["report", name],
        *(["figure", name, figure] for figure in plan.figures[:1]),
        ["index"],
    ]
