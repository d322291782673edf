"""The reference networks of benchmark-mitosis-pretrained at mitosis_md: cells of several organs and species.

`make reproduce STUDY=mitosis-md` writes docs/reproductions/benchmark-mitosis-pretrained/mitosis_md.csv after `make
reproduce STUDY=benchmark-mitosis-pretrained`, whose networks it takes: those of FedAvg with aggregated BN, all layers
trained. `fedshift apply` predicts the cells with each network, without and with TsmoBN. Blocks of neighbouring files
stand for patients. As in a study, the score of a training (seed) is the mean over the networks of its folds, and each
interval is at 95 %. The cells had no part in any choice, and no hypothesis about them was registered.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

import fedshift
from fedshift.analysis import estimates
from fedshift.analysis.conditions import Finder
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.io.download import unpack
from fedshift.io.paths import Paths

ROOT = Path(__file__).parents[1]
STUDY = "benchmark-mitosis-pretrained"
FOLDER = ROOT / "build" / "reproductions" / STUDY
OUT = ROOT / "docs" / "reproductions" / STUDY / "mitosis_md.csv"
INFERENCES = ("source", "tsmobn")


def applied(run: str, cells: Path, inference: str, folder: Path) -> pd.DataFrame:
    """Return the predictions of the cells by a run, which are made and kept where they are not there yet."""
    out = folder / "mitosis_md" / f"{run}-{inference}"
    if not (out / "predictions.csv").is_file():
        trained = Paths(folder).run(run)
        if not (trained / "manifest.json").is_file():
            raise UserError(trained, "no trained run", f"call make reproduce STUDY={STUDY} before")
        command = [sys.executable, "-m", "fedshift", "apply", str(trained), str(cells / "samples.csv")]
        subprocess.run([*command, "--no-examples", "--inference", inference, "--out", str(out)], check=True)
    return pd.read_csv(out / "predictions.csv").sort_values("path")


def main(archives: Path, folder: Path = FOLDER) -> None:
    """Write the AUC with each inference and their difference, from mitosis_md.tar in `archives`."""
    file = archives / "mitosis_md.tar"
    if not file.is_file():
        raise UserError(file, "no such file", "see CONTRIBUTING.md")
    plan = fedshift.load_study(STUDY, "paper", project=ROOT).plan
    assert plan.study.primary is not None
    reference = Finder(plan).cells(plan.study.primary.against)[0].condition
    cells = folder / "mitosis_md" / "cells"
    unpack(file, cells, None)
    auc = registry.build("metric", "auc")
    levels = {}
    for inference in INFERENCES:
        trainings = []
        for seed in reference.seeds:
            folds = []
            for run in (key for key, run in reference.runs.items() if run.seed == seed):
                rows = applied(run, cells, inference, folder)
                label = (rows["label"] == "atypical").to_numpy(dtype=int)
                probability = rows[["p_normal", "p_atypical"]].to_numpy()
                block = pd.factorize(rows["patient"])[0]
                folds.append(estimates.of_metric(auc, label, probability, block, ("mitosis_md", ""), seed))
            trainings.append(estimates.over_folds(folds))
        levels[inference] = estimates.over_trainings(trainings)
    levels["difference"] = estimates.minus(levels["tsmobn"], levels["source"])
    lines = [
        (name, one.mean, *one.interval(), *one.interval_over_patients(), len(one.values), one.patients)
        for name, one in levels.items()
    ]
    columns = ["inference", "auc", "low", "high", "low_blocks", "high_blocks", "trainings", "blocks"]
    table = pd.DataFrame(lines, columns=columns).assign(cells=len(label), atypical=int(label.sum()))
    table.round(4).to_csv(OUT, index=False)
