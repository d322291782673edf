"""One trained run, one way of inference: a probability for every test image of every site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError
from .files import read_json, read_table, read_tensors, write_table
from .model import initialise
from .paths import Paths
from .prepare import Prepared
from .progress import Progress
from .registry import validated
from .rng import stream
from .samples import MappedSamples, Samples

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from .inference import Inference
    from .study import Run


def predict(folder: Path, inference: Inference, paths: Paths, out: Path, *, threads: int = 1) -> None:
    """Write `out`: sample, site, role, label, and p0, p1, ... for the test images of all sites of the run's partition.

    An internal site is predicted with its own batch-norm tensors where these stayed at home, an external site with the
    global ones. Raises UserError where the run is not there.
    """
    import numpy as np
    import pandas as pd
    import torch

    torch.set_num_threads(threads)
    run = load_run(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared = Prepared(paths.data(run.data.id))
    partition = read_table(paths.partition(run.partition_id))
    test = partition[partition["split"] == "test"]
    shared, _ = read_tensors(folder / "model.safetensors")
    own, _ = read_tensors(folder / "clients.safetensors")
    model = initialise(run.model, prepared.shape, len(prepared.classes), run.seed).to(device)
    labels = prepared.samples["label"].to_numpy()
    frames = []
    with Progress(f"predict {inference.label}", len(test), "images") as bar:
        for site in (*run.partition.internal, *run.partition.external):
            part = test[test["site"] == site]
            rows = prepared.rows(part)
            model.load_state_dict({k: own.get(f"{site}/{k}", v) for k, v in shared.items()})
            samples = MappedSamples(prepared.images, rows, labels[rows], run.transforms, device)
            probability = probabilities(model, samples, inference, device, bar)
            columns = {f"p{k}": probability[:, k] for k in range(probability.shape[1])}
            frames.append(part[["sample", "site", "role"]].assign(label=labels[rows], **columns))
    write_table(out, pd.concat(frames, ignore_index=True).astype({"label": np.int64}))


def load_run(folder: Path) -> Run:
    """The run whose files lie in `folder`. Raises UserError where there is none."""
    from .study import Run

    if not (folder / "spec.json").exists():
        raise UserError(folder, "no such run, or it is not trained", "see results/runs, or train it first")
    return validated(Run, read_json(folder / "spec.json"), str(folder / "spec.json"))


def probabilities(
    model: nn.Module,
    samples: Samples,
    inference: Inference,
    device: torch.device | str = "cpu",
    bar: Progress | None = None,
) -> np.ndarray:
    """Class probabilities (n, classes), float64, of one site's samples; in stored order, whatever the test order."""
    import numpy as np
    import torch

    order = np.arange(len(samples))
    seed = inference.settings()["order"]
    if seed is not None:
        order = stream(seed, "test order").permutation(len(samples))
    out: np.ndarray | None = None
    model.eval()
    with torch.no_grad(), inference.on_site(model):
        for start in range(0, len(order), inference.batch_size):
            index = order[start : start + inference.batch_size]
            x, _ = samples.batch(index)
            p = model(x.to(device)).double().softmax(1).cpu().numpy()
            out = np.empty((len(order), p.shape[1])) if out is None else out
            out[index] = p
            if bar:
                bar.update(len(index))
    return out if out is not None else np.empty((0, 0))
