"""A short campaign of faults finds nothing, and would find what is there."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import campaign
import pytest
from harm import Fault
from rotation import of_day
from warm import Warm

from fedshift.io.arrays import write_tensors
from fedshift.io.paths import Paths


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> campaign.Campaign:
    return campaign.Campaign(tmp_path_factory.mktemp("faults"), seed=1)


@pytest.fixture(scope="module")
def worker(tried: campaign.Campaign) -> campaign.Worker:
    return campaign.Worker(tried, tried.root / "by hand")


def test_a_fault_of_each_kind_of_the_day(tried: campaign.Campaign, worker: campaign.Worker) -> None:
    first = itertools.islice(campaign.trials(tried.project, tried.seed), len(campaign.PATTERN))
    each = {trial.kind: trial for trial in first}
    assert each.keys() == {"damage", "kill", "snakemake", "disk"}
    outcomes = [campaign.asdict(worker.run(trial)) for trial in of_day(each.values(), 4)]
    assert not campaign.found(outcomes)


def test_every_rule_and_every_file_comes_in_a_campaign_of_a_thousand(tried: campaign.Campaign) -> None:
    thousand = list(itertools.islice(campaign.trials(tried.project, 0), 1000))
    rules = set(tried.project.outputs())
    assert len(rules) == 11
    for kind in ("kill", "snakemake", "disk", "damage"):
        assert {trial.rule for trial in thousand if trial.kind == kind} == rules
    damages = {(trial.file, trial.how) for trial in thousand if trial.kind == "damage"}
    assert len(damages) == 400
    assert {file for file, _ in damages} == {str(file) for _, file in tried.project.damageable()}


def test_a_stopped_campaign_goes_on_from_its_log(
    tried: campaign.Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.jsonl"
    lines = [{"trial": {"number": number, "kind": "disk"}} for number in (0, 1, 7)]
    log.write_text("\n".join(map(campaign.json.dumps, lines)) + '\n{"trial": {"num')
    assert campaign.read_log(log).keys() == {0, 1, 7}
    due: list[int] = []

    def fork(self: campaign.Campaign, trials: list[campaign.Trial], place: Path, log: Path) -> int:
        due.extend(trial.number for trial in trials)
        if not (pid := os.fork()):
            os._exit(0)
        return pid

    monkeypatch.setattr(campaign.Campaign, "_fork", fork)
    assert [o["trial"]["number"] for o in tried.trials(6, 2, log)] == [0, 1]
    assert sorted(due) == [2, 3, 4, 5]


def test_a_full_disk_at_any_disk_event_of_a_training_is_one_line(tried: campaign.Campaign, tmp_path: Path) -> None:
    project = tried.project.copy(tmp_path / "project")
    warm, (run, _) = Warm(tmp_path / "warm", project.root), tried.project.plan().trainings
    for number in range(1, 12):  # the lock, the log and the first checkpoints
        shutil.rmtree(Paths(project.root).run(run), ignore_errors=True)
        shutil.rmtree(Paths(project.root).store, ignore_errors=True)
        code, said = warm.command(["train", "faults", run, "--scale", "paper"], Fault("no space", number))
        assert code in (0, 2), said  # what is only removed may be left
        assert code == 0 or "no space left on the disk" in said.splitlines()[-1]
    warm.close()


def test_a_campaign_finds_what_is_not_written_at_once(worker: campaign.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a model is written in place, a loss of power in the middle leaves a part of it under its name."""

    def write(path: Path, *given: Any) -> None:
        real(path, *given)
        if path.name == "model.safetensors":
            path.write_bytes(path.read_bytes()[:100])
            os.killpg(os.getpgrp(), signal.SIGKILL)

    real = write_tensors
    monkeypatch.setattr("fedshift.jobs.run_files.write_tensors", write)
    # Its signal is never due: the training itself ends all processes.
    outcome = worker.run(campaign.Trial(0, "snakemake", "train", "SIGKILL", shares=(1e6, 0.5), stored=False))
    assert [Path(name).name for name in outcome.partial] == ["model.safetensors"]
    assert outcome.clean_ups
    assert campaign.found([campaign.asdict(outcome)])


def test_a_campaign_finds_damage_that_is_let_pass(worker: campaign.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If checksums are not compared, a bit of a figure that kept its time is another result in silence."""
    monkeypatch.setattr("fedshift.planning.verify.damage", lambda file, whole: "")
    figure = worker.made["report"][-1]
    assert figure.suffix == ".svg"
    outcome = worker.run(campaign.Trial(0, "damage", "report", "flip, old time", str(figure)))
    assert outcome.silent
    assert outcome.wrong == [str(figure)]
