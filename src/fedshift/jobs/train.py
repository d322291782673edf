"""One training job: from prepared data and a run's spec to its model files. A killed job can be resumed."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import digest
from ..core.console import say
from ..core.errors import Interrupted, UserError, did_you_mean
from ..core.limits import Limit
from ..data.prepared import Prepared, read_partition
from ..data.samples import MappedSamples
from ..data.site_transforms import at_site, site_statistics
from ..engine.federation import Federation
from ..engine.ledger import Beforehand, passed_on
from ..engine.ranks import Ranks, opened
from ..io import checksums
from ..io.disk import locked, sweep
from ..io.paths import Paths, RunFiles
from ..io.tables import write_table
from ..io.tensors import read_tensors, write_tensors
from ..io.text import write_json
from ..models import initialise
from ..transforms import shape_after
from . import provenance
from .accept import Ledger
from .devices import take_device
from .round_log import RoundLog, Row
from .store import Kept

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from ..study.run import Run
    from ..transforms import Transform

CHEAP: Limit[float] = 0.5
"""Longest time in seconds that a checkpoint may take if one is written after every round."""


def train(run: Run, paths: Paths, *, code: str = "", threads: int = 1, keep: bool = False) -> None:
    """Train one run, or resume it, and write its files [design: the files of rule train].

    With `keep`, the finished run is kept in the store, and a run that was trained before from the same data, with the
    same code, comes back from there without training (see `store`).
    If torchrun started several processes, they share the clients, and the first process reads and writes for all.
    Raises UserError for a client with less than one batch of training images, and for a loss that is not finite. Raises
    Interrupted on SIGTERM and SIGINT; the rounds since the last checkpoint are then lost.
    """
    device = take_device(threads, run.training.deterministic)
    with opened(device) as ranks:
        _train(run, paths, code, threads, device, ranks, keep)


def _train(run: Run, paths: Paths, code: str, threads: int, device: torch.device, ranks: Ranks, keep: bool) -> None:
    files, prepared = paths.run_files(run.id), Prepared(paths.data(run.data.id))
    partition = read_partition(paths.partition(run.partition_id))
    content = [prepared.card["checksums"], list(prepared.shape), partition.to_csv(index=False)]
    # a run whose code was accepted as unchanged is known by the code that trained it
    made_by = Ledger(paths).stamp("train", run.id, code)
    kept = Kept(paths.store / run.id / digest.of([run.id, made_by, *content], 32))
    if keep:
        with _exclusive(files, ranks):
            restored = ranks.first(lambda: kept.restore(files))
        if restored:
            ranks.first(lambda: shutil.rmtree(files.checkpoint, ignore_errors=True))
            return
    clients, validation, watched, beforehand = _sites(run, prepared, partition, device)
    federation = Federation(
        initialise(run.model, shape_after(run.transforms, prepared.shape), len(prepared.classes), run.seed),
        clients,
        validation=validation,
        watched=watched,
        algorithm=run.algorithm,
        bn=run.bn,
        addon=run.addon,
        training=run.training,
        seed=run.seed,
        device=device,
        ranks=ranks,
        beforehand=beforehand,
    )
    log = RoundLog(files.round_log, run.training.rounds)
    identity = digest.of([run.id, code, *content], 64)
    checkpoint = _Checkpoint(files, identity, log)
    started = datetime.now(UTC)
    with _exclusive(files, ranks), _stop_signals() as stopped:
        ranks.each(lambda: checkpoint.resume(federation))
        _require_one_disk(files.folder, federation)
        ranks.first(lambda: log.start(federation.server.round))
        try:
            federation.run(after_round=checkpoint.save, should_stop=stopped)
        except Interrupted as stop:
            stop.exit_code = 128 + (stopped.number or signal.SIGTERM)
            raise
        finally:
            log.close()
    federation.result()  # gathers the tensors of all processes, for the first one to write
    manifest = provenance.manifest(run, federation, code=code, threads=threads, device=device, started=started)
    ranks.first(lambda: _write(run, federation, files, manifest))
    if keep:
        ranks.first(lambda: kept.keep(files))
    ranks.first(checkpoint.remove)


@contextmanager
def _exclusive(files: RunFiles, ranks: Ranks) -> Iterator[None]:
    """Lock the run's folder inside the context: the first process holds the lock for all."""

    def take() -> None:
        stack.enter_context(locked(files.lock))
        sweep(files.folder)

    with ExitStack() as stack:
        ranks.first(take)
        yield


def _require_one_disk(folder: Path, federation: Federation) -> None:
    if len(set(federation.ranks.each(lambda: federation.server.round))) > 1:
        raise UserError(
            folder, "the processes of this run see different checkpoints there", "run them on a shared disk"
        )


def _sites(
    run: Run, prepared: Prepared, partition: pd.DataFrame, device: object
) -> tuple[dict[str, MappedSamples], dict[str, MappedSamples], dict[str, MappedSamples], Beforehand]:
    """Return training and validation samples of the clients, and test samples of the watched external sites.

    With `training.select_at`, the validation samples are all those of these sites, which are in no partition.
    The last value is the traffic of the statistics that clients send to each other for transforms.
    """
    labels = prepared.samples["label"].to_numpy()

    def images(rows: np.ndarray, transforms: Sequence[Transform]) -> MappedSamples:
        return MappedSamples(prepared.images, rows, labels[rows], transforms, device)  # type: ignore[arg-type]

    def rows_of(sites: Iterable[str], split: str) -> dict[str, np.ndarray]:
        parts = {site: partition[(partition["site"] == site) & (partition["split"] == split)] for site in sites}
        return {site: prepared.rows(part) for site, part in parts.items()}

    train = rows_of(run.partition.internal, "train")
    for site, rows in train.items():
        run.training.require_batch(site, len(rows))
    known = {site: site_statistics(run.transforms, partial(images, rows)) for site, rows in train.items()}

    def samples(sites: Iterable[str], split: str) -> dict[str, MappedSamples]:
        given = {site: rows for site, rows in rows_of(sites, split).items() if len(rows)}
        own = {
            site: known.get(site) or site_statistics(run.transforms, partial(images, r)) for site, r in given.items()
        }
        heard = {s: run.algorithm.collaboration.heard(s, known).values() if s in known else () for s in given}
        return {s: images(rows, at_site(run.transforms, own[s], [*heard[s]])) for s, rows in given.items()}

    def chosen_at(sites: Iterable[str]) -> dict[str, MappedSamples]:
        site_of = prepared.samples["site"].to_numpy()
        found = {site: np.flatnonzero(site_of == site) for site in sites}
        if lacking := [site for site, rows in found.items() if not len(rows)]:
            known_sites = did_you_mean(lacking[0], {*site_of})
            raise UserError("training.select_at", f"unknown site {lacking[0]!r}", known_sites)
        own = {site: site_statistics(run.transforms, partial(images, rows)) for site, rows in found.items()}
        return {site: images(rows, at_site(run.transforms, own[site], [])) for site, rows in found.items()}

    clients = samples(train, "train")
    validation = chosen_at(run.training.select_at) if run.training.select_at else samples(clients, "val")
    watched = (
        run.partition.external if run.training.watch_every and run.algorithm.collaboration.has_global_model else ()
    )
    together = run.algorithm.collaboration
    sizes = {site: sum(t.numel() for t in statistics if t is not None) for site, statistics in known.items()}
    sent = passed_on(together.clients(sizes, sum), together)
    return clients, validation, samples(watched, "test"), sent


def _write(run: Run, federation: Federation, files: RunFiles, manifest: dict[str, Any]) -> None:
    import pandas as pd

    write_json(files.spec, run.spec)
    write_table(files.rounds, pd.DataFrame(federation.history))
    shared, clients = federation.global_state(), [c.name for c in federation.clients if federation.own_names]
    write_tensors(files.model, shared, {})
    own: dict[str, Tensor] = {}
    blends: dict[str, Any] = {}
    for site in (*clients, ""):
        known = federation.networks(site)
        if site:
            own |= {f"{site}/{k}": known.states[0][k] for k in federation.own_names}
        if len(known.names) > 1:
            blends[site] = {"of": known.of, "networks": dict(zip(known.names, known.weights, strict=True))}
        for name, state in zip(known.names, known.states, strict=True):
            if name not in ("", *clients):  # beside the client's own; a tensor that is not here is that of the model
                own |= {f"{name}/{k}": value for k, value in state.items() if not value.equal(shared[k])}
    write_tensors(files.clients, own, {"blends": json.dumps(blends)} if blends else {})
    write_json(files.manifest, manifest)
    checksums.record(*files.trained)


class _Checkpoint:
    """The state after the last whole round, in one file that is replaced atomically; its history is in the log.

    A round is logged before its checkpoint is written: a kill between the two leaves one line too many in the log,
    never one too few. If writing takes long (large networks, many clients with their own tensors), some rounds get no
    checkpoint, so that checkpoints cost at most a tenth of the time.
    """

    def __init__(self, files: RunFiles, identity: str, log: RoundLog) -> None:
        self.folder, self.file, self.identity, self.log = files.checkpoint, files.state, identity, log
        self.due = 0.0

    def save(self, federation: Federation) -> None:
        """Log the round, and write its checkpoint if it is due."""
        ranks, progress = federation.ranks, federation.progress()
        history = progress.pop("history")
        if not ranks.first(lambda: self._logged(progress["round"], history)):
            return
        began, tensors = time.monotonic(), federation.tensors()
        meta = {"identity": self.identity, "progress": json.dumps(progress), "log": str(self.log.sum)}
        ranks.first(lambda: write_tensors(self.file, tensors, meta))
        if (seconds := time.monotonic() - began) > CHEAP:
            self.due = began + 11 * seconds

    def _logged(self, number: int, history: list[Row]) -> bool:
        """Log a round, and return whether its checkpoint is due."""
        last = itertools.takewhile(lambda row: row["round"] == number, reversed(history))
        self.log.append(number, reversed(list(last)))
        return time.monotonic() >= self.due

    def resume(self, federation: Federation) -> None:
        """Restore the federation from the checkpoint, if there is one of the same code and data."""
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
        """Remove the checkpoint's folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _stop_signals() -> Iterator[Stop]:
    """Let SIGTERM and SIGINT only set a flag inside the context; the engine checks it between batches."""
    stop = Stop()
    before = {s: signal.signal(s, stop.signalled) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """Flag that says whether a signal has asked the job to stop."""

    def __init__(self) -> None:
        self.number = 0

    def signalled(self, number: int, _: object) -> None:
        """Store the number of a signal; this is the signal handler."""
        self.number = number

    def __call__(self) -> bool:
        """Return whether a signal has arrived."""
        return self.number != 0
