"""A finished run comes back from the store where its inputs are the same, and only there."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import own_images
import pytest

from fedshift.engine.federation import Federation
from fedshift.io import checksums
from fedshift.io.paths import Paths, RunFiles, checksum
from fedshift.io.tables import read_table, write_table
from fedshift.jobs import accept
from fedshift.jobs.train import train
from fedshift.study.run import Run


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> own_images.Project:
    made = own_images.Project(tmp_path_factory.mktemp("store"))
    train(run_of(made), made.paths, code="code", keep=True)
    return made


@pytest.fixture
def paths(template: own_images.Project, tmp_path: Path) -> Paths:
    """The results of a run that was trained and kept."""
    shutil.copytree(template.root / "results", tmp_path / "results")
    return Paths(tmp_path)


@pytest.fixture
def run(template: own_images.Project) -> Run:
    return run_of(template)


def run_of(project: own_images.Project) -> Run:
    return next(iter(project.plan.runs.values()))


def contents(files: RunFiles) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in files.trained}


def lose(files: RunFiles) -> None:
    """Remove what Snakemake removes before a training."""
    for file in files.trained:
        file.unlink()


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Federation, "run", lambda *_, **__: pytest.fail("it was trained again"))


def entry(paths: Paths) -> accept.Kept:
    (only,) = accept.kept(paths)
    return only


@pytest.mark.usefixtures("no_training")
def test_a_lost_run_comes_back_with_the_same_bytes(run: Run, paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    files = paths.run_files(run.id)
    before = contents(files)
    lose(files)
    train(run, paths, code="code", keep=True)
    assert contents(files) == before
    assert not files.checkpoint.exists()
    assert "comes back from" in capsys.readouterr().err
    for file in files.trained:
        assert checksums.recorded(file)
        assert checksums.damage(file, whole=True) == ""


@pytest.mark.usefixtures("no_training")
def test_a_small_file_that_is_written_into_comes_back(run: Run, paths: Paths) -> None:
    files = paths.run_files(run.id)
    before = contents(files)
    for file in files.trained:
        content = file.read_bytes()
        with file.open("r+b") as opened:  # into the file itself
            opened.write(bytes([content[0] ^ 1]))
    train(run, paths, code="code", keep=True)
    assert contents(files) == before


def test_large_files_are_hard_links_and_take_no_space(run: Run, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "COPIED", 0)
    files, kept = paths.run_files(run.id), entry(paths)
    kept.remove()
    kept.keep(files)
    for file in files.trained:
        assert file.samefile(kept.folder / file.name)
    assert kept.size == sum(checksum(kept.folder / file.name).stat().st_size for file in files.trained)
    lose(files)
    assert kept.restore(files)
    assert all(file.samefile(kept.folder / file.name) for file in files.trained)


def test_a_disk_without_hard_links_gets_copies(run: Run, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(accept, "COPIED", 0)
    monkeypatch.setattr(Path, "hardlink_to", refused)
    files, kept = paths.run_files(run.id), entry(paths)
    kept.remove()
    kept.keep(files)
    assert contents(kept.files) == contents(files)
    assert not any(file.samefile(kept.folder / file.name) for file in files.trained)


def test_other_inputs_and_other_code_are_trained(run: Run, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, checksums of the data and partition: a change of any of these is another run."""
    trained: list[int] = []
    fit = Federation.run
    monkeypatch.setattr(Federation, "run", lambda *a, **k: (trained.append(1), fit(*a, **k))[1])
    train(run, paths, code="other code", keep=True)
    assert len(trained) == 1
    table = read_table(file := paths.partition(run.partition_id))
    write_table(file, table.iloc[:-1])
    train(run, paths, code="code", keep=True)
    assert len(trained) == 2
    card = json.loads((file := paths.data_files(run.data.id).card).read_text())
    card["checksums"]["images.npy"] = "sha256:0"
    file.write_text(json.dumps(card))
    train(run, paths, code="code", keep=True)
    assert len(trained) == 3
    assert len(list(accept.kept(paths))) == 4


@pytest.mark.parametrize("name", ["spec.json", "model.safetensors", "rounds.parquet", ".model.safetensors.sha256"])
def test_a_damaged_entry_is_not_used_and_is_replaced(
    name: str, run: Run, paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    files = paths.run_files(run.id)
    models = [files.model.read_bytes(), files.clients.read_bytes()]
    lose(files)
    (entry(paths).folder / name).write_bytes(b"damaged")
    train(run, paths, code="code", keep=True)
    assert f"{entry(paths).folder / name.removeprefix('.').removesuffix('.sha256')} " in capsys.readouterr().err
    assert [files.model.read_bytes(), files.clients.read_bytes()] == models
    assert entry(paths).damage() == {}


def test_without_keep_nothing_is_taken_or_kept(run: Run, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    before = entry(paths).files.manifest.read_bytes()
    trained: list[int] = []
    fit = Federation.run
    monkeypatch.setattr(Federation, "run", lambda *a, **k: (trained.append(1), fit(*a, **k))[1])
    train(run, paths, code="code")
    assert trained == [1]
    assert entry(paths).files.manifest.read_bytes() == before


def test_a_full_disk_keeps_the_run_and_says_so(
    run: Run, paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry(paths).remove()
    monkeypatch.setattr(accept.shutil, "copyfile", full)
    train(run, paths, code="code", keep=True)
    assert not any(checksums.damage(file) for file in paths.run_files(run.id).trained)
    assert list(accept.kept(paths)) == []
    assert "could not be kept a second time" in capsys.readouterr().err


def test_an_accepted_manifest_is_kept_too(run: Run, paths: Paths) -> None:
    files = paths.run_files(run.id)
    manifest = {**json.loads(files.manifest.read_text()), "accepted": [{"code": "new"}]}
    accept.write_manifest(paths, run.id, manifest)
    assert json.loads(entry(paths).files.manifest.read_text()) == manifest
    assert entry(paths).damage() == {}
    assert list(accept.superseded(paths)) == []


def test_only_runs_that_were_trained_again_are_superseded(run: Run, paths: Paths) -> None:
    assert list(accept.superseded(paths)) == []
    first = entry(paths)
    train(run, paths, code="other code", keep=True)
    assert list(accept.superseded(paths)) == [first]
    lose(paths.run_files(run.id))
    assert list(accept.superseded(paths)) == [], "what is kept is all that is left of the run"
    first.remove()
    assert len(list(accept.kept(paths))) == 1
