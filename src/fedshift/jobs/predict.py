"""Prediction with a trained run: probabilities of the test images of every site, under one or more inferences."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch

from ..addons import extended
from ..core.console import Progress, say
from ..core.errors import UserError
from ..core.registry import validated
from ..data.prepared import Prepared, read_partition
from ..data.samples import MappedSamples
from ..data.site_transforms import Statistics, at_site, site_statistics
from ..engine.prediction import adapted_probabilities, client_answer, mean_answer, probabilities
from ..inferences import COUNT, Site
from ..io.guards import require_object
from ..io.paths import Paths, RunFiles
from ..io.tables import write_table
from ..io.tensors import read_tensors
from ..io.text import read_json
from ..models import initialise
from ..nn.blend import Blended, Outputs
from ..nn.memory_format import channels_last
from ..study.run import Run
from ..transforms import greys_after, shape_after
from .devices import take_device

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from ..inferences import Inference
    from ..transforms import Transform


def predict(folder: Path, inferences: Mapping[str, Inference], paths: Paths, out: Path, *, threads: int = 1) -> None:
    """Write `out`: sample, site, role, split, label, and p0, p1, ... for the test images of all sites of a run.

    An internal site is predicted with its own tensors where any stayed at home, or with its personal network where the
    algorithm trains one, and an external site with the global ones; where clients share no model there are none, and
    external sites are left out. Where several networks predict a site together, it is with all of them. An inference
    with a `client` takes that client's for all sites, and one with `network: global` the global ones. Several
    inferences, by id, share one load of model and data; a column `inference` then says which. For inferences that use
    labels, a column `adapted` is true for the test images that must not be scored, since the model has seen their
    labels. What an inference has counted at a site stands in columns `count_...`, the same in all rows of the site's
    test images.

    With two classes, the validation images of internal sites are predicted too, as rows whose `split` is val: the
    threshold of an operating point is chosen by them. Each inference begins anew for them, so that nothing that it
    keeps over batches passes between test and validation images. An inference that uses labels predicts test images
    only, since it may have been adapted to the validation images. Where an inference asks something of the internal
    sites, it is computed here first, on their training images alone. Raises UserError where the run is not there.
    """
    import pandas as pd

    run = load_run(folder)
    device = take_device(threads, run.training.deterministic)
    images = _Images(run, paths)
    network = Network(run, folder, images.prepared.shape, device)
    tests, vals = images.by_site("test", run.tested), images.by_site("val", run.partition.internal)
    at_home = vals if len(run.data.dataset.classes) == 2 else {}
    unlabelled = {name: inference for name, inference in inferences.items() if not inference.uses_labels}
    total = len(inferences) * sum(map(len, tests.values())) + len(unlabelled) * sum(map(len, at_home.values()))
    frames = []
    with Progress(f"predict {folder.name}", total, "images") as bar:
        for name, inference in inferences.items():
            run.partition.require_client(inference.client, name)
            columns = {"inference": name} if len(inferences) > 1 else {}
            known = _known(inference, network, images, device)
            for site, rows in tests.items():
                model, test = network.at(inference.network_at(site)), images.samples(rows, device)
                about = known(site)
                if inference.uses_labels:
                    val = images.samples(vals.get(site, rows[:0]), device)
                    p, adapted = adapted_probabilities(model, test, val, inference, site, device, bar, about)
                    frames.append(_table(rows, test, p, **columns, adapted=adapted, **_counted(about)))
                else:
                    p = probabilities(model, test, inference, device, bar, about)
                    frames.append(_table(rows, test, p, **columns, **_counted(about)))
            for site, rows in at_home.items() if name in unlabelled else ():
                model, val = network.at(inference.network_at(site)), images.samples(rows, device)
                try:
                    p = probabilities(model, val, inference, device, bar, known(site))
                    frames.append(_table(rows, val, p, **columns))
                except UserError as error:  # too few images for statistics of their own
                    say(f"{name}: validation images of {site} are left out: {error.what}")
    if not tests:
        raise UserError(paths.partition(run.partition_id), "has no test images of any site", "remove it, and run again")
    write_table(out, pd.concat(frames, ignore_index=True).astype({"label": np.int64}))


class _Images:
    """Prepared images of a run's partition, with their labels."""

    def __init__(self, run: Run, paths: Paths) -> None:
        self.run, self.prepared = run, Prepared(paths.data(run.data.id))
        self.partition = read_partition(paths.partition(run.partition_id))
        self.labels = self.prepared.samples["label"].to_numpy()
        self._known: dict[str, Statistics] = {}

    def by_site(self, split: str, sites: Iterable[str]) -> dict[str, pd.DataFrame]:
        """Return the rows of the partition in a split, for each of the sites that has any."""
        chosen = self.partition[self.partition["split"] == split]
        return {site: rows for site in sites if len(rows := chosen[chosen["site"] == site])}

    def samples(self, part: pd.DataFrame, device: torch.device) -> MappedSamples:
        """Return the transformed images and the labels of some rows of the partition."""
        transforms = self.run.transforms
        if len(part):
            transforms = at_site(transforms, self._statistics(str(part["site"].iloc[0]), device))
        return self._opened(part, device, transforms)

    def _opened(self, part: pd.DataFrame, device: torch.device, transforms: Sequence[Transform]) -> MappedSamples:
        rows = self.prepared.rows(part)
        return MappedSamples(self.prepared.images, rows, self.labels[rows], transforms, device)

    def _statistics(self, site: str, device: torch.device) -> Statistics:
        """Return what transforms know about a site: from its training images, or from all if none of them trains."""
        if site not in self._known:
            part = self.partition[self.partition["site"] == site]
            train = part[part["split"] == "train"]
            images = train if len(train) else part
            self._known[site] = site_statistics(self.run.transforms, partial(self._opened, images, device))
        return self._known[site]


def _known(inference: Inference, network: Network, images: _Images, device: torch.device) -> Callable[[str], Site]:
    """Return the function from a site to what an inference may know there besides the images."""
    run, greys = images.run, greys_after(images.run.transforms, images.prepared.shape)
    if not inference.asks:
        return lambda site: Site(greys=greys)
    trains = images.by_site("train", run.partition.internal)
    answers = {
        site: client_answer(network.at(site), images.samples(rows, device), inference, device)
        for site, rows in trains.items()
    }
    sizes = [len(rows) if run.training.weights == "size" else 1 for rows in trains.values()]
    weights = run.algorithm.weights([size / sum(sizes) for size in sizes])
    mean = mean_answer(answers, dict(zip(trains, weights, strict=True)))

    def known(site: str) -> Site:
        alone = not run.algorithm.collaboration.has_global_model  # nothing travels, and the site knows its own
        answer = answers[inference.client or site] if alone else mean
        return Site(greys=greys, answer=answer, counts=Counter({"asked": 0 if alone else answer.numel()}))

    return known


def _counted(site: Site) -> dict[str, int]:
    """Return the columns of what was counted at a site."""
    return {f"{COUNT}{name}": number for name, number in sorted(site.counts.items())}


def _table(rows: pd.DataFrame, samples: MappedSamples, probability: np.ndarray, **columns: Any) -> pd.DataFrame:
    """Return the predictions of some samples: where they belong, labels, and probabilities (n, classes)."""
    columns = {**columns, **{f"p{k}": column for k, column in enumerate(probability.T)}}
    return rows[["sample", "site", "role", "split"]].assign(label=samples.labels.numpy(), **columns)


def architecture(run: Run, shape: tuple[int, ...]) -> nn.Module:
    """Return the network of a run as it was before training, for stored images of `shape`."""
    network = initialise(run.model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)


class Network:
    """Network of a trained run, for stored images of `shape` (channels, height, width), or (features,).

    Raises UserError where the files of the run are not there, or hold no safetensors.
    """

    def __init__(self, run: Run, folder: Path, shape: tuple[int, ...], device: torch.device) -> None:
        self.folder, self.clients = folder, run.partition.internal
        self.shared, _ = read_tensors(RunFiles(folder).model)
        self.local, known = read_tensors(RunFiles(folder).clients)
        self.blends = _blends(RunFiles(folder).clients, known.get("blends", "{}"))
        model = architecture(run, shape).to(device)
        last = channels_last(run.training.channels_last, model, shape_after(run.transforms, shape), device)
        self.model = model.to(memory_format=torch.channels_last) if last else model

    def at(self, site: str) -> nn.Module:
        """Return the network with the tensors that stayed at a site, and with global ones where none did.

        It is the same module at each call, unless several networks predict the site together: then it is a `Blended`.
        Raises UserError where the tensors are not those of the run's model.
        """
        blend = self.blends.get(site if site in self.clients else "")
        if blend is None:
            return self._one(site)
        networks = [copy.deepcopy(self._one(name)) for name in blend["networks"]]
        return Blended(networks, tuple(blend["networks"].values()), blend["of"])

    def _one(self, name: str) -> nn.Module:
        """Return the network with the tensors that were saved under a name, and with global ones for the rest."""
        try:
            self.model.load_state_dict({k: self.local.get(f"{name}/{k}", v) for k, v in self.shared.items()})
        except RuntimeError as error:
            what = "its tensors are not those of the model in its spec.json"
            raise UserError(self.folder, what, "train it anew") from error
        return self.model


def _blends(path: Path, text: str) -> dict[str, dict[str, Any]]:
    """Return the networks that predict sites together, with their weights. Raises UserError for any other text."""
    try:
        blends = require_object(path, json.loads(text), {})
        for blend in blends.values():
            known = require_object(path, blend, {"of": "text", "networks": "a mapping"})
            require_object(path, known["networks"], dict.fromkeys(known["networks"], "a number"))
            if not known["networks"] or known["of"] not in get_args(Outputs):
                raise UserError(path, "names no networks, or averages something else than logits or probabilities")
    except (ValueError, RecursionError, UserError) as error:
        raise UserError(path, "does not say which networks predict a site together", "train it anew") from error
    return blends


def load_run(folder: Path) -> Run:
    """Return the run whose files lie in `folder`. Raises UserError where there is none."""
    spec = RunFiles(folder).spec
    if not spec.exists():
        raise UserError(folder, "no such run, or it is not trained", "see results/runs, or train it first")
    return validated(Run, read_json(spec), str(spec))
