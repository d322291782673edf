"""One trained run, one or more ways of inference: a probability for every test image of every site."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..addons import extended
from ..core.console import Progress
from ..core.errors import UserError
from ..core.registry import validated
from ..core.rng import keyed, stream
from ..data.prepared import Prepared
from ..data.samples import MappedSamples, Samples
from ..io.paths import Paths
from ..io.tables import read_table, write_table
from ..io.tensors import read_tensors
from ..io.text import read_json
from ..models import initialise
from ..transforms import shape_after
from .devices import take_device

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from ..inferences import Inference, Personalise
    from ..study.run import Run


def predict(folder: Path, inferences: Mapping[str, Inference], paths: Paths, out: Path, *, threads: int = 1) -> None:
    """Write `out`: sample, site, role, label, and p0, p1, ... for the test images of all sites of the run's partition.

    An internal site is predicted with its own batch-norm tensors where these stayed at home, an external site with the
    global ones; where each client trained alone there are none, and external sites are left out. An inference with a
    `client` takes that client's for all sites. Several inferences, by
    id, share one load of model and data; a column `inference` then says which. Where a model was first adapted to
    labelled test images that must not be scored, these have a true value in the column `adapted`. Raises UserError
    where the run is not there.
    """
    import numpy as np
    import pandas as pd

    run, device = load_run(folder), take_device(threads)
    prepared = Prepared(paths.data(run.data.id))
    partition = read_table(paths.partition(run.partition_id))
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
            for site, test in tests.items():
                model = network.at(inference.client or site)
                given, columns = samples(test), dict[str, Any]()
                if inference.personalise:
                    val = samples(parts[site][parts[site]["split"] == "val"])
                    columns["adapted"] = adapt(model, given, val, inference.personalise, site)
                    if columns["adapted"].all():
                        what = f"all {len(given)} test images would be adapted to, and none left to score"
                        raise UserError(f"site {site!r}", what, "lower personalise.batch_size")
                probability = probabilities(model, given, inference, device, bar)
                columns |= {f"p{k}": probability[:, k] for k in range(probability.shape[1])}
                columns |= {"inference": name} if len(inferences) > 1 else {}
                frames.append(test[["sample", "site", "role"]].assign(label=given.labels.numpy(), **columns))
    write_table(out, pd.concat(frames, ignore_index=True).astype({"label": np.int64}))


def architecture(run: Run, shape: tuple[int, ...]) -> nn.Module:
    """The network of a run as it was before training, for stored images of `shape`."""
    network = initialise(run.model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)


class Network:
    """The network of a trained run, for stored images of `shape` (channels, height, width), or (features,).

    Raises UserError where the files of the run are not there, or hold no safetensors.
    """

    def __init__(self, run: Run, folder: Path, shape: tuple[int, ...], device: torch.device) -> None:
        self.folder = folder
        self.shared, _ = read_tensors(folder / "model.safetensors")
        self.own, _ = read_tensors(folder / "clients.safetensors")
        self.model = architecture(run, shape).to(device)

    def at(self, site: str) -> nn.Module:
        """The network with the tensors that stayed at a site; with the global ones where there are none.

        It is the same module each time. Raises UserError where the tensors are not those of the run's model.
        """
        try:
            self.model.load_state_dict({k: self.own.get(f"{site}/{k}", v) for k, v in self.shared.items()})
        except RuntimeError as error:
            what = "its tensors are not those of the model in its spec.json"
            raise UserError(self.folder, what, "train it anew") from error
        return self.model


def adapt(model: nn.Module, test: Samples, val: Samples, how: Personalise, site: str) -> np.ndarray:
    """Take SGD steps on labelled images of a site, all trainable parameters, and leave the model so.

    Returns which test samples (n,) must not be scored, since the model has seen their labels; none where
    `test_included` asks for the leak. Raises UserError for a site with a single image.
    """
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    from ..nn.batchnorm import untracked

    given = val if how.source == "val" and len(val) else test
    index = stream(how.seed, "personalise", site).permutation(len(given))[: how.batch_size]
    if len(index) < 2:
        raise UserError(f"site {site!r}", f"has {len(index)} labelled images to adapt to", "leave personalise out")
    device = next(model.parameters()).device
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=how.lr)
    model.train()
    with untracked(model), keyed(how.seed, "personalise", site, "dropout", device=device):
        for _ in range(how.steps):
            x, y = given.batch(index)
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()
    optimiser.zero_grad()
    seen = np.zeros(len(test), dtype=bool)
    if given is test and how.source != "test_included":
        seen[index] = True
    return seen


def load_run(folder: Path) -> Run:
    """The run whose files lie in `folder`. Raises UserError where there is none."""
    from ..study.run import Run

    if not (folder / "spec.json").exists():
        raise UserError(folder, "no such run, or it is not trained", "see results/runs, or train it first")
    return validated(Run, read_json(folder / "spec.json"), str(folder / "spec.json"))


def image_order(inference: Inference, n: int) -> np.ndarray:
    """The order (n,) in which a site's images are gone through."""
    import numpy as np

    seed = inference.settings()["order"]
    return np.arange(n) if seed is None else stream(seed, "test order").permutation(n)


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

    order = image_order(inference, len(samples))
    batches = [order[start : start + inference.batch_size] for start in range(0, len(order), inference.batch_size)]

    def inputs() -> Iterator[torch.Tensor]:
        for index in batches:
            yield samples.batch(index)[0].to(device)

    out: np.ndarray | None = None
    model.eval()
    with torch.no_grad(), inference.on_site(model, inputs):
        for index, x in zip(batches, inputs(), strict=True):
            p = model(x).double().softmax(1).cpu().numpy()
            out = np.empty((len(order), p.shape[1])) if out is None else out
            out[index] = p
            if bar:
                bar.update(len(index))
    return out if out is not None else np.empty((0, 0))
