"""Probes: a training runs for some seconds, to estimate the hours of trainings that have never been timed.

A probe builds the same federation as the training's job, on the prepared images if they exist. It writes no file.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import digest
from ..core.console import say
from ..core.errors import Interrupted, require_none
from ..data.prepared import Prepared
from ..data.samples import MappedSamples, at_site, site_statistics
from ..engine.federation import Federation
from ..io.paths import Paths
from ..jobs.record import name_of, take_device
from ..jobs.train import specification
from ..transforms import shape_after
from .plan import Need

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from ..study.run import Run

SECONDS = 10.0
"""Default duration of a probe in seconds."""
FEW = 64
"""The number of images that a probe repeats in place of a whole dataset, if no images are prepared."""
WARM_UP = 2
"""The number of first steps that are not timed, in which libraries choose kernels."""
STEPS = 10
"""Local steps of each client per round in a probe, if the numbers of images are unknown."""
FORWARD = 1 / 3
"""Time of evaluating a batch in units of a local step, which is one forward pass and about two for the backward."""


@dataclass(frozen=True)
class Images:
    """The samples of a probe: images (n, height, width, channels) uint8, or vectors (n, features) float32.

    `samples` has a row for each sample of the dataset, with its `row` in the array; several may share a row. It is
    None if the number of samples is unknown before they are prepared. `words` describes the images for messages, and
    `masks` (n, height, width), uint8, are classes of pixels.
    """

    array: np.ndarray
    samples: pd.DataFrame | None
    words: str
    masks: np.ndarray | None = None


@dataclass(frozen=True)
class Pace:
    """The measured seconds per local step, with the step's share of the rest of a round, and the images of the probe.

    On a CPU these are seconds of one core.
    """

    seconds: float
    images: Images


class Prober:
    """Estimates of the hours of trainings by probes, each of which trains a run for some `seconds`.

    Runs that differ only in partition, BN policy, rounds and learning rates share a probe. `threads` is the number of
    threads of a training, and `images` a function that returns the images of a run (default: `images_of`).
    """

    def __init__(
        self,
        paths: Paths,
        threads: int = 1,
        seconds: float = SECONDS,
        images: Callable[[Run, Paths], Images] | None = None,
    ) -> None:
        self.paths = paths
        self.threads = threads
        self.seconds = seconds
        self._find = images or images_of
        self._images: dict[str, Images] = {}
        self._paces: dict[str, Pace] = {}

    def train(self, run: Run, rounds: int) -> Need:
        """Estimate the hours of `rounds` rounds of a run's training, or None if the number of images is unknown."""
        device = take_device(self.threads)
        name = name_of(device)
        pace = self.pace(run, device)
        if pace.images.samples is None:
            source = f"{pace.seconds:.2g} s a step in a probe, but the number of images is known once they are prepared"
            return Need("train", 1, None, source, name)
        assigned = self._assigned(run)
        train = assigned.loc[assigned["split"] == "train", "site"].value_counts()
        number = steps(run, {site: int(train[site]) for site in run.partition.internal})
        seconds = rounds * number * pace.seconds
        return Need("train", 1, seconds / 3600, f"probe of {self.seconds:g} seconds on {pace.images.words}", name)

    def pace(self, run: Run, device: torch.device) -> Pace:
        """Return the time per local step of a run, which is measured once for all runs that share a probe."""
        # What the time of a step depends on.
        transforms = [transform.spec() for transform in run.transforms]
        settings = [run.methods, run.training.batch_size, run.training.optimiser]
        kind = digest.of([run.data.id, run.model.spec(), transforms, *settings])
        if kind not in self._paces:
            probed = f"{' + '.join(run.methods)}, {run.model.name}, batches of {run.training.batch_size}"
            say(f"probing {probed}: {self.seconds:g} seconds ...")
            self._paces[kind] = Pace(self._measure(run, device), self._opened(run))
        return self._paces[kind]

    def _opened(self, run: Run) -> Images:
        """Return the images for a probe of a run, which are opened once for each dataset."""
        if run.data.id not in self._images:
            self._images[run.data.id] = self._find(run, self.paths)
        return self._images[run.data.id]

    def _assigned(self, run: Run) -> pd.DataFrame:
        """Return the sample table of a run's partition: site, split, label and `row` of each sample."""
        samples = self._opened(run).samples
        assert samples is not None
        return run.partition.assign(samples).merge(samples[["sample", "row", "label"]], on="sample")

    def _measure(self, run: Run, device: torch.device) -> float:
        """Train a run for `self.seconds` seconds, and return the seconds per local step (see `Pace`)."""
        federation = self._federation(run, device)
        watch = _Stopwatch(self.seconds, time.process_time if device.type == "cpu" else time.monotonic)
        with contextlib.suppress(Interrupted):
            federation.run(after_round=lambda _: watch.end_round(), should_stop=watch)
        counts = {client.name: len(client.train) for client in federation.clients}
        validated = sum(len(client.val) for client in federation.clients if client.val is not None)
        return watch.seconds_a_step(_steps(run, counts), validated / run.training.batch_size)

    def _federation(self, run: Run, device: torch.device) -> Federation:
        """Return the federation of a run on the images of the probe, with settings that would end it early removed."""
        images = self._opened(run)
        classes = len(run.data.dataset.classes)

        def samples(rows: np.ndarray, labels: np.ndarray) -> MappedSamples:
            def opened(transforms: Any) -> MappedSamples:
                return MappedSamples(images.array, rows[:FEW], labels[:FEW], transforms, device, images.masks)

            own = site_statistics(run.transforms, opened)
            acting = at_site(run.transforms, own, [own])
            return MappedSamples(images.array, rows, labels, acting, device, images.masks)

        validation = dict[str, MappedSamples]()
        if images.samples is None:
            rows = np.arange(STEPS * run.training.batch_size)
            clients = {site: samples(rows % len(images.array), rows % classes) for site in run.partition.internal}
        else:
            assigned = self._assigned(run)
            parts = {
                key: samples(part["row"].to_numpy(), part["label"].to_numpy(copy=True))
                for key, part in assigned.groupby(["split", "site"])
            }
            clients = {site: parts["train", site] for site in run.partition.internal}
            validation = {site: parts["val", site] for site in clients if ("val", site) in parts}
        training = run.training.model_copy(update={"patience": None, "select_at": (), "watch_every": None})
        shape = (images.array.shape[-1], *images.array.shape[1:-1])
        agreed = replace(specification(run, shape), training=training)
        return Federation(agreed, clients, validation=validation, device=device)


def steps(run: Run, images: Mapping[str, int]) -> float:
    """Return the mean number of local steps per round of all clients; `images` maps a site to its training images."""
    return _steps(run, run.algorithm.collaboration.clients(images, sum))


def _steps(run: Run, sizes: Mapping[str, int]) -> float:
    """Return the mean number of local steps per round of all clients; `sizes` maps a client to its training images."""
    training = run.training.equalised(sizes.values())
    phases = run.algorithm.phases()
    total = sum(sum(phase.steps(size, training.at(client)) for phase in phases) for client, size in sizes.items())
    return total * training.clients_in_round(len(sizes)) / len(sizes)


class _Stopwatch:
    """A timer of a training: it is called before each local step, and returns True to stop after `limit` seconds.

    `clock` returns the time in seconds; on a CPU the process's time on all cores, which other programs do not lengthen.
    """

    def __init__(self, limit: float, clock: Callable[[], float]) -> None:
        self.limit = limit
        self.clock = clock
        self.end = float("inf")
        self.steps: list[float] = []
        self.rounds: list[float] = []

    def __call__(self) -> bool:
        """Record the start of a step, and return True if the time limit has passed."""
        self.steps.append(self.clock())
        if len(self.steps) == WARM_UP + 1:
            self.end = time.monotonic() + self.limit
            return False
        return time.monotonic() >= self.end

    def end_round(self) -> None:
        """Record the end of a round."""
        self.rounds.append(self.clock())

    def seconds_a_step(self, steps: float, validated: float) -> float:
        """Return the seconds per local step, including the step's share of a round's evaluation and aggregation.

        A round has `steps` local steps and evaluates `validated` batches. If two rounds or more have ended, the rounds
        after the first are timed, since the first also warms up. Otherwise single steps are timed, and evaluation is
        added at FORWARD steps a batch.
        """
        if len(self.rounds) > 1:
            return (self.rounds[-1] - self.rounds[0]) / (len(self.rounds) - 1) / steps
        times = self.steps[WARM_UP:]
        if len(times) < 2:  # the whole training is shorter
            times = self.steps
        return (times[-1] - times[0]) / max(len(times) - 1, 1) * (1 + FORWARD * validated / steps)


# ---- images


def images_of(run: Run, paths: Paths) -> Images:
    """Return images for a probe of a run: the prepared images of its dataset, else of its miniature, else random ones.

    Random images have the size of the dataset's. Raises UserErrors for faults in a user's own table of images.
    """
    if paths.data_files(run.data.id).card.exists():
        prepared = Prepared(paths.data(run.data.id))
        rows = np.arange(len(prepared.samples))
        return Images(prepared.images, prepared.samples.assign(row=rows), "the prepared images", prepared.masks)
    dataset = run.data.dataset
    if dataset.has_miniature:
        array, samples = _miniature(run)
        return Images(array, samples if run.data.synthetic else None, "images of the miniature")
    channels, *space = shape_after(run.data.prepare, run.data.shape or (3, 96, 96))
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (FEW, *space, channels), dtype=np.uint8)
    masks = rng.integers(0, len(dataset.classes), (FEW, *space), dtype=np.uint8) if run.data.task.has_masks else None
    if not dataset.inputs():
        return Images(array, None, "images of noise", masks)
    examined = dataset.examine(Path())
    require_none(examined.faults)
    samples = examined.samples
    samples = samples.assign(row=np.arange(len(samples)) % FEW, label=samples["label"].astype("int64"))
    return Images(array, samples, "images of noise in the size of yours", masks)


def _miniature(run: Run) -> tuple[np.ndarray, pd.DataFrame]:
    """Return up to FEW prepared images of the miniature of a run's dataset, and the miniature's sample table.

    The column `row` of the table assigns one of these images to each sample.
    """
    with tempfile.TemporaryDirectory() as folder:
        run.data.dataset.miniature(Path(folder))
        opened = run.data.dataset.open(Path(folder))
        number = min(FEW, len(opened.samples))
        images = [opened.image(i) for i in range(number)]
        for transform in run.data.prepare:
            images = [transform.prepare(image) for image in images]
        return np.stack(images), opened.samples.assign(row=np.arange(len(opened.samples)) % number)
