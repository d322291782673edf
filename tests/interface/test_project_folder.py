"""A project is opened from Python wherever the current folder is: its own images, its plug-ins and its results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from my_study import NAME, STUDY
from tiny_project import ALGORITHM

import fedshift
from fedshift.core import registry
from fedshift.metrics._classes import ECE

SLOWER = ALGORITHM.replace("class Damped", "class Slower")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    (folder := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def without_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_added", [])
    registry.forget()
    yield
    registry.forget()


def test_own_images_have_their_ids_from_every_folder(finished_project: Path, elsewhere: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(finished_project)
        inside = fedshift.load_study(NAME)
        ids, (one, *_) = list(inside.runs), inside.runs.values()
        data, partition = one.data.id, one.partition_id
        images = inside.open_run(ids[0]).images("far")
    study = fedshift.load_study(NAME, project=finished_project)
    assert list(study.runs) == ids
    assert {run.partition_id for run in study.runs.values()} == {partition}
    assert study.results().scores["run"].isin(ids).all()
    for run in (study.open_run(ids[0]), fedshift.open_run(finished_project / "results" / "runs" / ids[0])):
        assert (run.id, run.run.data.id) == (ids[0], data)
        for found, right in zip(run.images("far"), images, strict=True):
            np.testing.assert_array_equal(found, right)
    assert not list(elsewhere.iterdir())


def test_a_run_of_the_current_folder_stays_open_in_another_one(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fedshift.open_run(next(iter(fedshift.load_study(NAME).runs)))
    first = run.images("far")
    monkeypatch.chdir(tmp_path)
    for again, right in zip(run.images("far"), first, strict=True):
        np.testing.assert_array_equal(again, right)


def test_plug_ins_of_the_project_are_found(tmp_path: Path, elsewhere: Path, without_plugins: None) -> None:
    project = tmp_path / "project"
    for file, text in {
        "config/config.yaml": "plugins: plugins\n",
        "config/studies/slow.yaml": yaml.safe_dump(STUDY | {"runs": [{"algorithm": "slower"}]}),
        "plugins/slower.py": SLOWER,
    }.items():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).write_text(text, encoding="utf-8")
    study = fedshift.load_study("slow", project=project)
    assert {run.algorithm.name for run in study.runs.values()} == {"slower"}
    again = fedshift.load_study("config/studies/slow.yaml", project=str(project))
    assert list(again.runs) == list(study.runs)
    assert Path.cwd() == elsewhere


def test_a_folder_that_is_not_there_is_one_line(elsewhere: Path) -> None:
    with pytest.raises(fedshift.UserError, match=r"^nowhere: no such folder; name the folder of a project$"):
        fedshift.load_study("demo", project="nowhere")


def test_a_federation_knows_the_plugins_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_plugins: None
) -> None:
    """By name, before any study was loaded in this process."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text("plugins: methods\n")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "slower.py").write_text(SLOWER)
    monkeypatch.chdir(tmp_path)
    x, y = torch.eye(2).repeat(4, 1), torch.arange(8) % 2
    net = torch.nn.Linear(2, 2)
    slower, whole = (
        fedshift.Federation(net, {"a": (x, y)}, algorithm=name, training={"select": "last"}).run(1)
        for name in ("slower", "fedavg")
    )
    half = (net.weight + whole.global_state()["weight"]) / 2
    torch.testing.assert_close(slower.global_state()["weight"], half.detach())


def test_metrics_are_given_as_objects_too() -> None:
    x, y = torch.eye(2).repeat(4, 1), torch.arange(8) % 2
    trained = fedshift.Federation(torch.nn.Linear(2, 2), {"a": (x, y)}).run(1)
    assert trained.evaluate(x, y, metrics=[ECE(bins=4), "accuracy"]).keys() == {"ece", "accuracy"}
