"""A small study of images, from its YAML to its tables, made in this process by the steps of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from fedshift import study
from fedshift.analysis.score import score
from fedshift.analysis.study_results import load
from fedshift.data.prepared import read_samples
from fedshift.io.checksums import record
from fedshift.io.paths import STUDIES, Paths
from fedshift.io.tables import write_table
from fedshift.jobs.predict import predict
from fedshift.jobs.prepare import obtain, prepare
from fedshift.jobs.train import train
from fedshift.page.summary import summarise
from fedshift.study.plan import Plan

NAME, PATIENTS, EACH = "my-study", 10, 4
SITES = {"north": 0, "south": 40, "far": 90}
STUDY: dict[str, Any] = {
    "title": "Does a model of two hospitals hold up in a third?",
    "question": "North and south train together. How well does it work far away?",
    "dataset": {"name": "own_images", "table": "../../images/images.csv", "size": 8},
    "partition": {
        "internal": ["north", "south"],
        "external": ["far"],
        "split": {"train": 0.7, "val": 0.1, "test": 0.2},
    },
    "model": {"name": "mlp", "hidden": 6},
    "transforms": ["scale_intensity"],
    "training": {"rounds": 4, "batch_size": 8, "lr": 0.1},
    "runs": [{"algorithm": "fedavg", "bn": "local"}],
    "seeds": [0, 1],
    "inferences": ["source", "tsmobn"],
    "metrics": ["accuracy", "auc"],
    "figures": [],
}


def finished(root: Path, **changes: Any) -> tuple[Plan, Paths]:
    """Return the study, finished, in the current folder `root`: with all files of the workflow but figures and page."""
    images(root / "images")
    path = root / STUDIES / f"{NAME}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False), encoding="utf-8")
    plan, paths = study.load(path, "mini"), Paths(root)
    for data in plan.data.values():
        obtain(data, paths.raw(data.raw), None)
        prepare(data, paths.raw(data.raw), paths.data(data.id))
        record(*paths.data_files(data.id).written)
    for name, run in plan.runs.items():
        table = paths.partition(run.partition_id)
        if not table.exists():
            write_table(table, run.partition.assign(read_samples(paths.data_files(run.data.id).samples)))
            record(table)
        train(run, paths)
        out = paths.predictions(name, plan.prediction_jobs[name])
        predict(paths.run(name), {key: plan.inferences[key] for key in plan.predictions(name)}, paths, out)
        record(out)
    files = paths.study_files(plan.name)
    score(plan, paths)
    summarise(load(plan, paths))
    record(files.scores, files.missing, *files.summarised)
    return plan, paths


def images(folder: Path) -> None:
    """Write noise, brighter by class and by site, of PATIENTS patients with EACH images at each site."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    rows = ["path,label,site,patient"]
    for site, shift in SITES.items():
        for n in range(PATIENTS * EACH):
            pixels = rng.integers(0, 120, (8, 8, 3)) + shift + 40 * (n % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{site}-{n:02}.png")
            rows.append(f"{site}-{n:02}.png,{n % 2},{site},{site}-{n // EACH}")
    (folder / "images.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
