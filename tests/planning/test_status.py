"""The state of runs: what the files say about each, and that looking disturbs nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_study
import pytest

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.engine.federation import Federation
from fedshift.io import disk
from fedshift.io.arrays import write_tensors
from fedshift.io.paths import TRAINED, Paths
from fedshift.io.text import write_json, write_text
from fedshift.jobs import record
from fedshift.jobs import train as job
from fedshift.jobs.record import RoundLog
from fedshift.planning import status
from fedshift.planning.status import State, state_of
from fedshift.study.run import Run

NOW = 1_700_000_000.0
TODAY = datetime.fromtimestamp(NOW).isoformat(" ", "minutes")
STUDY = """
title: Tiny
dataset: {name: own_images, table: own.csv, size: 8}
partition: {internal: [A], external: [B]}
model: mlp
training: {rounds: 10, batch_size: 2}
runs: [{algorithm: fedavg}]
seeds: [0, 1]
inferences: [source]
"""
PATHS = Paths()


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with one study, entered, in which it is always NOW."""
    (tmp_path / "config" / "studies").mkdir(parents=True)
    (tmp_path / "config" / "studies" / "tiny.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(status, "time", SimpleNamespace(time=lambda: NOW))


def runs() -> list[Run]:
    return list(study.load(Path("config/studies/tiny.yaml"), "mini").runs.values())


@pytest.fixture
def run() -> Run:
    """The first run of the study."""
    return runs()[0]


def aged(seconds: float, *paths: Path) -> None:
    """Last changed so many seconds ago."""
    for path in paths:
        os.utime(path, (NOW - seconds, NOW - seconds))


def told(run: Run, text: str, rule: str = "train", name: str = "") -> Path:
    """Return what the job's log says."""
    log = PATHS.log(rule, name or run.id)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return log


def began(run: Run, rounds: int, monkeypatch: pytest.MonkeyPatch, each: float = 2.0, age: float = 0.0) -> Path:
    """So many rounds in the run's log, of so many seconds each, and a lock file of long ago that no one holds."""
    folder = PATHS.run(run.id)
    clock = SimpleNamespace(monotonic=lambda: each * clock.round, round=0)
    monkeypatch.setattr(record, "time", clock)
    log = RoundLog(folder / "rounds.jsonl", run.training.rounds)
    log.start(0)
    row = {"site": "A", "split": "train", "accuracy": 0.5, "seconds": 1.5}
    for clock.round in range(1, rounds + 1):
        log.append(clock.round, [{"round": clock.round, "loss": 1 / clock.round, **row}])
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "lock").touch()
    aged(age, folder / "rounds.jsonl")
    aged(10_000, folder / "checkpoint" / "lock")
    return folder


def kept(run: Run, number: int) -> None:
    """A checkpoint after a round."""
    path = PATHS.run(run.id) / "checkpoint" / "state.safetensors"
    write_tensors(path, {}, {"identity": "x", "progress": json.dumps({"round": number})})
    aged(10_000, path)


@contextmanager
def at_work(run: Run) -> Iterator[None]:
    """Someone holds the run's lock, for a long time."""
    lock = PATHS.run(run.id) / "checkpoint" / "lock"
    with disk.locked(lock):
        aged(10_000, lock)
        yield


# ---- one run


def test_what_a_run_waits_for(run: Run) -> None:
    assert (state_of(run, PATHS).state, state_of(run, PATHS).message) == ("waiting", "its data")
    told(run, "", "prepare", run.data.id)
    told(run, "fetching\n", "download", run.data.raw)
    assert state_of(run, PATHS).message == "its data (fetching)"
    told(run, "prepare: 1024/4096 images (25%)\n", "prepare", run.data.id)
    assert state_of(run, PATHS).message == "its data (prepare: 1024/4096 images (25%))"
    write_json(PATHS.data(run.data.id) / "card.json", {})
    assert state_of(run, PATHS).message == "its partition"
    write_text(PATHS.partition(run.partition_id), "")
    assert state_of(run, PATHS) == State(
        run.id, "B", 0, "waiting", 10, message="its turn", log=f"results/logs/train/{run.id}.log"
    )


def test_a_run_at_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four rounds of 2 s are done, the last of them half a second ago: six are left, less that half second."""
    began(run, 4, monkeypatch, age=0.5)
    kept(run, 3)
    with at_work(run):
        state = state_of(run, PATHS)
        with (
            pytest.raises(UserError, match="another process is at work here"),
            disk.locked(PATHS.run(run.id) / "checkpoint" / "lock"),
        ):
            pass  # it is held still
    assert (state.state, state.round, state.loss, state.checkpoint) == ("running", 4, 0.25, 3)
    assert (state.seconds_a_round, state.eta, state.silent) == (2.0, 11.5, 0.5)
    assert status._words(state, "") == "round 4/10, loss 0.2500, 2.0 s a round, ETA 0:12"


def test_a_run_at_work_that_is_silent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is silent, it is at most one round nearer to its end."""
    began(run, 4, monkeypatch, age=300)
    with at_work(run):
        state = state_of(run, PATHS)
    assert (state.state, state.eta, state.silent) == ("running", 10.0, 300)
    assert status._words(state, "").endswith("ETA 0:10, no output for 5:00")


LONG = json.dumps({"round": 5, "rows": "x" * 3 * status.PIECE}) + "\n"


@pytest.mark.parametrize(
    ("written", "number"),
    [('{"round": 5, "loss": 0.1', 4), ('{"round": 5, "loss": 0.1\n{"round": 5}', 4), (LONG, 5)],
    ids=["being written", "torn, then another", "longer than what is read at first"],
)
def test_the_last_line_counts_once_it_is_whole(
    written: str, number: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = began(run, 4, monkeypatch) / "rounds.jsonl"
    log.write_text(log.read_text() + written)
    assert status.last_round(log)["round"] == number


@pytest.mark.parametrize("content", ["", "\n", "[]\n", '{"a": 1}\n', "x" * 200_000])
def test_no_round_yet(content: str, tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text(content)
    assert status.last_round(tmp_path / "rounds.jsonl") == {}


def test_a_job_in_its_first_round(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    began(run, 0, monkeypatch)
    with at_work(run):
        assert status._words(state_of(run, PATHS), "") == "in its first round"


def test_a_job_that_has_said_nothing_yet_is_starting_for_a_while(run: Run) -> None:
    log = told(run, "")
    aged(50, log)
    assert state_of(run, PATHS).state == "running"
    aged(70, log)
    assert state_of(run, PATHS).state == "waiting"


def test_a_job_that_writes_its_results(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last round the lock is given back, and the files are written."""
    began(run, 10, monkeypatch, age=5)
    assert state_of(run, PATHS).state == "running"
    aged(100, PATHS.run(run.id) / "rounds.jsonl")
    assert state_of(run, PATHS).state == "stopped"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("round 4/10  loss 0.2\n", ""),
        ("resuming after round 2\n", ""),
        ("stopped; start again to go on from the last round\n", ""),
        ("x.py:3: UserWarning: slow\n  warnings.warn(\n", ""),
        ("round 4/10\nslurmstepd: error: *** JOB 5 ON n1 CANCELLED DUE TO TIME LIMIT ***\n", "slurmstepd: error"),
        ("round 4/10\nKilled\n", "Killed"),
    ],
)
def test_a_run_that_someone_stopped(run: Run, log: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began(run, 4, monkeypatch, age=90)
    kept(run, 3)
    aged(90, told(run, log))
    state = state_of(run, PATHS)
    assert (state.state, state.round, state.checkpoint, state.silent) == ("stopped", 4, 3, 90)
    assert state.message.startswith(said)
    assert bool(state.message) == bool(said)
    assert status._words(state, "").startswith("after round 4/10, no output for 1:30")
    assert status._words(state, "").endswith("; resumes after round 3")


def test_a_run_with_fresh_news_and_a_free_lock_may_be_at_work_elsewhere(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    began(run, 4, monkeypatch, age=5)
    state = state_of(run, PATHS)
    assert state.state == "stopped"
    assert status._words(state, "").endswith(
        "; starts again from round 1, unless it is still running on another node, whose locks are not visible here"
    )


@pytest.mark.parametrize("content", [b"", b"no tensors", b"\xff" * 100])
def test_a_checkpoint_that_cannot_be_read(run: Run, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = began(run, 4, monkeypatch, age=90)
    (folder / "checkpoint" / "state.safetensors").write_bytes(content)
    aged(90, folder / "checkpoint" / "state.safetensors")
    assert status._words(state_of(run, PATHS), "").endswith("; starts again from round 1")


@pytest.mark.parametrize(
    ("log", "last"),
    [
        ("client 'A': loss is nan in round 5; lower lr\n\n", "client 'A': loss is nan in round 5; lower lr"),
        (
            "\0\0\0round 4/10\nTraceback (most recent call last):\n  File x\nZeroDivisionError: 0\n",
            "ZeroDivisionError: 0",
        ),
        ("Root cause: signal 9\n=====\n", "Root cause: signal 9"),
        ("bar\rout of memory", "out of memory"),
    ],
)
def test_a_run_that_failed(run: Run, log: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    began(run, 4, monkeypatch, age=5)
    kept(run, 4)
    told(run, log)
    state = state_of(run, PATHS)
    assert (state.state, state.message) == ("failed", last)
    again = "fedshift train tiny RUN --scale mini"
    assert status._words(state, again) == (
        f"{last} (see results/logs/train/{run.id}.log); when this is fixed, it resumes after round 4: "
        f"fedshift train tiny {run.id} --scale mini"
    )


def test_a_run_that_failed_before_it_began(run: Run) -> None:
    told(run, "client 'A': has 1 training images, fewer than one batch of 2\n")
    assert state_of(run, PATHS).state == "failed"


def done(run: Run, code: str = "now", **changes: Any) -> None:
    folder = PATHS.run(run.id)
    for name in TRAINED:
        write_text(folder / name, "")
    write_json(folder / "manifest.json", fake_study.manifest(run) | {"code": code} | changes)
    aged(0, folder / "manifest.json")


def test_a_run_that_is_done(run: Run) -> None:
    told(run, "an old complaint\n")
    done(run, seconds=75.0, best_round=3, best_value=0.8)
    state = state_of(run, PATHS, "now")
    assert (state.state, state.rounds, state.round, state.seconds, state.changed) == ("done", 10, 10, 75, False)
    assert status._words(state, "") == f"{TODAY}, 10 rounds in 1:15, best 0.8000 in round 3"
    assert state_of(run, PATHS, "other").changed


def test_a_run_that_is_trained_again_is_not_done(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    began(run, 4, monkeypatch)
    done(run)
    assert state_of(run, PATHS).state == "done"
    with at_work(run):
        assert state_of(run, PATHS).state == "running"


def test_results_that_are_not_whole_are_not_done(run: Run) -> None:
    done(run)
    (PATHS.run(run.id) / "model.safetensors").unlink()
    assert state_of(run, PATHS).state == "waiting"


# ---- locks


def test_looking_leaves_a_free_lock_free(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    aged(100, lock)
    assert status.is_locked(lock) is False
    with disk.locked(lock):
        pass


def test_a_file_system_without_locks_goes_by_the_news(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 40 s: after three of them without a word the run counts as stopped."""

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    folder = began(run, 4, monkeypatch, each=40)
    monkeypatch.setattr(fcntl, "flock", refuse)
    for age, state in ((119, "running"), (121, "stopped")):
        aged(age, folder / "rounds.jsonl")
        assert state_of(run, PATHS).state == state


# ---- all runs


def of(state: status.StateName, **more: Any) -> State:
    return State("r", "B", 0, state, 10, **more)


def test_the_least_time_until_all_is_trained() -> None:
    """A round takes 2 s here and 4 s there, 3 s on average.

    Two run, with 8 s and 20 s to go. One has 10 rounds to go, one 6, together 48 s. Two at once: (8 + 20 + 48) / 2.
    """
    states = [
        of("running", eta=8.0, seconds_a_round=2.0),
        of("running", eta=20.0),
        of("done", seconds=40.0, round=10),
        of("waiting"),
        of("stopped", checkpoint=4),
        of("failed", checkpoint=4),
    ]
    counts = {"done": 1, "running": 2, "stopped": 1, "failed": 1, "waiting": 1}
    assert status.total(states) == {**counts, "eta": 38.0}
    assert status.total(states[:3])["eta"] == 20.0, "not before the slowest"
    assert status.total(states[2:])["eta"] is None, "nothing runs"
    assert status.total([of("running"), of("waiting")])["eta"] is None, "nothing is known"


def test_a_line_for_each_run_and_one_for_all(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = runs()
    began(first, 4, monkeypatch, age=0)
    done(second)
    with at_work(first):
        assert cli.main(["status", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{first.id}  seed 0   running  round 4/10, loss 0.2500, 2.0 s a round, ETA 0:12"
    assert lines[1].startswith(f"{second.id}  seed 1   done     {TODAY}, ")
    assert lines[1].endswith("best 0.8000 in round 3; trained with other code")
    assert lines[2] == "2 runs: 1 done, 1 running, at least 0:12 left, with 1 at once as now"
    assert lines[3] == "1 of the finished runs were trained with other code, and would be trained again"
    assert cli.main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Stopped runs resume with the next call of Snakemake, or by hand: fedshift train tiny RUN"
    )


def test_a_lock_that_a_killed_snakemake_left_is_told(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snakemake writes .snakemake/locks/0.input.lock and the like; after kill -9 they stay."""
    began(run, 4, monkeypatch, age=500)
    lock = Path(".snakemake/locks/0.input.lock")
    lock.parent.mkdir(parents=True)
    assert cli.main(["status", "tiny"]) == 0
    assert "unlock" not in capsys.readouterr().out
    lock.touch()
    assert cli.main(["status", "tiny"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Snakemake has locked this folder. If it is not at work, since it was killed or the power failed, first unlock "
        "it: fedshift run STUDY --unlock"
    )
    with at_work(run):
        assert cli.main(["status", "tiny"]) == 0
    assert "unlock" not in capsys.readouterr().out, "the lock is that of the Snakemake at work"


def test_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "tiny", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in told["runs"]] == [run.id for run in runs()]
    assert told["total"] == {"done": 0, "running": 0, "stopped": 0, "failed": 0, "waiting": 2, "eta": None}
    assert told["resume"] == "fedshift train tiny RUN"


def test_a_reader_that_has_enough_is_no_error() -> None:
    call = ['"$0" -m fedshift status tiny | true', sys.executable]
    done = subprocess.run(["bash", "-c", *call], capture_output=True, text=True, check=True)
    assert done.stderr == "study tiny: reading the state of its runs ...\n"


def test_five_hundred_runs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("config/studies/tiny.yaml")
    path.write_text(STUDY.replace("seeds: [0, 1]", f"seeds: {list(range(500))}"))
    plans = study.select("tiny", "mini", path.parent)
    first, second, *others = plans["tiny"].runs.values()
    folder = began(first, 10, monkeypatch, age=100)
    done(second)
    for n, run in enumerate(others):
        shutil.copytree(PATHS.run(second.id) if n % 2 else folder, PATHS.run(run.id))
    counts = status.total(status.states(plans, PATHS))
    assert (counts["done"], counts["stopped"]) == (250, 250)


# ---- a real training


class Killed(BaseException):
    """Not an Exception: nothing may catch it."""


def test_a_real_run_at_work_then_killed_then_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "time", time)
    plan, paths = fake_study.build(tmp_path, training={"rounds": 4, "batch_size": 8, "select": "last"})
    run = next(iter(plan.runs.values()))
    shutil.rmtree(paths.run(run.id))
    seen = []
    whole = Federation.round

    def round_and_look(federation: Federation, *words: Any) -> None:
        if federation.server.round == 2:
            seen.append(state_of(run, paths))
            raise Killed
        whole(federation, *words)

    monkeypatch.setattr(Federation, "round", round_and_look)
    with pytest.raises(Killed):
        job.train(run, paths, code="x")
    assert [(s.state, s.round, s.checkpoint) for s in seen] == [("running", 2, 2)]
    assert 0 < seen[0].eta <= 2 * seen[0].seconds_a_round

    state = state_of(run, paths)
    assert (state.state, state.round, state.checkpoint) == ("stopped", 2, 2)

    monkeypatch.setattr(Federation, "round", whole)
    job.train(run, paths, code="x")
    state = state_of(run, paths, "x")
    assert (state.state, state.round, state.best_round, state.changed) == ("done", 4, 4, False)
