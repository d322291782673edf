"""A search's choice that is killed, loses power or finds the disk full: the next call makes what a first one makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import fake_study
import harm
import pytest
from rotation import of_day
from searched_study import trained

from fedshift.io import checksums
from fedshift.io.paths import Paths
from fedshift.jobs import accept
from fedshift.jobs.choose import choose
from fedshift.study.plan import Plan

KILL = harm.Fault("signal")
CUTS = [harm.Fault("no space"), harm.Fault("cut and kill")]


@pytest.fixture(params=[False, True], ids=["copies", "links"])
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Plan, Paths]:
    """A search whose two candidates are trained; the chosen one's files are copied, or linked as large files are."""
    if request.param:
        monkeypatch.setattr(accept, "COPIED", 0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # syncs count, but nobody waits for the disk
    training = {"rounds": 4, "lr": [0.3, 0.2]}
    plan, paths = fake_study.build(
        tmp_path, training=training, runs=[{"algorithm": "fedavg"}], seeds=[0], figures=[], control=False
    )
    trained(plan, paths, {0: [0.0, 1.0]})
    return plan, paths


def forked(work: Callable[[], object], fault: harm.Fault, folder: Path, count: Path) -> int:
    """Do some work in a process of its own, with a fault, and return how that ended."""
    if not (pid := os.fork()):
        code = 1
        try:
            with harm.at_disk(fault, folder, count):
                work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_every_disk_event_of_a_choice(searched: tuple[Plan, Paths], tmp_path: Path) -> None:
    plan, paths = searched
    (run,) = plan.searches.values()
    folder, written, count = paths.run(run.id), paths.run_files(run.id).trained, tmp_path / "count"
    shutil.rmtree(folder)
    assert forked(lambda: choose(run, paths), harm.NONE, tmp_path, count) == 0
    right = {file: file.read_bytes() for file in written}
    candidates = {file: file.read_bytes() for key in run.candidates for file in paths.run(key).iterdir()}
    events = int(count.read_text())
    assert events > len(written)
    linked = any(file.samefile(paths.run_files(key).folder / file.name) for file in written for key in run.candidates)
    # what a link shows is on the disk since its training: only copies can be cut
    kinds = [KILL] if linked else [KILL, *CUTS]
    for fault in of_day([harm.Fault(kind.kind, number) for kind in kinds for number in range(1, events + 1)], 6):
        shutil.rmtree(folder)
        assert forked(lambda: choose(run, paths), fault, tmp_path, count), f"{fault} does nothing"
        choose(run, paths)
        assert {file: file.read_bytes() for file in written} == right, fault
        assert {file: file.read_bytes() for file in candidates} == candidates, fault
        for file in written:
            assert checksums.recorded(file), (fault, file)
            assert not checksums.damage(file, whole=True), (fault, file)
