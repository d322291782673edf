"""One training job: from prepared data and a run's spec to its model files, surviving a kill at any moment."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import digest
from ..core.console import say
from ..core.errors import Interrupted, UserError
from ..core.limits import Limit
from ..data.prepared import Prepared
from ..data.samples import MappedSamples
from ..engine.federation import Federation
from ..engine.ranks import Ranks, opened
from ..io.disk import locked, sweep
from ..io.paths import Paths
from ..io.tables import read_table, write_table
from ..io.tensors import read_tensors, write_tensors
from ..io.text import write_json
from ..models import initialise
from ..transforms import shape_after
from . import provenance
from .devices import take_device
from .round_log import RoundLog, Row

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from ..study.run import Run

CHEAP: Limit[float] = 0.5
"""Seconds that a checkpoint may take and still be written after every round."""


def train(run: Run, paths: Paths, *, code: str = "", threads: int = 1) -> None:
    """Train one run, or go on with it, and write its files [design: the files of rule train].

    Started by torchrun, its processes share the clients; the first one reads and writes for all. Raises UserError for a
    client with less than one batch of training images, or a loss that is not finite; Interrupted, which loses the
    rounds since the last checkpoint, on SIGTERM and SIGINT.
    """
    device = take_device(threads)
    with opened(device) as ranks:
        _train(run, paths, code, threads, device, ranks)


def _train(run: Run, paths: Paths, code: str, threads: int, device: torch.device, ranks: Ranks) -> None:
    folder, prepared = paths.run(run.id), Prepared(paths.data(run.data.id))
    partition = read_table(paths.partition(run.partition_id))
    clients, validation, watched = _sites(run, prepared, partition, device)
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
    )
    log = RoundLog(folder / "rounds.jsonl", run.training.rounds)
    identity = digest.of([run.id, code, prepared.card["checksums"], partition.to_csv(index=False)], 64)
    checkpoint = _Checkpoint(folder / "checkpoint", identity, log)
    started = datetime.now(UTC)
    with _exclusive(folder, ranks), _stop_signals() as stopped:
        ranks.each(lambda: checkpoint.resume(federation))
        _require_one_disk(folder, federation)
        ranks.first(lambda: log.start(federation.server.round))
        try:
            federation.run(after_round=checkpoint.save, should_stop=stopped)
        except Interrupted as stop:
            stop.exit_code = 128 + (stopped.number or signal.SIGTERM)
            raise
        finally:
            log.close()
    federation.result()  # brought together in all processes, for the first to write
    manifest = provenance.manifest(run, federation, code=code, threads=threads, device=device, started=started)
    ranks.first(lambda: _write(run, federation, folder, manifest))
    ranks.first(checkpoint.remove)


@contextmanager
def _exclusive(folder: Path, ranks: Ranks) -> Iterator[None]:
    """The run's folder to ourselves: the first process holds its lock for all."""

    def take() -> None:
        held.enter_context(locked(folder / "checkpoint" / "lock"))
        sweep(folder)

    with ExitStack() as held:
        ranks.first(take)
        yield


def _require_one_disk(folder: Path, federation: Federation) -> None:
    if len(set(federation.ranks.each(lambda: federation.server.round))) > 1:
        raise UserError(folder, "processes found different checkpoints there", "let them share one disk")


def _sites(
    run: Run, prepared: Prepared, partition: pd.DataFrame, device: object
) -> tuple[dict[str, MappedSamples], dict[str, MappedSamples], dict[str, MappedSamples]]:
    """Training and validation samples of the clients, and test samples of external sites that are to be watched."""
    labels = prepared.samples["label"].to_numpy()

    def samples(sites: Iterable[str], split: str) -> dict[str, MappedSamples]:
        parts = {site: partition[(partition["site"] == site) & (partition["split"] == split)] for site in sites}
        rows = {site: prepared.rows(part) for site, part in parts.items()}
        return {
            site: MappedSamples(prepared.images, of, labels[of], run.transforms, device)  # type: ignore[arg-type]
            for site, of in rows.items()
            if len(of) or split == "train"
        }

    clients = samples(run.partition.internal, "train")
    for site, given in clients.items():
        run.training.require_batch(site, len(given))
    seen = run.partition.external if run.training.watch_every and run.algorithm.collaboration.has_global_model else ()
    return clients, samples(clients, "val"), samples(seen, "test")


def _write(run: Run, federation: Federation, folder: Path, manifest: dict[str, Any]) -> None:
    import pandas as pd

    write_json(folder / "spec.json", run.spec)
    write_table(folder / "rounds.parquet", pd.DataFrame(federation.history))
    write_tensors(folder / "model.safetensors", federation.global_state(), {})
    own: dict[str, Tensor] = {}
    for site in (c.name for c in federation.clients if federation.trainer.own_names):
        state = federation.client_state(site)
        own |= {f"{site}/{k}": state[k] for k in federation.trainer.own_names}
    write_tensors(folder / "clients.safetensors", own, {})
    write_json(folder / "manifest.json", manifest)


class _Checkpoint:
    """The state after the last whole round, in one file that is replaced at once; its history is in the log.

    A round is logged before its checkpoint is written: a kill between the two leaves a line too many, never one too
    few. Where writing takes long (large networks, many clients' own), rounds are passed over, so that checkpoints cost
    a tenth of the time at most.
    """

    def __init__(self, folder: Path, identity: str, log: RoundLog) -> None:
        self.folder, self.file, self.identity, self.log = folder, folder / "state.safetensors", identity, log
        self.due = 0.0

    def save(self, federation: Federation) -> None:
        ranks, progress = federation.ranks, federation.progress()
        history = progress.pop("history")
        if not ranks.first(lambda: self._logged(progress["round"], history)):
            return
        began, tensors = time.monotonic(), federation.tensors()
        meta = {"identity": self.identity, "progress": json.dumps(progress), "log": str(self.log.sum)}
        ranks.first(lambda: write_tensors(self.file, tensors, meta))
        if (took := time.monotonic() - began) > CHEAP:
            self.due = began + 11 * took

    def _logged(self, number: int, history: list[Row]) -> bool:
        """Log a round; whether to keep its state, too."""
        last = itertools.takewhile(lambda row: row["round"] == number, reversed(history))
        self.log.append(number, reversed(list(last)))
        return time.monotonic() >= self.due

    def resume(self, federation: Federation) -> None:
        if not self.file.exists():
            return
        try:
            tensors, meta = read_tensors(self.file)
            if meta.get("identity") != self.identity:
                raise UserError(self.file, "is of other code or data")
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
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _stop_signals() -> Iterator[Stop]:
    """Inside, SIGTERM and SIGINT only set a flag: the engine asks for it between batches."""
    stop = Stop()
    before = {s: signal.signal(s, stop.signalled) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """Whether a signal has asked to stop."""

    def __init__(self) -> None:
        self.number = 0

    def signalled(self, number: int, _: object) -> None:
        self.number = number

    def __call__(self) -> bool:
        return self.number != 0
