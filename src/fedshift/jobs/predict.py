"""Prediction with a trained run: probabilities of every test image of every site, under one or more inferences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..addons import extended
from ..core.console import Progress
from ..core.errors import UserError
from ..core.registry import validated
from ..data.prepared import Prepared, read_partition
from ..data.samples import MappedSamples
from ..engine.prediction import adapted_probabilities, probabilities
from ..io.paths import Paths, RunFiles
from ..io.tables import write_table
from ..io.tensors import read_tensors
from ..io.text import read_json
from ..models import initialise
from ..study.run import Run
from ..transforms import shape_after
from .devices import take_device

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

    from ..inferences import Inference


def predict(folder: Path, inferences: Mapping[str, Inference], paths: Paths, out: Path, *, threads: int = 1) -> None:
    """Write `out`: sample, site, role, label, and p0, p1, ... for the test images of all sites of the run's partition.

    An internal site is predicted with its own batch-norm tensors where these stayed at home, an external site with the
    global ones; where each client trained alone there are none, and external sites are left out. An inference with a
    `client` takes that client's for all sites. Several inferences, by id, share one load of model and data; a column
    `inference` then says which. For inferences that use labels, a column `adapted` is true for the test images that
    must not be scored, since the model has seen their labels. Raises UserError where the run is not there.
    """
    import pandas as pd

    run, device = load_run(folder), take_device(threads)
    prepared = Prepared(paths.data(run.data.id))
    partition = read_partition(paths.partition(run.partition_id))
    network = Network(run, folder, prepared.shape, device)
    labels = prepared.samples["label"].to_numpy()

    def samples(part: pd.DataFrame) -> MappedSamples:
        rows = prepared.rows(part)
        return MappedSamples(prepared.images, rows, labels[rows], run.transforms, device)

    frames = []
    parts = {site: partition[partition["site"] == site] for site in run.tested}
    tests = {site: test for site, part in parts.items() if len(test := part[part["split"] == "test"])}
    total = len(inferences) * sum(map(len, tests.values()))
    with Progress(f"predict {folder.name}", total, "images") as bar:
        for name, inference in inferences.items():
            run.partition.require_client(inference.client, name)
            for site, rows in tests.items():
                model, images, columns = network.at(inference.client or site), samples(rows), dict[str, Any]()
                if inference.uses_labels:
                    val = samples(parts[site][parts[site]["split"] == "val"])
                    p, columns["adapted"] = adapted_probabilities(model, images, val, inference, site, device, bar)
                else:
                    p = probabilities(model, images, inference, device, bar)
                columns |= {f"p{k}": column for k, column in enumerate(p.T)}
                columns |= {"inference": name} if len(inferences) > 1 else {}
                frames.append(rows[["sample", "site", "role"]].assign(label=images.labels.numpy(), **columns))
    if not frames:
        raise UserError(paths.partition(run.partition_id), "has no test images of any site", "remove it, and run again")
    write_table(out, pd.concat(frames, ignore_index=True).astype({"label": np.int64}))


def architecture(run: Run, shape: tuple[int, ...]) -> nn.Module:
    """Return the network of a run as it was before training, for stored images of `shape`."""
    network = initialise(run.model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)


class Network:
    """Network of a trained run, for stored images of `shape` (channels, height, width), or (features,).

    Raises UserError where the files of the run are not there, or hold no safetensors.
    """

    def __init__(self, run: Run, folder: Path, shape: tuple[int, ...], device: torch.device) -> None:
        self.folder = folder
        self.shared, _ = read_tensors(RunFiles(folder).model)
        self.local, _ = read_tensors(RunFiles(folder).clients)
        self.model = architecture(run, shape).to(device)

    def at(self, site: str) -> nn.Module:
        """Return the network with the tensors that stayed at a site, and with global ones where none did.

        It is the same module at each call. Raises UserError where the tensors are not those of the run's model.
        """
        try:
            self.model.load_state_dict({k: self.local.get(f"{site}/{k}", v) for k, v in self.shared.items()})
        except RuntimeError as error:
            what = "its tensors are not those of the model in its spec.json"
            raise UserError(self.folder, what, "train it anew") from error
        return self.model


def load_run(folder: Path) -> Run:
    """Return the run whose files lie in `folder`. Raises UserError where there is none."""
    spec = RunFiles(folder).spec
    if not spec.exists():
        raise UserError(folder, "no such run, or it is not trained", "see results/runs, or train it first")
    return validated(Run, read_json(spec), str(spec))
