"""A study that trains in seconds, its predictions, and the same predictions in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
import yaml
from numpy.typing import NDArray

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.core.rng import stream
from fedshift.data.prepared import Prepared
from fedshift.datasets.own_images import OwnImages
from fedshift.inferences import Inference
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs import train as job
from fedshift.jobs.predict import predict
from fedshift.study.plan import Plan

Array = NDArray[np.float64]
INTERNAL, EXTERNAL = ["north", "south"], ["far"]
TINY: dict[str, Any] = {
    "title": "Sixty images a site",
    "dataset": {"name": "own_images", "table": "images.csv", "size": 8},
    "partition": {"internal": INTERNAL, "external": EXTERNAL, "split": {"train": 0.5, "val": 0.2, "test": 0.3}},
    "model": {"name": "mlp", "hidden": 6},
    "transforms": ["scale_intensity"],
    "training": {"rounds": 2, "batch_size": 8, "lr": 0.1},
    "runs": [{"algorithm": "fedavg", "bn": "local"}],
    "seeds": [0],
    "inferences": ["source"],
}


def load(folder: Path, **changes: Any) -> Plan:
    """A study as its file says it."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | changes, sort_keys=False))
    return study.load(path, "paper")


def complaint(folder: Path, **changes: Any) -> str:
    """Return the error of a study, without the name of its file."""
    with pytest.raises(UserError) as caught:
        load(folder, **changes)
    return str(caught.value).replace(f"{folder / 'tiny.yaml'}.", "")


def trained(root: Path, **changes: Any) -> tuple[Plan, Paths]:
    """A project whose runs are trained, on noise. Its predictions are invented ones, until they are made."""
    settings = TINY | {"dataset": OwnImages(table=Path("images.csv"), size=8)} | changes
    plan, paths = fake_study.build(root, lambda *_: 0.9, **settings)
    for run in plan.runs.values():
        job.train(run, paths)
    return plan, paths


def predicted(plan: Plan, paths: Paths, run: str, *names: str) -> pd.DataFrame:
    """Return what one job writes for some inferences of a run, of test samples."""
    table = written(plan, paths, run, *names)
    return table[table["split"] == "test"].drop(columns="split").reset_index(drop=True)


def written(plan: Plan, paths: Paths, run: str, *names: str, **options: Any) -> pd.DataFrame:
    """Return all that one job writes for some inferences of a run."""
    out = paths.root / "predictions.parquet"
    predict(paths.run(run), {name: plan.inferences[name] for name in names}, paths, out, **options)
    return read_table(out)


def state_of(paths: Paths, run: str, site: str) -> dict[str, Array]:
    """The tensors that a site is predicted with: its own where it has any, the shared ones else."""
    shared, own = (read_tensors(paths.run(run) / f"{n}.safetensors")[0] for n in ("model", "clients"))
    mine = {k.removeprefix(f"{site}/"): v for k, v in own.items() if k.startswith(f"{site}/")}
    return {k: v.double().numpy() for k, v in {**shared, **mine}.items()}


def images_of(plan: Plan, paths: Paths, run: str, part: pd.DataFrame) -> Array:
    prepared = Prepared(paths.data(plan.runs[run].data.id))
    rows = [prepared.samples["sample"].tolist().index(s) for s in part["sample"]]
    return prepared.images[rows].transpose(0, 3, 1, 2).reshape(len(rows), -1) / 255


def by_hand(state: Mapping[str, Array], x: Array, inference: Inference) -> Array:
    """Linear, BN, ReLU, linear, softmax; BN by running statistics, or by TsmoBN's over the batches of its order."""
    h = x @ state["1.weight"].T + state["1.bias"]
    z = np.empty_like(h)
    if isinstance(inference, TsmoBN):
        order = stream(inference.order, "test order").permutation(len(h))
        tau, mu, v = 0.0, np.zeros(1), np.zeros(1)
        for start in range(0, len(h), inference.batch_size):
            index = order[start : start + inference.batch_size]
            mu = tau * mu + (1 - tau) * h[index].mean(0)
            v = tau * v + (1 - tau) * ((h[index] - mu) ** 2).mean(0)
            z[index] = (h[index] - mu) / np.sqrt(v + 1e-5)
            tau = inference.momentum
    else:
        z = (h - state["2.running_mean"]) / np.sqrt(state["2.running_var"] + 1e-5)
    odds = np.exp(np.maximum(state["2.weight"] * z + state["2.bias"], 0) @ state["4.weight"].T + state["4.bias"])
    return odds / odds.sum(1, keepdims=True)
