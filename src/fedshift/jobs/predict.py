"""Prediction with a trained run: probabilities of the test images of every site, and features of its last layer."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from torch import nn

from ..addons import extended
from ..core import digest
from ..core.console import Progress, say
from ..core.errors import UserError
from ..core.registry import validated
from ..core.rng import stream
from ..data.samples import MappedSamples, Samples
from ..engine.prediction import (
    adapted_probabilities,
    class_probabilities,
    client_answer,
    federation_answer,
    probabilities,
    site_predictor,
)
from ..inferences import COUNT, Inference, Site
from ..io import identity
from ..io.arrays import read_tensors
from ..io.checksums import checksum_of, damage
from ..io.images import encoded
from ..io.paths import Paths, RunFiles
from ..io.tables import read_table, write_table
from ..io.text import read_json, require_object
from ..models import initialise
from ..nn.device import channels_last, to_device
from ..nn.features import Blended, Outputs, classifier, inputs_of
from ..nn.norms import kept as kept_at_clients
from ..nn.policies import policy
from ..study.run import Run
from ..tasks.segmentation import PLACES, THRESHOLDS, Segmentation, histograms
from ..transforms import greys_after, shape_after
from .accept import predict_code
from .record import STAYED, read_manifest, take_device
from .run_images import RunImages

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..inferences import Inference
    from ..tasks import Task


@dataclass(eq=False)
class MaskReader:
    """Function from logits and targets of a batch to predictions; it also keeps the predicted masks of a site.

    `order` are the stored rows of the site (n,) in the order in which they are predicted, `spacing` (n, 2) the
    millimetres between rows and columns of each image in stored order, and `structures` maps the name of each structure
    whose `histograms` are kept to its classes. One reader serves one site. Until the site is done it holds the mask of
    each image as a PNG file, since only then it is known which ones are kept: a kilobyte or two an image.
    """

    task: Task
    order: np.ndarray
    spacing: np.ndarray | None = None
    structures: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.order), len(self.structures), len(PLACES), len(THRESHOLDS)
        self._histograms = np.empty(shape, dtype=np.int32)
        # All files in one place, and where each one ends: see `engine.prediction.probabilities`.
        self._files = bytearray()
        self._ends = [0]

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the predictions of a batch (batch, columns); see `Task.predictions`."""
        start = len(self._ends) - 1
        rows = self.order[start : start + len(y)]
        spacing = None if self.spacing is None else self.spacing[rows]
        if self.structures:
            p = class_probabilities(logits, y).cpu().numpy()
            self._histograms[rows] = histograms(p, y.cpu().numpy(), [*self.structures.values()])
        if self.task.has_masks:
            for mask in logits.argmax(1).cpu().numpy().astype(np.uint8):
                self._files += encoded(mask)
                self._ends.append(len(self._files))
        return self.task.predictions(logits, y, spacing=spacing)

    def kept(self, predictions: np.ndarray) -> dict[str, list[Any]]:
        """Return the columns of a site's masks for the table of predictions; {} for a task without masks.

        The column `mask` holds PNG files, and None for images whose mask is not kept. Further columns hold the
        histograms of each structure, an array an image: `inside_disc` and `outside_disc`. `predictions` (n, columns)
        are those of all images in stored order.
        """
        if not self.task.has_masks:
            return {}
        wanted = set(self.task.with_mask(predictions).tolist())
        column: list[bytes | None] = [None] * len(self.order)
        for row, (start, end) in zip(self.order.tolist(), itertools.pairwise(self._ends), strict=True):
            if row in wanted:
                column[row] = bytes(self._files[start:end])
        sides = itertools.product(enumerate(self.structures), enumerate(PLACES))
        return {"mask": column} | {
            f"{place}_{name}": [*self._histograms[:, k, side]] for (k, name), (side, place) in sides
        }


ORIGINS = "origins"
"""The attribute of a table of predictions that maps the id of each inference to its origin: a digest of what its
predictions were made from."""


def origins_of(run: Run, inferences: Mapping[str, Inference], paths: Paths) -> dict[str, str]:
    """Return the origin of each inference's predictions: a digest of all they depend on but the tensors of the run.

    This means code, images, samples and partition. It is "" if no checksum of these files was recorded.
    """
    data = paths.data_files(run.data.id)  # the card holds checksums of the images
    sums = [checksum_of(file) for file in (data.card, data.samples, paths.partition(run.partition_id))]
    return {
        key: digest.of([*sums, predict_code(run, inference)]) if all(sums) else ""
        for key, inference in inferences.items()
    }


def kept_predictions(files: RunFiles, wanted: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """Return the stored predictions of a run that can be used again, by the id of the inference.

    `wanted` maps each inference to its origin, a digest of the code and the data that its predictions depend on: a
    stored prediction must have the same one. A file that is damaged, or was predicted with other weights than the run
    has now, is passed over.
    """
    found: dict[str, pd.DataFrame] = {}
    for file in files.every_prediction:
        try:
            about = {} if damage(file) else identity.stated(file)
            of_run = identity.of_predictions(files, ())
            made = about.get(ORIGINS) or {}
            same = "network" in of_run and all(about.get(key) == of_run[key] for key in ("run", "network"))
            useful = [key for key in made if same and made[key] and made[key] == wanted.get(key) and key not in found]
            if useful:
                table = read_table(file)
                several = "inference" in table
                found |= {key: table[table["inference"] == key] if several else table for key in useful}
        except UserError:
            continue
    return {key: table.drop(columns="inference", errors="ignore") for key, table in found.items()}


def predict(
    folder: Path, inferences: Mapping[str, Inference], paths: Paths, out: Path, *, threads: int = 1, val: bool = False
) -> None:
    """Write `out`: sample, site, role, split, label, and p0, p1, ... for the test images of all sites of a run.

    `folder` is the run's, and `inferences` maps ids to the ways of prediction. An internal site is predicted with the
    tensors that stayed there, or with its personal network, and an external site with the global network; where clients
    share no model, external sites are left out. An inference with `client` takes that client's tensors for all sites,
    one with `network: global` the global ones.

    Several inferences share one load of model and data, and a column `inference` says which one made a row. Predictions
    that any table of the run holds already are taken from there (see `kept_predictions`). Where an inference uses
    labels, `adapted` is true for test images whose labels the model has seen: they must not be scored. Columns
    `count_...` hold what an inference has counted at a site, in all rows of its test images.

    Rows whose `split` is val predict the validation images of internal sites, which choose the threshold of an
    operating point and calibrate prediction sets. They are written for two classes and, with `val`, also for more
    classes and for masks. The inference begins anew for them, so that nothing passes from test images to validation
    images. An inference that uses labels predicts test images only, since it may have been adapted to the validation
    images. Of masks, `val` also adds the histograms of `MaskReader`.

    Raises UserError if the run does not exist.
    """
    run = load_run(folder)
    files = RunFiles(folder)
    made_from = origins_of(run, inferences, paths)
    tables = kept_predictions(files, made_from)
    if val:  # files of other studies may lack it
        there = {name for name, table in tables.items() if (table["split"] == "val").any()}
        tables = {name: tables[name] for name in tables if name in there or inferences[name].uses_labels}
    missing = {name: inference for name, inference in inferences.items() if name not in tables}
    if tables and missing:
        say(f"kept from earlier predictions: {', '.join(tables)}")
    if missing:
        tables |= _made(run, folder, missing, paths, threads, val)
    several = len(inferences) > 1
    parts = [tables[name].assign(inference=name) if several else tables[name] for name in inferences]
    table = pd.concat(parts, ignore_index=True).astype({"label": np.int64})
    table.attrs = identity.of_predictions(files, inferences) | {ORIGINS: made_from}
    write_table(out, table)


def _made(
    run: Run, folder: Path, inferences: Mapping[str, Inference], paths: Paths, threads: int, val: bool
) -> dict[str, pd.DataFrame]:
    """Compute the predictions of a run in `folder` by each inference, and return them by the inference's id.

    With `val`, validation images are predicted for every task; else only for two classes. Raises UserError if no site
    has test images.
    """
    device = take_device(threads)
    images = RunImages(run, paths, device)
    network = Network(run, folder, images.prepared.shape, device)
    tests = images.by_site("test", run.tested)
    if not tests:
        raise UserError(paths.partition(run.partition_id), "has no test images of any site", "remove it, and run again")
    vals = images.by_site("val", run.partition.internal)
    needed = val or (run.data.task.has_probabilities and len(run.data.dataset.classes) == 2)
    thresholds = {name: vals if needed and not i.uses_labels else {} for name, i in inferences.items()}
    total = sum(len(rows) for part in thresholds.values() for rows in (*tests.values(), *part.values()))
    with Progress(f"predict {folder.name}", total, "images") as bar:
        made = {}
        for name, inference in inferences.items():
            run.partition.require_client(inference.client, name)
            predicted = Predicted(name, inference, network, images, bar, val)
            frames = [predicted.test(site, rows, vals.get(site, rows[:0])) for site, rows in tests.items()]
            frames += [frame for site, rows in thresholds[name].items() for frame in predicted.validation(site, rows)]
            made[name] = pd.concat(frames, ignore_index=True)
    return made


class Predicted:
    """The predictions of a run by one inference, site by site; with the histograms of masks if they are `counted`."""

    def __init__(
        self, name: str, inference: Inference, network: Network, images: RunImages, bar: Progress, counted: bool = False
    ) -> None:
        self.name = name
        self.inference = inference
        self.network = network
        self.images = images
        self.bar = bar
        self.task = images.run.data.task
        self.deterministic = images.run.training.deterministic
        self.knowledge = site_knowledge(inference, network, images)
        classes = images.run.data.dataset.classes
        self.columns = self.task.columns(classes)
        self.structures: dict[str, tuple[int, ...]] = {}
        if counted and isinstance(self.task, Segmentation):
            self.structures = dict(zip(self.task.names(classes), self.task.scored(len(classes)), strict=True))

    def _opened(self, site: str, rows: pd.DataFrame) -> tuple[nn.Module, MappedSamples, Site, MaskReader]:
        """Return the network for a site, its images, what the inference knows there, and the reader of predictions.

        `rows` are rows of the partition, all of this site.
        """
        model = self.network.at(self.inference.network_at(site), self.inference.external_bn)
        order = self.inference.image_order(len(rows))
        reader = MaskReader(self.task, order, self.images.spacing(rows), self.structures)
        return model, self.images.samples(rows), self.knowledge(site), reader

    def test(self, site: str, rows: pd.DataFrame, validation: pd.DataFrame) -> pd.DataFrame:
        """Return the predictions of the test images of a site, the `rows` of the partition.

        An inference that uses labels may adapt to the `validation` images, too.
        """
        images, inference, device = self.images, self.inference, self.images.device
        model, test, place, reader = self._opened(site, rows)
        seen: dict[str, np.ndarray] = {}
        if inference.uses_labels:
            val = images.samples(validation)
            p, seen["adapted"] = adapted_probabilities(
                model, test, val, inference, site, device, self.bar, place, self.task, reader, self.deterministic
            )
        else:
            p = probabilities(model, test, inference, device, self.bar, place, self.task, reader, self.deterministic)
        counted = {f"{COUNT}{name}": number for name, number in sorted(place.counts.items())}
        return _table(rows, test, self.columns, p, **seen, **counted, **reader.kept(p))

    def validation(self, site: str, rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """Yield a table of predictions of a site's validation images; none if they are too few for the inference."""
        model, val, place, reader = self._opened(site, rows)
        settings = self.images.device, self.bar, place, self.task, reader, self.deterministic
        try:
            p = probabilities(model, val, self.inference, *settings)
        except UserError as error:
            # Too few images for statistics of the batch: the test images of the site are still scored.
            say(f"{self.name}: validation images of {site} are left out: {error.what}")
        else:
            yield _table(rows, val, self.columns, p, **reader.kept(p))


def site_knowledge(inference: Inference, network: Network, images: RunImages) -> Callable[[str], Site]:
    """Return the function from a site's name to a Site: what an inference knows of the site besides its images.

    If the inference asks for numbers from the internal sites, they are computed here, from training images alone.
    """
    run = images.run
    device = images.device
    greys = greys_after(run.transforms, images.prepared.shape)
    inference.require_policy(run.bn, run.norms, f"inference {inference.name}")
    if not inference.asks:
        return lambda site: Site(greys=greys)
    trains = images.by_site("train", run.partition.internal)

    def ask(known: Tensor | None) -> dict[str, Tensor]:
        answers = {}
        for site, rows in trains.items():
            model = network.at("" if inference.network == "global" else site, inference.external_bn)
            settings = inference, device, run.data.task, run.training.deterministic
            answers[site] = client_answer(model, images.samples(rows), *settings, known)
        return answers

    if not run.algorithm.collaboration.has_global_model:
        # Nothing travels, and a site has its own answer alone.
        answers = ask(None)
        return lambda site: Site(greys=greys, answer=answers[inference.client or site], counts=Counter({"asked": 0}))
    sizes = [len(rows) if run.training.weights == "size" else 1 for rows in trains.values()]
    weights = run.algorithm.weights([size / sum(sizes) for size in sizes])
    mean = federation_answer(inference, ask, dict(zip(trains, weights, strict=True)))
    return lambda site: Site(greys=greys, answer=mean, counts=Counter({"asked": mean.numel()}))


def _table(
    rows: pd.DataFrame, samples: MappedSamples, names: Sequence[str], predictions: np.ndarray, **columns: Any
) -> pd.DataFrame:
    """Return a table of predictions: sample, site, role, split, label, and predictions (n, columns) under `names`.

    `columns` are further columns by name.
    """
    columns = {**columns, **dict(zip(names, predictions.T, strict=True))}
    return rows[["sample", "site", "role", "split"]].assign(label=samples.labels.numpy(), **columns)


def architecture(run: Run, shape: tuple[int, ...], filled: bool = False) -> nn.Module:
    """Return the untrained network of a run, for stored images of `shape`.

    With `filled` it has the tensors with which the training began. Without, no file of pretrained weights is needed,
    since trained tensors will take their place.
    """
    model = run.model if filled else run.model.unfilled()
    network = initialise(model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return extended(run.addon, extended(run.algorithm, network, run.seed), run.seed)


class Network:
    """The network of a trained run in `folder`, for stored images of `shape`: (channels, height, width) or (features,).

    Raises UserError if files of the run are missing, or hold no safetensors.
    """

    def __init__(self, run: Run, folder: Path, shape: tuple[int, ...], device: torch.device) -> None:
        self.folder = folder
        self.clients = run.partition.internal
        files = RunFiles(folder)
        self.shared, about = read_tensors(files.model)
        self.local, metadata = read_tensors(files.clients)
        if "run" in about:
            identity.require(files.clients, run=about["run"])
        self.stayed: list[str] = []
        if files.manifest.exists():
            identity.require(files.manifest, spec=identity.of_run(files)["spec"])
            self.stayed = read_manifest(files.manifest).get(STAYED, [])
        self.blends = _blends(files.clients, metadata.get("blends", "{}"))
        model = architecture(run, shape).to(device)
        last = channels_last(run.training.channels_last, model, shape_after(run.transforms, shape), device)
        self.model = model.to(memory_format=torch.channels_last) if last else model
        self.run, self.shape = run, shape

    @functools.cached_property
    def initial(self) -> dict[str, Tensor]:
        """The batch-norm tensors that stay at clients, with their values before the training, by name."""
        tensors = architecture(self.run, self.shape, filled=True).state_dict()
        device = next(self.model.parameters()).device
        return {
            key: tensors[key].to(device) for key in kept_at_clients(self.model, policy(self.run.bn, self.run.norms))
        }

    def at(self, site: str, external_bn: str = "clients") -> nn.Module:
        """Return the network with the tensors that stayed at a site, and with global ones for all others.

        The global tensors of batch norm that stays with clients are the mean over clients; with `external_bn` "initial"
        they are those from before the training. It is the same module at each call, unless several networks predict the
        site together: then it is a `Blended`. Raises UserError if the tensors are not those of the run's model.
        """
        blend = self.blends.get(site if site in self.clients else "")
        if blend is None:
            replaced = self.initial if external_bn == "initial" and site not in self.clients else {}
            return self._with(site, replaced)
        networks = [copy.deepcopy(self._with(name)) for name in blend["networks"]]
        return Blended(networks, tuple(blend["networks"].values()), blend["of"])

    def _with(self, name: str, replaced: Mapping[str, Tensor] = MappingProxyType({})) -> nn.Module:
        """Return the network with tensors from `replaced`, else those saved for client `name`, else the global ones."""
        tensors = {key: self.local.get(f"{name}/{key}", value) for key, value in self.shared.items()} | dict(replaced)
        if self.stayed:
            problem = f"lacks {self.stayed[0]}, which stayed at the sites of its federation"
            raise UserError(self.folder, problem, "predict there, or train with bn: aggregated")
        # PyTorch would take whole numbers for floats.
        if _forms(tensors) != _forms(self.model.state_dict()):
            raise UserError(self.folder, "its tensors are not those of the model in its spec.json", "train it anew")
        self.model.load_state_dict(tensors)
        return self.model


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, bool]]:
    """Return the shape of each tensor, and whether it holds floating-point numbers, by name."""
    return {key: (tensor.shape, tensor.is_floating_point()) for key, tensor in tensors.items()}


def _blends(path: Path, text: str) -> dict[str, dict[str, Any]]:
    """Return the networks that predict a site together, with their weights, by site, from the JSON `text`.

    Raises UserError, which names the file `path`, for any other text.
    """
    try:
        blends = require_object(path, json.loads(text), {})
        for blend in blends.values():
            record = require_object(path, blend, {"of": "text", "networks": "a mapping"})
            require_object(path, record["networks"], dict.fromkeys(record["networks"], "a number"))
            if not record["networks"] or record["of"] not in get_args(Outputs):
                raise UserError(path, "names no networks, or averages something else than logits or probabilities")
    except (ValueError, RecursionError, UserError) as error:
        raise UserError(path, "does not say which networks predict a site together", "train it anew") from error
    return blends


def load_run(folder: Path) -> Run:
    """Return the run whose files lie in `folder`. Raises UserError if the folder holds no trained run."""
    spec = RunFiles(folder).spec
    if not spec.exists():
        raise UserError(folder, "no such run, or it is not trained", "see results/runs, or train it first")
    return validated(Run, read_json(spec), str(spec))


class SiteFeatures(NamedTuple):
    """Features (n, d), float64, of some test images of a site under an inference; `samples` are their names (n,)."""

    inference: str
    site: str
    samples: np.ndarray
    values: np.ndarray


def features(
    folder: Path, asked: Mapping[str, tuple[Inference, tuple[str, ...]]], paths: Paths, each: int, threads: int = 1
) -> Iterator[SiteFeatures]:
    """Yield the features, the inputs of the last layer, of at most `each` random test images of sites of a run.

    `asked` maps a key to an inference and the sites that it predicts. An inference sees all test images of a site, as
    for predictions; features of the drawn ones are kept. For an internal site without test images, validation images
    are taken. Nothing is yielded where several networks predict a site together. Raises UserError if the run does not
    exist, or its network has no linear layer.
    """
    run = load_run(folder)
    device = take_device(threads)
    images = RunImages(run, paths, device)
    network = Network(run, folder, images.prepared.shape, device)
    # Where internal sites have no test images, those of validation, which trained nothing, stand for them.
    unseen = images.by_site("val", run.partition.internal) | images.by_site("test", run.tested)
    for key, (inference, sites) in asked.items():
        knowledge = site_knowledge(inference, network, images)
        for site in sites:
            model = network.at(inference.network_at(site))
            if site not in unseen or isinstance(model, Blended):
                continue
            rows = unseen[site]
            drawn = stream("features", site).permutation(len(rows))[:each]
            exact = run.training.deterministic
            values = last_inputs(model, images.samples(rows), inference, drawn, knowledge(site), device, exact)
            yield SiteFeatures(key, site, rows["sample"].astype(str).to_numpy()[drawn], values)


def last_inputs(
    model: nn.Module,
    samples: Samples,
    inference: Inference,
    drawn: np.ndarray,
    place: Site | None = None,
    device: torch.device | str = "cpu",
    deterministic: bool = True,
) -> np.ndarray:
    """Return the inputs (n, d), float64, of the last linear layer for the samples at the positions `drawn` (n,).

    The inference predicts all samples in its own order and batches. If a network passes a batch several times, the
    first pass counts. `place` holds what the inference knows of the site. `deterministic` is that of
    `nn.device.arithmetic`.
    """
    order = inference.image_order(len(samples))
    indices = [order[start : start + inference.batch_size] for start in range(0, len(order), inference.batch_size)]

    def batches() -> Iterator[torch.Tensor]:
        return (to_device(samples.batch(index)[0], device) for index in indices)

    place = Site(batches, place.greys, place.answer) if place else Site(batches)
    wanted = set(drawn.tolist())
    kept: dict[int, np.ndarray] = {}
    # The inference works on a copy of the network, which keeps the hook.
    predictor = site_predictor(model, inference, place, deterministic=deterministic)
    with inputs_of(classifier(model)) as inputs, predictor as predict:
        for index, x in zip(indices, batches(), strict=True):
            inputs.clear()
            predict(x)
            values = inputs[0].detach().double().cpu().numpy().reshape(len(index), -1)
            kept |= {k: row for k, row in zip(index.tolist(), values, strict=True) if k in wanted}
    return np.stack([kept[k] for k in drawn.tolist()])
