"""A small study of own images that has been trained and predicted, for what is done with a run afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image

from fedshift import study
from fedshift.data.prepared import Prepared
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table
from fedshift.jobs.apply import Applied, apply, chosen
from fedshift.jobs.prepare import obtain, prepare
from fedshift.jobs.train import train
from fedshift.study.run import Run

SITES = {"north": 30, "south": 25, "far": 21}
CLASSES = ("benign", "tumour & <b>more</b>")
STUDY: dict[str, Any] = {
    "title": "A few images a site",
    "dataset": {"name": "own_images", "size": 8, "classes": list(CLASSES), "caveat": "Drawn <i>at random</i>."},
    "partition": {"internal": ["north", "south"], "external": ["far"], "split": {"train": 0.6, "val": 0, "test": 0.4}},
    "model": {"name": "mlp", "hidden": 6},
    "transforms": ["scale_intensity", "flip"],
    "training": {"rounds": 2, "batch_size": 8, "lr": 0.1, "select": "last"},
    "runs": [{"algorithm": ["fedavg", "local"], "bn": "local"}],
    "inferences": ["source", {"name": "tsmobn", "batch_size": 4}, {"name": "population", "batch_size": 8}],
}


class Project:
    """A study that has been trained and predicted, and where its files lie."""

    def __init__(self, root: Path) -> None:
        # Outside of the project: an absolute path inside of it would have another name where the project is entered.
        images = root.with_name(f"{root.name}-images")
        images.mkdir()
        (root / "images").symlink_to(images)
        self.root, self.paths, self.table = root, Paths(root), images / "table.csv"
        rng, rows = np.random.default_rng(0), []
        for k, (site, n) in enumerate(SITES.items()):
            for i in range(n):
                side = (8, 8) if i % 3 else (10, 14)
                pixels = rng.integers(0, 120, (*side, 3)) + 30 * k + 40 * (i % 2)
                name = f"{site}-{i:02d}.{('png', 'bmp', 'tiff')[i % 3]}"
                Image.fromarray(pixels.astype(np.uint8)).save(root / "images" / name)
                rows.append({"path": name, "label": i % 2, "site": site, "patient": f"{site}{i // 3}"})
        write_table(self.table, pd.DataFrame(rows))
        spec = STUDY | {"dataset": STUDY["dataset"] | {"table": str(self.table)}}
        (root / "tiny.yaml").write_text(yaml.safe_dump(spec))
        self.plan = study.load(root / "tiny.yaml", "paper")
        (self.data,) = self.plan.data.values()
        obtain(self.data, self.paths.raw(self.data.raw), None)
        prepare(self.data, self.paths.raw(self.data.raw), self.paths.data(self.data.id))
        samples = Prepared(self.paths.data(self.data.id)).samples
        for run in self.plan.runs.values():
            write_table(self.paths.partition(run.partition_id), run.partition.assign(samples))
            train(run, self.paths)

    def run(self, algorithm: str = "fedavg") -> Run:
        return next(run for run in self.plan.runs.values() if run.algorithm.name == algorithm)

    def folder(self, algorithm: str = "fedavg") -> Path:
        return self.paths.run(self.run(algorithm).id)

    def apply(self, source: Path, inference: str = "source", *settings: str, **options: Any) -> Applied:
        client = options.pop("client", None)
        out = options.pop("out", self.root / "out")
        return apply(self.folder(), source, chosen(inference, settings, client), out, **options)


def listing(project: Project, name: str, rows: pd.DataFrame) -> Path:
    """A table of some of the images, beside them."""
    path = project.table.with_name(name)
    write_table(path, rows)
    return path


def rows(project: Project, *sites: str) -> pd.DataFrame:
    table = pd.read_csv(project.table)
    return table[table["site"].isin(sites)] if sites else table
