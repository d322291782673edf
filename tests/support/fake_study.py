"""A project folder with invented results, for tests of all that comes after prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import once
import pandas as pd

from fedshift.datasets import Card, Dataset
from fedshift.inferences import Inference
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import write_json
from fedshift.study.plan import Plan, Run, Study

EVIL = "<script>alert(1)</script>"
INTERNAL = ("centre0", "centre3")
EXTERNAL = ("centre1", EVIL)
PER_PATIENT = 10
PATIENTS = 6


class Fake(Dataset):
    """Invented patches."""

    name = "fake"
    classes: tuple[str, ...] = ("healthy", "tumour & <b>friends</b>")

    def card(self) -> Card:
        return Card("Invented patches", "1.0", "nowhere", "CC0", "Nobody (2024), https://doi.org/10.1/x")


def study(**changes: Any) -> Study:
    settings: dict[str, Any] = {
        "title": "Does it hold up?",
        "question": "How well does it work in a hospital that took no part?",
        "notes": ["A note with <i>markup</i> in it."],
        "dataset": Fake(),
        "partition": {"internal": INTERNAL, "external": EXTERNAL},
        "model": "mlp",
        "training": {"rounds": 4},
        "runs": [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}],
        "seeds": [0, 1, 2],
        "inferences": ["source", "tsmobn"],
    }
    return Study.model_validate(settings | changes)


def plan(root: Path, **changes: Any) -> Plan:
    return Plan("fake", root / "config" / "studies" / "fake.yaml", "mini", study(**changes))


ShareRight = Callable[[Run, str, str, str], float]


def helps(run: Run, inference: str, site: str, role: str) -> float:
    """TsmoBN recovers 20 of 30 points outside, whatever the seed and the BN policy."""
    return 0.9 if role == "internal" else {"source": 0.6, "tsmobn": 0.8}[inference]


def harms(run: Run, inference: str, site: str, role: str) -> float:
    """TsmoBN loses 20 points outside."""
    return 0.9 if role == "internal" else {"source": 0.6, "tsmobn": 0.4}[inference]


def samples(plan: Plan) -> pd.DataFrame:
    """PATIENTS patients of PER_PATIENT samples at each site, classes in turn."""
    sites = dict.fromkeys(s for part in plan.partitions for s in (*part.internal, *part.external))
    rows = [
        {"sample": f"{site}/{p}/{i}", "site": site, "label": i % 2, "patient": f"{site}/{p}"}
        for site in sites
        for p in range(PATIENTS)
        for i in range(PER_PATIENT)
    ]
    return pd.DataFrame(rows)


def predict(table: pd.DataFrame, run: Run, inference: str, share_right: ShareRight) -> pd.DataFrame:
    """Test samples with the wanted share of right answers in each site: the first of every patient are right."""
    table = table.copy()
    order = table.groupby("patient").cumcount()
    share = [share_right(run, inference, site, role) for site, role in zip(table["site"], table["role"], strict=True)]
    correct = order < np.round(np.array(share) * PER_PATIENT)
    table["p1"] = np.where(correct == (table["label"] == 1), 0.8, 0.2)
    table["p0"] = 1 - table["p1"]
    further = {f"p{label}": 0.0 for label in range(2, len(run.data.dataset.classes))}
    return table[["sample", "site", "role", "label", "p0", "p1"]].assign(**further)


def called(inference: Inference) -> str:
    """Return the name by which `share_right` is asked: `source`, and `source@centre0` for the network of a client."""
    return "@".join(filter(None, [inference.name, inference.client]))


def rounds(run: Run) -> pd.DataFrame:
    rows = [
        {
            "round": r,
            "site": site,
            "split": split,
            "loss": 1 / r + 0.01 * run.seed,
            "accuracy": 0.9 - 0.3 / r,
            "floats_down": 1000 * (split == "train"),
            "floats_up": 1000 * (split == "train"),
            "messages": int(split == "train"),
            "seconds": 0.5,
        }
        for r in range(1, run.training.rounds + 1)
        for site in run.partition.internal
        for split in ("train", "val")
    ]
    return pd.DataFrame(rows)


def manifest(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "seed": run.seed,
        "code": "0123456789ab",
        "git": {"commit": "a" * 40, "dirty": False},
        "versions": {"python": "3.11", "torch": "2.6"},
        "device": "cpu",
        "threads": 1,
        "arithmetic": {"torch": "AVX2", "oneDNN": "on", "processor": "avx2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
        "started": "2025-01-01T00:00:00+00:00",
        "seconds": 12.5,
        "rounds": run.training.rounds,
        "best_round": 3,
        "best_value": 0.8,
        "peak_memory_mb": 100,
        "command": "fedshift train",
    }


def card(plan: Plan, synthetic: bool) -> dict[str, Any]:
    known = vars(plan.study.dataset.card())
    return {
        **known,
        "synthetic": synthetic,
        "classes": list(plan.study.dataset.classes),
        "sites": {},
        "checksums": {"raw.zip": "00"},
    }


def predictions_of(plan: Plan, paths: Paths, run: str) -> Path:
    """The file with all predictions of a run."""
    return paths.predictions(run, plan.prediction_jobs[run])


def remove(plan: Plan, paths: Paths, run: str, inference: str) -> None:
    """Take the predictions of an inference out of a run's file."""
    file = predictions_of(plan, paths, run)
    table = read_table(file)
    write_table(file, table[table["inference"] != inference])


def build(root: Path, share_right: ShareRight = helps, **changes: Any) -> tuple[Plan, Paths]:
    """Write everything up to the predictions, as `write` does; for the same arguments only once.

    Ids of data with a table of their own depend on the folder: these are written each time.
    """

    def make(folder: Path) -> None:
        write(folder, share_right, **changes)

    made = plan(root, **of_study(changes))
    if any(data.dataset.inputs() for data in made.data.values()):
        make(root)
    else:
        once.written(root, (share_right, of_scores(changes), state()), make)
    return made, Paths(root)


def of_scores(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that predictions and scores depend on."""
    after = ("title", "question", "notes", "figures", "trends", "published", "reproduces")
    return {key: value for key, value in changes.items() if key not in after}


def of_study(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that are keys of the study: those that `write` does not take itself."""
    return {key: value for key, value in changes.items() if key not in ("synthetic", "without", "change")}


def state() -> tuple[Any, ...]:
    """Return what tests may replace in this module."""
    return PATIENTS, PER_PATIENT, samples, predict, rounds, manifest, card


def write(
    root: Path,
    share_right: ShareRight = helps,
    synthetic: bool = True,
    without: Mapping[str, Any] | None = None,
    change: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
    **changes: Any,
) -> None:
    """Write everything up to the predictions; of runs that agree with `without` in all its keys, the spec only.

    `change` is applied to the samples before anything is made of them.
    """
    made, paths = plan(root, **changes), Paths(root)
    table = change(samples(made)).reset_index(drop=True) if change else samples(made)
    for data in made.data:
        folder = paths.data(data)
        write_table(folder / "samples.parquet", table)
        write_json(folder / "card.json", card(made, synthetic))
        noise = np.random.default_rng(0).integers(0, 256, (len(table), 8, 8, 3), dtype=np.uint8)
        np.save(folder / "images.npy", noise)
    for name, run in made.runs.items():
        assigned = run.partition.assign(table)
        write_table(paths.partition(run.partition_id), assigned)
        write_json(paths.run(name) / "spec.json", run.spec)
        if without and all(getattr(run, key) == value for key, value in without.items()):
            continue
        write_json(paths.run(name) / "manifest.json", manifest(run))
        write_table(paths.run(name) / "rounds.parquet", rounds(run))
        known = assigned.merge(table[["sample", "label", "patient"]], on="sample")
        if not run.algorithm.collaboration.has_global_model:
            known = known[known["role"] == "internal"]
        splits = [known[known["split"] == split] for split in ("test", "val") if split in set(known["split"])]
        tables = {
            how: pd.concat([predict(part, run, called(i), share_right).assign(split=part["split"]) for part in splits])
            for how, i in made.inferences.items()
        }
        members = made.predictions(name)
        parts = [tables[how].assign(inference=how) if len(members) > 1 else tables[how] for how in members]
        write_table(predictions_of(made, paths, name), pd.concat(parts, ignore_index=True))
