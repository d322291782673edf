"""A federation of three sites over Flower on this machine: server and sites are processes with their own folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from patience import PATIENCE, until
from three_sites import SITES, STUDY, write

from fedshift import study
from fedshift.flower import processes
from fedshift.io.arrays import read_tensors
from fedshift.io.paths import Paths
from fedshift.io.text import read_json
from fedshift.jobs.prepare import assign, obtain, prepare
from fedshift.jobs.train import train

FEDSHIFT = ("-m", "fedshift")
"""The program of a server or a site; a test may start another one, which misbehaves."""


class Town:
    """Server and sites as processes, each in its own folder, with its output in log.txt there."""

    def __init__(self, root: Path, rounds: int, secure: bool = True) -> None:
        self.root, self.port = root, processes.free_port()
        training = STUDY["training"] | {"rounds": rounds}
        write(root, STUDY | {"training": training, "runs": [{"algorithm": "scaffold", "bn": "aggregated"}]})
        self.secure = secure
        self.running: list[subprocess.Popen[bytes]] = []
        if secure:
            assert self.start("server", "serve", "study.yaml", "--init", "--port", str(self.port)).wait() == 0

    def serve(self, program: tuple[str, str] = FEDSHIFT) -> subprocess.Popen[bytes]:
        how = () if self.secure else ("--insecure", "--port", str(self.port))
        return self.start("server", "serve", "study.yaml", "--wait", "600", *how, program=program)

    def site(self, name: str, log: str = "log.txt", program: tuple[str, str] = FEDSHIFT) -> subprocess.Popen[bytes]:
        how = ["--keys", str(self.root / "server" / "federation" / "sites" / name)]
        if not self.secure:
            how = ["--server", f"127.0.0.1:{self.port}"]
        words = ("site", "study.yaml", "--site", name, "--data", "images.csv", "--yes", *how)
        return self.start(name, *words, log=log, program=program)

    def start(
        self, folder: str, *words: str, log: str = "log.txt", program: tuple[str, str] = FEDSHIFT
    ) -> subprocess.Popen[bytes]:
        with (self.root / folder / log).open("ab") as out:
            command = [sys.executable, *program, *words]
            process = subprocess.Popen(
                command, cwd=self.root / folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=out, stderr=out
            )
        self.running.append(process)
        return process

    def said(self, folder: str, log: str = "log.txt") -> str:
        return (self.root / folder / log).read_text(errors="replace")

    def wait_for(self, folder: str, words: str, log: str = "log.txt") -> None:
        try:
            until(lambda: words in self.said(folder, log))
        except TimeoutError:
            pytest.fail(f"{folder} did not say {words!r}:\n{self.said(folder, log)[-3000:]}")

    def end(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(PATIENCE)

    def table(self) -> Path:
        """A table of the images of all sites."""
        tables = []
        for site in SITES:
            table = pd.read_csv(self.root / site / "images.csv")
            tables.append(table.assign(path=[str(self.root / site / name) for name in table["path"]]))
        folder = self.root / "simulation"
        folder.mkdir()
        pd.concat(tables).to_csv(folder / "images.csv", index=False)
        return folder / "images.csv"

    def simulated(self) -> dict[str, torch.Tensor]:
        """The tensors of the model when the same study is trained in one process."""
        folder = self.table().parent
        shutil.copy(self.root / "server" / "study.yaml", folder)
        with contextlib.chdir(folder):
            plan = study.load(Path("study.yaml"), "mini")
            (run,) = plan.runs.values()
            obtain(run.data, Paths().raw(run.data.raw), None)
            prepare(run.data, Paths().raw(run.data.raw), Paths().data(run.data.id))
            assign(run, Paths().data_files(run.data.id).samples, Paths().partition(run.partition_id))
            train(run, Paths())
            return read_tensors(Paths().run_files(run.id).model)[0]

    def require_replay(self) -> None:
        """Replay the run of the server with the images of all sites; fails unless its tensors come out equal."""
        (files,) = Paths(self.root / "server").every_run()
        command = [sys.executable, *FEDSHIFT, "replay", str(files.folder), "--data", str(self.table())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "equal: difference 0" in done.stdout

    def trained(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The tensors and the manifest that the server has written."""
        (files,) = Paths(self.root / "server").every_run()
        return read_tensors(files.model)[0], read_json(files.manifest)
