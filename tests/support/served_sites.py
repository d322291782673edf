"""A study of three sites, trained as `fedshift serve` does, with hospitals in this process that share bytes alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from in_memory import through_bytes
from three_sites import SITES, STUDY, write

from fedshift import study
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.messages import Fault, Message
from fedshift.hospitals import agreed
from fedshift.hospitals.hospital import Hospital
from fedshift.io.paths import Paths, RunFiles
from fedshift.jobs import run_files
from fedshift.jobs.train import specification
from fedshift.study.run import Run

Lost = Collection[tuple[str, int, str]]
"""Answers that are lost: kind of message, round and site."""


class Hospitals:
    """A transport to the hospitals of a study in root/SITE. `exchanged` has site, message and answer of each task."""

    names = SITES

    def __init__(self, root: Path, lost: Lost = ()) -> None:
        self.root, self.lost = root, lost
        self.exchanged: list[tuple[str, Message, Message | Fault]] = []
        self.sides = {name: self._opened(name) for name in SITES}

    def _opened(self, name: str) -> Hospital:
        with contextlib.chdir(self.root / name):
            side = Hospital(study.load(Path("study.yaml"), "mini"), name, Path("images.csv"), rows=True, offers=False)
            side.prepare()
        return side

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        for name, message in messages.items():
            with contextlib.chdir(self.root / name):
                answer = self.sides[name].answer(through_bytes(message))
            if (message.kind, message.about.get("round", 0), name) in self.lost:
                answer = Fault("the answer was lost")
            self.exchanged.append((name, message, answer))
            yield name, answer if isinstance(answer, Fault) else through_bytes(answer)


class OfRun:
    """The transport whose messages name a run."""

    names = SITES

    def __init__(self, hospitals: Hospitals, run: Run) -> None:
        self.hospitals, self.key = hospitals, agreed.name_of(run)

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        return self.hospitals.ask({k: m._replace(about=m.about | {"run": self.key}) for k, m in messages.items()})


def trained(run: Run, hospitals: Hospitals) -> Coordinator:
    """The coordinator of a run after its last round."""
    opened, transport = specification(run, agreed.shape_of(run)), OfRun(hospitals, run)
    return Coordinator.open(opened, transport, digest=agreed.digest_of(run)).run()


def serve(root: Path, lost: Lost = (), **changed: Any) -> RunFiles:
    """Train a study's one run between sites below `root`, and return its files, which lie in root/server.

    root/all.csv lists the images of all sites.
    """
    write(root, STUDY | {"model": "mlp"} | changed)
    tables = [pd.read_csv(root / site / "images.csv") for site in SITES]
    listed = pd.concat([t.assign(path=f"{site}/" + t["path"]) for site, t in zip(SITES, tables, strict=True)])
    listed.to_csv(root / "all.csv", index=False)
    with contextlib.chdir(root / "server"):
        plan = study.load(Path("study.yaml"), "mini")
        (run,) = plan.runs.values()
        files = Paths().run_files(run.id)
    coordinator = trained(run, Hospitals(root, lost))
    with contextlib.chdir(root / "server"):
        run_files.write_served(run, coordinator, files, datetime.now(UTC), 1, torch.device("cpu"))
    return RunFiles(root / "server" / files.folder)
