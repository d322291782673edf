"""One fold of the study benchmark-mitosis at 96 pixels: real patches, trained and scored on the card."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml
from sklearn.metrics import roc_auc_score

from fedshift import cli
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs import predict, train
from fedshift.jobs.prepare import obtain
from fedshift.study import plan as plans

from .setting import Case, Figures, NotHereError, Setting

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / ".gpu" / "data" / "mitosis_sites.tar"
SIDE = 96
METHOD = "fedavg", "aggregated", ()
"""Algorithm, BN policy, and transforms of the prepared images."""


def cases(setting: Setting) -> Iterator[Case]:
    """A single row."""
    yield Case("FedAvg, fold 1 of 5", 60, partial(_fold, setting))


def _fold(setting: Setting) -> Figures:
    """Return the AUC at each site, of images that did not train."""
    if not ARCHIVE.exists():
        raise NotHereError("mitosis_sites.tar is not in .gpu/data")
    study = yaml.safe_load((ROOT / "config" / "studies" / "benchmark-mitosis.yaml").read_text(encoding="utf-8"))
    study["dataset"]["size"] = SIDE
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        file = Path("mitosis96.yaml")
        file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
        plan, paths = plans.load(file, "paper"), Paths()
        run = next(run for run in plan.runs.values() if (run.algorithm.name, run.bn, run.data.prepare) == METHOD)
        obtain(run.data, paths.raw(run.data.raw), ARCHIVE.parent)
        for step, name in (("prepare", run.data.id), ("partition", run.partition_id)):
            if cli.main([step, str(file), "--scale", "paper", name]):
                raise RuntimeError(f"{step} failed")
        begun = time.monotonic()
        train.train(run, paths, threads=8)
        trained = time.monotonic() - begun
        name = next(key for key, inference in plan.inferences.items() if inference.name == "source")
        predict.predict(paths.run(run.id), {name: plan.inferences[name]}, paths, Path("p.parquet"), threads=8)
        table = read_table(Path("p.parquet"))
    test = table[table["split"] == "test"]
    scores = {f"AUC {site}": float(roc_auc_score(rows["label"], rows["p1"])) for site, rows in test.groupby("site")}
    return {"seconds of training": trained, **scores}
