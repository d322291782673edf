"""One training job: from prepared data and a run's spec to its model files. A killed job can be resumed."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..algorithms import Traffic
from ..core import digest
from ..core.console import say
from ..core.errors import Interrupted, UserError
from ..data.samples import MappedSamples
from ..engine.federation import Federation
from ..engine.ranks import Ranks, opened
from ..engine.specification import Specification
from ..io.arrays import read_tensors, write_tensors
from ..io.disk import locked, sweep
from ..io.paths import Paths, RunFiles
from ..models import initialise
from ..transforms import shape_after
from . import record
from .accept import Kept, Ledger
from .record import RoundLog, Row, take_device
from .run_files import write_run
from .run_images import RunImages

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from ..study.run import Run

    Sites = dict[str, MappedSamples]


def specification(run: Run, shape: tuple[int, ...]) -> Specification:
    """Return the specification on which sites and server agree: network, algorithm, batch-norm policy, settings.

    `shape` is that of stored samples: (channels, height, width) or (features,).
    """
    model = initialise(run.model, shape_after(run.transforms, shape), len(run.data.dataset.classes), run.seed)
    return Specification.open(
        model,
        algorithm=run.algorithm,
        bn=run.bn,
        addon=run.addon,
        training=run.training,
        seed=run.seed,
        task=run.data.task,
        norms=run.norms,
    )


CHEAP = 0.5
"""Longest time in seconds that a checkpoint may take if one is written after every round."""


def train(run: Run, paths: Paths, *, code: str = "", threads: int = 1, keep: bool = False) -> None:
    """Train one run, or resume it, and write its files: those of `RunFiles.trained`.

    `code` is the digest of the training code. With `keep`, a second copy of the finished run is put into the store, and
    a run that was trained before from the same data, with the same code, comes back from there without training (see
    `accept`). If torchrun started several processes, they share the clients, and the first process reads and writes for
    all.

    Raises UserError for a client with less than one batch of training images, and for a loss that is not finite. Raises
    Interrupted on SIGTERM and SIGINT; the rounds since the last checkpoint are then lost.
    """
    device = take_device(threads)
    with opened(device) as ranks:
        _train(run, paths, code, threads, device, ranks, keep)


def _train(run: Run, paths: Paths, code: str, threads: int, device: torch.device, ranks: Ranks, keep: bool) -> None:
    files = paths.run_files(run.id)
    images = RunImages(run, paths, device)
    prepared = images.prepared
    content = [prepared.card["checksums"], list(prepared.shape), images.partition.to_csv(index=False)]
    # A run whose code was accepted as unchanged is kept under the code that trained it.
    made_by = Ledger(paths).stamp("train", run.id, code)
    kept = Kept(paths.store / run.id / digest.of([run.id, made_by, *content], 32))
    if keep:
        with _exclusive(files, ranks):
            restored = ranks.first(lambda: kept.restore(files))
        if restored:
            ranks.first(lambda: shutil.rmtree(files.checkpoint, ignore_errors=True))
            return
    clients, validation, watched, beforehand = _sites(run, images)
    federation = Federation(
        specification(run, prepared.shape),
        clients,
        validation=validation,
        watched=watched,
        device=device,
        ranks=ranks,
        beforehand=beforehand,
    )
    log = RoundLog(files.round_log, run.training.rounds)
    identity = digest.of([run.id, code, *content], 64)
    checkpoint = _Checkpoint(files, identity, log)
    started = datetime.now(UTC)
    with _exclusive(files, ranks), _stop_signals() as arrived:
        ranks.each(lambda: checkpoint.resume(federation))
        if len(set(ranks.each(lambda: federation.server.round))) > 1:
            problem = "the processes of this run see different checkpoints there"
            raise UserError(files.folder, problem, "run them on a shared disk")
        ranks.first(lambda: log.start(federation.server.round))
        try:
            federation.run(after_round=checkpoint.save, should_stop=lambda: bool(arrived))
        except Interrupted as stop:
            stop.exit_code = 128 + (arrived or [signal.SIGTERM])[-1]
            raise
        finally:
            log.close()
    # Gathers the tensors of all processes, for the first one to write.
    federation.result()
    facts: dict[str, Any] = {"code": code, "threads": threads, "device": device, "started": started}
    manifest = record.manifest(run, federation, processes=ranks.count, **facts)
    ranks.first(lambda: _write(run, federation, files, manifest))
    if keep:
        ranks.first(lambda: kept.keep(files))
    ranks.first(checkpoint.remove)


@contextmanager
def _exclusive(files: RunFiles, ranks: Ranks) -> Iterator[None]:
    """Lock the run's folder for the block: the first of the processes that share a training holds the lock for all."""

    def take() -> None:
        stack.enter_context(locked(files.lock))
        sweep(files.folder)

    with ExitStack() as stack:
        ranks.first(take)
        yield


def _sites(run: Run, images: RunImages) -> tuple[Sites, Sites, Sites, Traffic]:
    """Return samples for training, validation and learning curves, by site, and the traffic before the first round.

    With `training.select_at`, the validation samples are all samples of the sites that it names, which are in no
    partition. Learning curves are those of external sites. The traffic is that of the statistics that clients send to
    each other for transforms.
    """
    together = run.algorithm.collaboration
    parts = images.by_site("train", run.partition.internal)
    for site in run.partition.internal:
        run.training.require_batch(site, len(parts.get(site, ())))
    statistics = {site: images.statistics(site) for site in parts}
    heard = {site: [*together.heard(site, statistics).values()] for site in parts}

    def samples(parts: dict[str, pd.DataFrame]) -> Sites:
        return {site: images.samples(rows, heard.get(site, ())) for site, rows in parts.items()}

    if run.training.select_at:
        validation = {site: images.outside(site) for site in run.training.select_at}
    else:
        validation = samples(images.by_site("val", parts))
    watched: Sites = {}
    if run.training.watch_every and together.has_global_model:
        watched = samples(images.by_site("test", run.partition.external))
    sizes = {site: sum(t.numel() for t in sent if t is not None) for site, sent in statistics.items()}
    return samples(parts), validation, watched, Traffic.passed_on(together.clients(sizes, sum), together)


def _write(run: Run, federation: Federation, files: RunFiles, manifest: dict[str, Any]) -> None:
    shared = federation.global_state()
    clients = [client.name for client in federation.clients if federation.own_names]
    stayed: dict[str, Tensor] = {}
    blends: dict[str, Any] = {}
    for site in (*clients, ""):
        networks = federation.networks(site)
        if site:
            stayed |= {f"{site}/{k}": networks.states[0][k] for k in federation.own_names}
        if len(networks.names) > 1:
            weights = dict(zip(networks.names, networks.weights, strict=True))
            blends[site] = {"of": networks.of, "networks": weights}
        for name, state in zip(networks.names, networks.states, strict=True):
            # Networks that predict together with a client's own: a tensor that is left out is that of the model.
            if name not in ("", *clients):
                stayed |= {f"{name}/{k}": value for k, value in state.items() if not value.equal(shared[k])}
    write_run(files, run, federation.history, shared, manifest, stayed, blends)


class _Checkpoint:
    """The state after the last whole round, in one file that is replaced atomically; its history is in the log.

    `identity` is a digest of code and data, without which a checkpoint is not used. A round is logged before its
    checkpoint is written: a kill between the two leaves one line too many in the log, never one too few. If writing
    takes long (large networks, many clients with their own tensors), some rounds get no checkpoint, so that checkpoints
    cost at most a tenth of the time.
    """

    def __init__(self, files: RunFiles, identity: str, log: RoundLog) -> None:
        self.folder = files.checkpoint
        self.file = files.state
        self.identity = identity
        self.log = log
        self.due = 0.0

    def save(self, federation: Federation) -> None:
        """Log the federation's last round, and write a checkpoint if it is due."""
        ranks = federation.ranks
        progress = federation.progress()
        history = progress.pop("history")
        if not ranks.first(lambda: self._logged(progress["round"], history)):
            return
        began = time.monotonic()
        tensors = federation.tensors()
        meta = {"identity": self.identity, "progress": json.dumps(progress), "log": str(self.log.sum)}
        ranks.first(lambda: write_tensors(self.file, tensors, meta))
        seconds = time.monotonic() - began
        if seconds > CHEAP:
            # Ten times as long without a checkpoint: it takes at most a tenth of the training.
            self.due = began + 11 * seconds

    def _logged(self, number: int, history: list[Row]) -> bool:
        """Log round `number`, given the history of all rounds, and return whether its checkpoint is due."""
        last = itertools.takewhile(lambda row: row["round"] == number, reversed(history))
        self.log.append(number, reversed(list(last)))
        return time.monotonic() >= self.due

    def resume(self, federation: Federation) -> None:
        """Restore the federation from the checkpoint. Without one of the same code and data, leave it untrained."""
        if not self.file.exists():
            return
        try:
            tensors, meta = read_tensors(self.file)
            if meta.get("identity") != self.identity:
                raise UserError(self.file, "was made by other code or from other data")
            progress = json.loads(meta["progress"])
            history = self.log.read(progress["round"], int(meta["log"]))
        except UserError as error:
            self._say(federation, f"starting anew: {error}")
            return
        federation.restore(tensors, {**progress, "history": history})
        self._say(federation, f"resuming after round {federation.server.round}")

    def _say(self, federation: Federation, line: str) -> None:
        if federation.ranks.rank == 0:
            say(line)

    def remove(self) -> None:
        """Delete the folder of the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Yield a list to which SIGTERM and SIGINT are appended during the block, in place of stopping the process.

    The engine looks at the list between batches.
    """
    arrived = list[int]()
    before = {s: signal.signal(s, lambda number, _: arrived.append(number)) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
