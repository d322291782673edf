"""One training job: from prepared data and a run's spec to its model files, surviving a kill at any moment."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import digest, provenance
from .errors import UserError
from .federation import Federation
from .files import read_table, read_tensors, write_json, write_table, write_tensors, write_text
from .model import initialise
from .paths import Paths
from .prepare import Prepared
from .progress import Progress, duration, say
from .samples import MappedSamples

if TYPE_CHECKING:
    import pandas as pd

    from .study import Run


def train(run: Run, paths: Paths, *, code: str = "", threads: int = 1) -> None:
    """Train one run, or go on with it, and write its files [design: the files of rule train].

    Raises UserError for a client with less than one batch of training images, or a loss that is not finite; Interrupted
    (after a checkpoint) on SIGTERM and SIGINT.
    """
    import torch

    torch.set_num_threads(threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder, prepared = paths.run(run.id), Prepared(paths.data(run.data.id))
    partition = read_table(paths.partition(run.partition_id))
    clients, validation = _clients(run, prepared, partition, device)
    federation = Federation(
        initialise(run.model, prepared.shape, len(prepared.classes), run.seed),
        clients,
        validation=validation,
        algorithm=run.algorithm,
        bn=run.bn,
        training=run.training,
        seed=run.seed,
        device=device,
    )
    checkpoint = _Checkpoint(
        folder / "checkpoint",
        digest.of([run.spec, code, prepared.card["checksums"], _content(partition)], 64),
    )
    checkpoint.resume(federation)
    with (
        provenance.Recorder(run, code=code, threads=threads, device=device) as record,
        _stop_signals() as stopped,
    ):
        log = _RoundLog(folder / "rounds.jsonl", federation)

        def after_round(federation: Federation) -> None:
            checkpoint.save(federation)
            log.round(federation)

        with log:
            federation.run(after_round=after_round, should_stop=stopped)
    _write(run, federation, folder)
    write_json(folder / "manifest.json", record.manifest(federation))
    checkpoint.remove()


def _clients(
    run: Run, prepared: Prepared, partition: pd.DataFrame, device: object
) -> tuple[dict[str, MappedSamples], dict[str, MappedSamples]]:
    labels = prepared.samples["label"].to_numpy()

    def samples(site: str, split: str) -> MappedSamples:
        rows = prepared.rows(partition[(partition["site"] == site) & (partition["split"] == split)])
        return MappedSamples(prepared.images, rows, labels[rows], run.transforms, device)  # type: ignore[arg-type]

    clients = {site: samples(site, "train") for site in run.partition.internal}
    for site, given in clients.items():
        if len(given) < run.training.batch_size:
            raise UserError(
                f"client {site!r}",
                f"has {len(given)} training images, fewer than one batch of {run.training.batch_size}",
                "lower training.batch_size, or make the site external",
            )
    return clients, {site: v for site in clients if len(v := samples(site, "val"))}


def _content(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False)


def _write(run: Run, federation: Federation, folder: Path) -> None:
    import pandas as pd

    write_json(folder / "spec.json", run.spec)
    write_table(folder / "rounds.parquet", pd.DataFrame(federation.history))
    write_tensors(folder / "model.safetensors", federation.global_state(), {})
    own = federation.bench.own_names
    states = {c.name: federation.client_state(c.name) for c in federation.clients}
    write_tensors(folder / "clients.safetensors", {f"{site}/{k}": s[k] for site, s in states.items() for k in own}, {})


class _Checkpoint:
    """The state after the last whole round, in one file that is replaced at once."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.file, self.identity = folder, folder / "state.safetensors", identity

    def save(self, federation: Federation) -> None:
        meta = {"identity": self.identity, "progress": json.dumps(federation.progress())}
        write_tensors(self.file, federation.tensors(), meta)

    def resume(self, federation: Federation) -> None:
        if not self.file.exists():
            return
        try:
            tensors, meta = read_tensors(self.file)
        except UserError as error:
            say(f"starting anew: {error}")
            return
        if meta.get("identity") != self.identity:
            say(f"starting anew: {self.file} is of other code or data")
            return
        federation.restore(tensors, json.loads(meta["progress"]))
        say(f"resuming after round {federation.server.round}")

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class _RoundLog:
    """A line for each round on standard error, and the same as JSON lines in a file."""

    def __init__(self, path: Path, federation: Federation) -> None:
        self.path, self.rounds = path, federation.training.rounds
        self.first, self.start, self.last = federation.server.round, time.monotonic(), time.monotonic()
        self.lines: list[str] = []
        self.bar = Progress("rounds", self.rounds - self.first, "round") if sys.stderr.isatty() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        done = [self._entry(federation, r, 0.0) for r in range(1, self.first + 1)]
        write_text(path, "".join(json.dumps(e) + "\n" for e in done))

    def __enter__(self) -> None:
        if self.bar:
            self.bar.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.bar:
            self.bar.__exit__(*error)

    def _entry(self, federation: Federation, number: int, eta: float) -> dict[str, object]:
        rows = [r for r in federation.history if r["round"] == number]
        trained = [r for r in rows if r["split"] == "train"]
        scored = {r["site"]: round(r["accuracy"], 4) for r in rows if r["split"] == "val"}
        return {
            "round": number,
            "loss": round(sum(r["loss"] for r in trained) / len(trained), 6),
            "accuracy": scored or {r["site"]: round(r["accuracy"], 4) for r in trained},
            "split": "val" if scored else "train",
            "seconds": round(sum(r["seconds"] for r in rows), 3),
            "eta": round(eta, 1),
        }

    def round(self, federation: Federation) -> None:
        number = federation.server.round
        eta = (time.monotonic() - self.start) / (number - self.first) * (self.rounds - number)
        entry = self._entry(federation, number, eta)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        if self.bar:
            self.bar.update()
        accuracy = entry["accuracy"]
        assert isinstance(accuracy, dict)
        sites = ", ".join(f"{site} {value:.3f}" for site, value in accuracy.items())
        say(
            f"round {number}/{self.rounds}  loss {entry['loss']:.4f}  {entry['split']} accuracy {sites}  "
            f"{entry['seconds']:.1f} s  ETA {duration(eta)}"
        )


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
        self.flag = False

    def signalled(self, *_: object) -> None:
        self.flag = True

    def __call__(self) -> bool:
        return self.flag
