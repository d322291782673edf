"""A run whose rounds are chosen at a site outside its partition, from prepared data to its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tiny_project import STUDY, _images

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.data.prepared import read_samples
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_json
from fedshift.jobs import prepare, train
from fedshift.study.run import Run

CHANGES = {
    "dataset": {**STUDY["dataset"], "table": "own images/samples.csv"},
    "partition": {"internal": ["A", "B"], "split": {"train": 1, "val": 0, "test": 0}},
    "runs": [{"algorithm": "fedavg", "bn": "local"}],
    "seeds": [0],
    "inferences": ["source"],
}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.chdir(tmp_path)
    _images(tmp_path / "own images")
    return Paths()


def prepared(paths: Paths, *sites: str) -> Run:
    training = {**STUDY["training"], "select_at": [*sites]}
    Path("tiny.yaml").write_text(yaml.safe_dump(STUDY | CHANGES | {"training": training}), encoding="utf-8")
    (run,) = study.load(Path("tiny.yaml"), "paper").runs.values()
    prepare.prepare(run.data, paths.raw(run.data.raw), paths.data(run.data.id))
    samples = read_samples(paths.data_files(run.data.id).samples)
    write_table(paths.partition(run.partition_id), run.partition.assign(samples))
    return run


def test_the_round_is_chosen_there_and_nothing_else_happens_there(paths: Paths) -> None:
    run = prepared(paths, "C")
    train.train(run, paths)
    files = paths.run_files(run.id)
    rounds = read_table(files.rounds)
    assert set(rounds.loc[rounds["split"] == "train", "site"]) == {"A", "B"}
    chosen = rounds[rounds["split"] == "val"]
    assert set(chosen["site"]) == {"C"}
    assert read_json(files.manifest)["best_value"] == chosen["accuracy"].max()
    assert "C" not in set(read_table(paths.partition(run.partition_id))["site"])


def test_a_site_that_the_data_do_not_have_is_one_line(paths: Paths) -> None:
    run = prepared(paths, "D")
    with pytest.raises(UserError, match=r"training.select_at: unknown site 'D'; known: A, B, C"):
        train.train(run, paths)
