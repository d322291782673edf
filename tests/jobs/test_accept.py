"""Finished work is kept after a change of code that a person calls neutral, and only while the golden curves hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tiny_project import Project

from fedshift import __version__, study
from fedshift.cli import main
from fedshift.core.errors import UserError
from fedshift.engine.local_training import SGD
from fedshift.io.checksums import damage, record, recorded
from fedshift.io.paths import TRAINED, Paths, checksum
from fedshift.io.tables import write_table
from fedshift.io.text import read_json, write_json, write_text
from fedshift.jobs import accept
from fedshift.jobs.accept import Ledger
from fedshift.planning.status import state_of
from fedshift.study.plan import Plan

PATHS = Paths()
STUDY = """
title: Tiny
dataset: office_caltech10
partition: {internal: [amazon], external: [dslr]}
model: mlp
training: {rounds: 2, batch_size: 2}
runs: [{algorithm: [fedavg, fedprox]}]
inferences: [source]
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A study of two runs, finished by older code, and entered."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "config" / "studies" / "tiny.yaml", STUDY)
    plan = study.load(Path("config/studies/tiny.yaml"), "mini")
    for run in plan.runs.values():
        for name in TRAINED:
            write_text(PATHS.run(run.id) / name, "{}")
        write_json(PATHS.run(run.id) / "manifest.json", {"run": run.id, "code": f"old {run.algorithm.name}"})
    return plan


def manifests(plan: Plan) -> list[dict[str, Any]]:
    return [read_json(PATHS.run(run) / "manifest.json") for run in plan.runs]


def files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path("results").rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_runs_are_stamped_and_say_why(plan: Plan) -> None:
    assert main(["accept", "tiny", "--reason", " only names "]) == 0
    ledger = Ledger(PATHS)
    for run, manifest in zip(plan.runs.values(), manifests(plan), strict=True):
        old, today = f"old {run.algorithm.name}", accept.train_code(run)
        (record,) = manifest["accepted"]
        assert manifest["code"] == old, "the run was made by that code, whatever is accepted since"
        assert {k: record[k] for k in ("code", "was", "reason")} == {"code": today, "was": old, "reason": "only names"}
        assert record["version"] == __version__
        assert record["date"].startswith("20")
        assert "git" in record
        assert ledger.stamp("train", run.id, today) == old, "so Snakemake finds the parameter that it recorded"
        assert not state_of(run, PATHS, today).changed


def test_a_later_change_is_not_accepted(plan: Plan) -> None:
    accept.accept([plan], PATHS, "only names")
    run, ledger = next(iter(plan.runs.values())), Ledger(PATHS)
    assert ledger.stamp("train", run.id, "a later digest") == "a later digest"
    assert state_of(run, PATHS, "a later digest").changed


def test_runs_of_other_ids_are_not_accepted(plan: Plan) -> None:
    """A run that was trained by today's code has today's digest on record."""
    run, other = plan.runs.values()
    write_json(PATHS.run(other.id) / "manifest.json", {"code": accept.train_code(other)})
    accept.accept([plan], PATHS, "only names")
    assert "accepted" not in read_json(PATHS.run(other.id) / "manifest.json")
    assert Ledger(PATHS).stamp("train", other.id, accept.train_code(other)) == accept.train_code(other)
    assert Ledger(PATHS).stamp("train", run.id, accept.train_code(run)) == "old fedavg"


def test_a_second_acceptance_stands_on_the_first(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run = next(iter(plan.runs.values()))
    first = accept.train_code(run)
    accept.accept([plan], PATHS, "only names")
    monkeypatch.setattr(accept, "train_code", lambda run: f"newer {run.algorithm.name}")
    accept.accept([plan], PATHS, "only layout")
    manifest = read_json(PATHS.run(run.id) / "manifest.json")
    assert [(r["code"], r["was"], r["reason"]) for r in manifest["accepted"]] == [
        (first, "old fedavg", "only names"),
        ("newer fedavg", first, "only layout"),
    ]
    ledger = Ledger(PATHS)
    assert ledger.stamp("train", run.id, "newer fedavg") == ledger.stamp("train", run.id, first) == "old fedavg"


def test_accepting_twice_changes_nothing(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    accept.accept([plan], PATHS, "only names")
    before = files()
    assert main(["accept", "tiny", "--reason", "once more"]) == 0
    assert "nothing to accept" in capsys.readouterr().err
    assert files() == before


def test_what_was_cut_off_is_finished_by_the_next_call(plan: Plan) -> None:
    """The ledger was written, the manifests were not."""
    before = {run: (PATHS.run(run) / "manifest.json").read_bytes() for run in plan.runs}
    accept.accept([plan], PATHS, "only names")
    for run, content in before.items():
        (PATHS.run(run) / "manifest.json").write_bytes(content)
        checksum(PATHS.run(run) / "manifest.json").unlink()
    assert len(accept.accept([plan], PATHS, "only names")) == 2
    assert all(manifest["accepted"] for manifest in manifests(plan))


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_is_asked_for(plan: Plan, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = files()
    assert main(["accept", "tiny", "--reason", reason]) == 2
    assert "--reason: is empty; say why" in capsys.readouterr().err
    assert files() == before


def test_refused_while_an_sgd_step_differs(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first loss is of the old weights: a step that is 1 % longer shows in the mean over epochs of round 1."""
    step, before = SGD.step, files()
    monkeypatch.setattr(SGD, "step", lambda self, grads, lr: step(self, grads, 1.01 * lr))
    assert main(["accept", "tiny", "--reason", "only names"]) == 2
    said = capsys.readouterr().err
    assert "golden curve of FedAvg with BN policy 'aggregated': the training loss of client a in round 1 is" in said
    assert "train the runs again" in said
    assert len(said.splitlines()) == 1
    assert files() == before


def test_refused_while_batch_norm_differs(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of the stored curve normalise by torch's batch norm, here with another epsilon."""
    norm = torch.nn.functional.batch_norm
    monkeypatch.setattr(torch.nn.functional, "batch_norm", lambda *a, **k: norm(*a[:-1], 0.1, **k))
    with pytest.raises(UserError, match=r"round 1 is [\d.]+, and was [\d.]+"):
        accept.accept([plan], PATHS, "only names")
    assert not PATHS.accepted.exists()


def test_data_are_stamped_by_the_code_on_their_card(plan: Plan) -> None:
    (data,) = plan.data.values()
    key = next(iter(plan.runs.values())).partition_id
    write_json(PATHS.raw(data.raw) / "source.json", {"code": "old drawing"})
    write_json(PATHS.data(data.id) / "card.json", {"code": "old prepare", "checksums": {}})
    table = pd.DataFrame({"site": ["A"]})
    table.attrs["code"] = "old partition"
    write_table(PATHS.partition(key), table)
    kept = [PATHS.data(data.id) / "card.json", PATHS.partition(key), PATHS.raw(data.raw) / "source.json"]
    times = [path.stat().st_mtime_ns for path in kept]
    accept.accept([plan], PATHS, "only names")
    ledger = Ledger(PATHS)
    assert ledger.stamp("download", data.raw, accept.download_code(data)) == "old drawing"
    assert ledger.stamp("prepare", data.id, accept.prepare_code(data)) == "old prepare"
    assert ledger.stamp("partition", key, accept.partition_code()) == "old partition"
    assert [path.stat().st_mtime_ns for path in kept] == times, "or trainings that read them would run again"
    assert ledger.records["prepare"][data.id][accept.prepare_code(data)]["reason"] == "only names"


@pytest.mark.parametrize("content", ["{", "[]", '{"train": 1}', '{"train": {"a": {"b": {}}}}'])
def test_a_ledger_that_cannot_be_read_gets_one_line(
    plan: Plan, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(PATHS.accepted, content)
    assert main(["accept", "tiny", "--reason", "only names"]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert "accepted.json" in said


# ---- with Snakemake


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two runs, trained."""
    project = Project.create(tmp_path_factory.mktemp("accept") / "a project", seeds=[0])
    done = project.snakemake("--cores", "2", "--until", "train", "--config", "study=tiny")
    assert done.returncode == 0, done.stderr
    yield project


def call(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Call the project's own `fedshift`."""
    environment = {"PYTHONPATH": str(project.root / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "fedshift", *words]
    return subprocess.run(command, cwd=project.root, env=environment, capture_output=True, text=True, check=False)


def again(project: Project) -> set[str]:
    """The runs, data sets and partitions that would be made again."""
    names = {"train": "run", "prepare": "data", "partition": "partition", "download": "raw"}
    return {job[names[job.rule]] for job in project.jobs() if job.rule in names}


@pytest.mark.slow
def test_a_neutral_change_is_accepted_and_a_later_one_trains_again(trained_project: Project) -> None:
    damped = next(run for run in trained_project.runs() if run.startswith("damped-"))
    plugin, words = "src/fedshift/algorithms/damped.py", ["accept", "tiny", "--reason", "a half either way"]
    assert again(trained_project) == set()
    with trained_project.edited(plugin, "0.5)", "1 / 2)"):
        assert again(trained_project) == {damped}
        assert "with other code" in call(trained_project, "status", "tiny").stdout
        done = call(trained_project, *words)
        assert done.returncode == 0, done.stderr
        assert "1 of rule train" in done.stderr
        assert again(trained_project) == set()
        assert "with other code" not in call(trained_project, "status", "tiny").stdout
        manifest = json.loads((trained_project.root / "results" / "runs" / damped / "manifest.json").read_text())
        assert [record["reason"] for record in manifest["accepted"]] == ["a half either way"]
        with trained_project.edited(plugin, "1 / 2)", "1 / 4)"):
            assert again(trained_project) == {damped}
    assert again(trained_project) == set(), "the code that trained it is still known"


@pytest.mark.slow
def test_a_neutral_change_of_the_data_s_code_does_not_cascade(trained_project: Project) -> None:
    with trained_project.edited("src/fedshift/jobs/prepare.py", "if not array.rows:", "if array.rows == 0:"):
        assert again(trained_project) >= {*trained_project.runs()}
        assert call(trained_project, "accept", "tiny", "--reason", "the same test").returncode == 0
        assert again(trained_project) == set()
    with trained_project.edited("src/fedshift/data/partition.py", "within[rows] = False", "within[rows[:]] = False"):
        assert again(trained_project) >= {*trained_project.runs()}
        assert call(trained_project, "accept", "tiny", "--reason", "a copy").returncode == 0
        assert again(trained_project) == set()


def test_a_damaged_manifest_is_not_accepted(plan: Plan) -> None:
    """Its checksum would be recorded anew, and the damage with it."""
    file = PATHS.run(next(iter(plan.runs))) / "manifest.json"
    record(file)
    file.write_text(file.read_text().replace("old", "odd"))
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"manifest\.json: is damaged or was changed"):
        accept.accept([plan], PATHS, "only names")
    assert file.read_bytes() == before
    assert not PATHS.accepted.exists()


def test_accepted_manifests_have_a_checksum(plan: Plan) -> None:
    accept.accept([plan], PATHS, "only names")
    for run in plan.runs:
        file = PATHS.run(run) / "manifest.json"
        assert recorded(file)
        assert damage(file) == ""
