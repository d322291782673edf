"""Kills and faults at random places of train, prepare and predict, each followed by the same command again.

`python tests/faults/campaign.py [TRIALS] [SEED]`, or `make faults`. After every fault, every file among the results
must be whole; after the repeated command, with no hand between, all results must be those of an undisturbed run.

Faults: SIGKILL and SIGTERM at a random instant; SIGKILL at a random disk event (opening for writing, syncing, renaming,
removing), at a sync with the file cut short as a loss of power leaves it, and a full disk there. Before the command is
repeated, a checkpoint may lose its end or have a bit turned, and a lock file of a machine that is gone may lie about.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import monai.transforms
import numpy as np
import pandas as pd
import torch

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.io.text import read_json
from fedshift.jobs import predict, prepare, train

TRIALS, SEED = 120, 0
PATIENCE = 120.0
"""Seconds after which a command counts as hanging."""
STUDY = """
title: Faults
dataset: { name: own_images, table: images/samples.csv, size: 16 }
partition: { internal: [A, B], external: [C], split: { train: 0.6, val: 0.2, test: 0.2 } }
model: { name: mlp, hidden: 16 }
transforms: [scale_intensity, flip]
training: { rounds: 8, batch_size: 4, lr: 0.05 }
runs: [{ algorithm: scaffold, bn: local }]
inferences: [source]
"""
COMMANDS = ("train", "train", "prepare", "predict")
FAULTS = ("kill", "kill", "kill at disk", "cut and kill", "term", "no space")
SPOILS = ("nothing", "nothing", "truncate", "flip a bit", "flip a bit of the log", "stale lock")
IMPORTED = (monai, pd, torch, train, predict)
"""Modules that commands import. They are loaded before commands are forked, so that trials are short."""
DISK = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


@dataclass(frozen=True)
class Fault:
    """An event and its time: after so many seconds, or at the disk event of this number."""

    kind: str = "none"
    when: float = 0.0
    share: float = 0.5
    """How much is left of a file that is cut."""


@dataclass
class Figures:
    """The results of a campaign."""

    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    clean_ups: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    @property
    def found(self) -> list[str]:
        return [*self.wrong, *self.partial, *self.clean_ups, *self.tracebacks]

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.faults.items()))
        ends = ", ".join(f"{n} {end}" for end, n in sorted(self.ends.items()))
        counts = f"{len(self.wrong)} wrong results, {len(self.partial)} partial outputs taken as whole, "
        counts += f"{len(self.clean_ups)} manual clean-ups, {len(self.tracebacks)} tracebacks"
        return "\n".join([f"{sum(self.faults.values())} faults: {kinds}", f"ended: {ends}", counts, *self.found])


class Campaign:
    """A project folder in which commands run as forked children of this process, which has imported all they need."""

    def __init__(self, root: Path, seed: int = SEED) -> None:
        self.root, self.rng = root, np.random.default_rng(seed)
        images(root / "images")
        (root / "study.yaml").write_text(STUDY)
        with contextlib.chdir(root):
            (self.run,) = study.load(Path("study.yaml"), "paper").runs.values()
        paths = Paths()
        self.folders = {
            "prepare": paths.data(self.run.data.id),
            "train": paths.run(self.run.id),
            "predict": paths.run(self.run.id),
        }
        self.words = {
            "download": ["download", "study.yaml", self.run.data.raw],
            "prepare": ["prepare", "study.yaml", self.run.data.id],
            "partition": ["partition", "study.yaml", self.run.partition_id],
            "train": ["train", "study.yaml", self.run.id],
            "predict": ["predict", "study.yaml", self.run.id, "source"],
        }
        self.outputs = {
            "prepare": ("images.npy", "samples.parquet", "pixels.parquet", "card.json"),
            "train": ("spec.json", "model.safetensors", "clients.safetensors", "rounds.parquet", "manifest.json"),
            "predict": ("predictions-source.parquet",),
        }
        self.seconds: dict[str, float] = {}
        self.events: dict[str, int] = {}
        for command in self.words:
            began = time.monotonic()
            if (end := self.call(command)) != 0:
                raise RuntimeError(f"{command} ends with {end}: {(root / 'said').read_text()}")
            self.seconds[command] = time.monotonic() - began
            self.events[command] = int((root / "events").read_text())
        self.expected = {command: self.results(command) for command in self.outputs}

    # ---- commands

    def call(self, command: str, fault: Fault = Fault()) -> int:
        """The exit code of a command, negative for a signal; PATIENCE seconds at most."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = self._child(command, fault)
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        end = time.monotonic() + PATIENCE
        due = time.monotonic() + fault.when if fault.kind in ("kill", "term") else None
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if due is not None and now >= due:
                os.kill(child, signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM)
                due = None
            if now >= end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise TimeoutError(command)
            time.sleep(0.001)

    def _child(self, command: str, fault: Fault) -> int:
        os.chdir(self.root)
        said = Path("said").open("w", buffering=1)  # noqa: SIM115 - until the process ends
        sys.stdout = sys.stderr = said
        prepare.BLOCK = 8
        with at_disk(fault, self.root / "results", self.root / "events"):
            return cli.main([*self.words[command], "--scale", "paper"])

    # ---- what lies there

    def results(self, command: str) -> dict[str, Any]:
        """The outputs of a command that are there, as what must agree: bytes, or content without times."""
        folder = self.root / self.folders[command]
        return {name: content(folder / name) for name in self.outputs[command] if (folder / name).exists()}

    def clear(self, command: str) -> None:
        """Remove what a command has made, the run in the store too, so that it does it all again."""
        folder = self.root / self.folders[command]
        shutil.rmtree(self.root / Paths().store, ignore_errors=True)
        if command == "predict":
            (folder / self.outputs[command][0]).unlink(missing_ok=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- trials

    def trial(self, figures: Figures) -> None:
        """One fault, and the command again."""
        command = str(self.rng.choice(COMMANDS))
        kind = str(self.rng.choice(FAULTS))
        timed = kind in ("kill", "term")
        when = self.rng.uniform(0, self.seconds[command]) if timed else self.rng.integers(1, self.events[command] + 1)
        fault = Fault(kind, float(when), float(self.rng.uniform()))
        spoil = str(self.rng.choice(SPOILS)) if command == "train" else "nothing"
        name = f"{command}, {kind} at {when:.3g}, then {spoil}"
        self.clear(command)
        figures.faults[f"{kind} ({command})"] += 1
        figures.ends[ending(self.call(command, fault))] += 1
        if "Traceback" in (said := (self.root / "said").read_text()):
            figures.tracebacks.append(f"{name}: {said}")
        for output, found in self.results(command).items():
            if not same(found, self.expected[command][output]):
                figures.partial.append(f"{name}: {output}")
        if SPOIL[spoil](self.root / self.folders[command], self.rng):
            figures.faults[spoil] += 1
        if (end := self.call(command)) != 0:
            figures.clean_ups.append(f"{name}: {ending(end)}: {(self.root / 'said').read_text()[-300:]}")
            self.clear(command)
            self.call(command)
        elif not same(self.results(command), self.expected[command]):
            figures.wrong.append(name)

    def trials(self, count: int) -> Figures:
        figures = Figures()
        for _ in range(count):
            self.trial(figures)
        return figures


# ---- faults


@contextlib.contextmanager
def at_disk(fault: Fault, folder: Path, count: Path) -> Iterator[None]:
    """Inside, the fault happens at its disk event in `folder`; `count` gets how many there were."""
    done, fsync, prefix = 0, os.fsync, str(folder.resolve())
    durable: dict[str, int] = {}

    def event(descriptor: int | None = None) -> None:
        nonlocal done
        done += 1
        if done != int(fault.when):
            return
        if fault.kind in ("cut and kill", "no space") and descriptor is not None:
            with contextlib.suppress(OSError):  # a folder, or open for reading
                target = os.path.realpath(f"/proc/self/fd/{descriptor}")
                kept, size = durable.get(target, 0), os.fstat(descriptor).st_size
                os.truncate(target, kept + int(fault.share * (size - kept)))
        if fault.kind in ("kill at disk", "cut and kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "no space":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def hook(name: str, given: tuple[Any, ...]) -> None:
        if name not in DISK or not isinstance(given[0], str | os.PathLike):
            return
        path = os.path.abspath(os.fspath(given[0]))  # noqa: PTH100 - resolve() would raise events of its own
        writes = name != "open" or (len(given) > 2 and bool(given[2] & (os.O_WRONLY | os.O_RDWR)))
        if writes and path.startswith(prefix):
            event()

    def synced(descriptor: int) -> None:
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        if path.startswith(prefix):
            event(descriptor)
        fsync(descriptor)
        durable[path] = os.fstat(descriptor).st_size

    os.fsync = synced
    sys.addaudithook(hook)
    try:
        yield
    finally:
        count.write_text(str(done))


def truncate(folder: Path, rng: np.random.Generator) -> bool:
    return _change(folder / "checkpoint" / "state.safetensors", lambda content: content[: rng.integers(len(content))])


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content)))
    return content[:place] + bytes([content[place] ^ 1 << rng.integers(8)]) + content[place + 1 :]


def flip(folder: Path, rng: np.random.Generator) -> bool:
    return _change(folder / "checkpoint" / "state.safetensors", lambda content: _flip(content, rng))


def flip_log(folder: Path, rng: np.random.Generator) -> bool:
    return _change(folder / "rounds.jsonl", lambda content: _flip(content, rng))


def _change(path: Path, change: Callable[[bytes], bytes]) -> bool:
    """Change a file if possible, and return whether there was something to change."""
    if not path.exists() or not path.stat().st_size:
        return False
    path.write_bytes(change(path.read_bytes()))
    return True


def stale_lock(folder: Path, rng: np.random.Generator) -> bool:
    """A lock file, and a half-written file, of a machine that is gone."""
    (folder / "checkpoint").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "lock").write_text("gone 4711")
    (folder / f".model.safetensors.tmp-gone-4711-{rng.integers(9999)}.safetensors").write_bytes(b"half")
    return True


SPOIL: dict[str, Callable[[Path, np.random.Generator], bool]] = {
    "nothing": lambda folder, rng: False,
    "truncate": truncate,
    "flip a bit": flip,
    "flip a bit of the log": flip_log,
    "stale lock": stale_lock,
}


# ---- comparison


def content(path: Path) -> Any:
    """Return what must agree: bytes of an output; rounds without seconds; a manifest without times and memory."""
    try:
        if path.name == "manifest.json":
            read = read_json(path)
            return {k: v for k, v in read.items() if k not in ("started", "seconds", "peak_memory_mb", "git")}
        if path.name == "rounds.parquet":
            return read_table(path).drop(columns="seconds").to_csv(index=False)
    except ValueError as error:
        return error
    return path.read_bytes()


def same(one: Any, other: Any) -> bool:
    return bool(one == other) and not isinstance(one, Exception)


def ending(code: int) -> str:
    return {0: "as if nothing had been", 2: "with one line and code 2", 143: "with a checkpoint and code 143"}.get(
        code, f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    )


def images(folder: Path) -> None:
    """Grey noise at three sites, lighter for one class, a different level at each site."""
    from PIL import Image

    folder.mkdir()
    rng, rows = np.random.default_rng(0), ["path,label,site"]
    for k, site in enumerate("ABC"):
        for n in range(30):
            pixels = rng.integers(0, 120, (16, 16, 3)) + 30 * k + 60 * (n % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{site}{n}.png")
            rows.append(f"{site}{n}.png,{n % 2},{site}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")


def main(trials: int = TRIALS, seed: int = SEED) -> int:
    with tempfile.TemporaryDirectory() as folder:
        figures = Campaign(Path(folder), seed).trials(trials)
    print(figures)
    return 1 if figures.found else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
