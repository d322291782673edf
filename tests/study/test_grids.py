"""Runs of one study that differ in dataset, partition or seeds, and what a scale makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.study.plan import Plan

STUDY: dict[str, Any] = {
    "title": "Grids",
    "dataset": {"name": "mnist", "images": 60},
    "partition": {
        "internal": ["client1", "client2"],
        "external": ["test"],
        "split": {"train": 0.8, "val": 0.2, "test": 0},
        "by": "sample",
    },
    "model": "mlp",
    "training": {"rounds": 10},
    "inferences": ["source"],
    "seeds": [0, 1],
}


def plan(tmp_path: Path, scale: Any = "paper", **changes: Any) -> Plan:
    path = tmp_path / "grids.yaml"
    path.write_text(json.dumps({**STUDY, **changes}), encoding="utf-8")
    return study.load(path, scale)


def test_a_grid_lays_its_settings_on_those_of_dataset_and_partition(tmp_path: Path) -> None:
    iid = {"algorithm": "fedavg"}
    apart = {"algorithm": "fedavg", "dataset": {"classes_per_client": 2}, "partition": {"held_out": "noniid"}}
    made = plan(tmp_path, runs=[iid, apart])
    told = {(r.data.dataset.classes_per_client, r.partition.title, r.seed) for r in made.runs.values()}  # type: ignore[attr-defined]
    assert told == {(None, "test", 0), (None, "test", 1), (2, "noniid", 0), (2, "noniid", 1)}
    assert len(made.data) == 2
    assert {r.partition.internal for r in made.runs.values()} == {("client1", "client2")}
    assert [p.title for p in made.partitions] == ["test", "noniid"]


def test_a_limit_is_laid_on_every_partition(tmp_path: Path) -> None:
    parts = [{**STUDY["partition"], "external": [], "held_out": h, "seed": n} for n, h in enumerate("ab")]
    made = plan(tmp_path, partition=parts, runs=[{"algorithm": "fedavg", "partition": {"limit": {"train": 20}}}])
    assert [(p.held_out, p.limit.train) for p in made.partitions] == [("a", 20), ("b", 20)]


def test_a_grid_has_seeds_of_its_own(tmp_path: Path) -> None:
    made = plan(tmp_path, runs=[{"algorithm": "fedavg"}, {"algorithm": "fedprox", "seeds": [7]}])
    assert [(r.algorithm.name, r.seed) for r in made.runs.values()] == [("fedavg", 0), ("fedavg", 1), ("fedprox", 7)]


def test_what_a_scale_says_holds_for_grids_that_say_otherwise(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "training": {"rounds": 300, "local_epochs": 4}}, {"algorithm": "fedprox"}]
    scales = {"mini": {"training": {"rounds": 2}, "seeds": [0]}}
    small = plan(tmp_path, "mini", runs=runs, scales=scales)
    assert [(r.training.rounds, r.training.local_epochs) for r in small.runs.values()] == [(2, 4), (2, 1)]
    large = plan(tmp_path, "paper", runs=runs, scales=scales)
    assert {r.training.rounds for r in large.runs.values()} == {300, 10}


def test_runs_that_a_scale_states_itself_are_left_alone(tmp_path: Path) -> None:
    own = [{"algorithm": "fedavg", "training": {"rounds": 5}}]
    scales = {"mini": {"training": {"rounds": 2}, "runs": own}}
    small = plan(tmp_path, "mini", runs=[{"algorithm": "fedprox"}], scales=scales)
    assert [(r.algorithm.name, r.training.rounds) for r in small.runs.values()] == [("fedavg", 5)] * 2


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"dataset": {"clientz": 3}}, r"runs.0.dataset.*clientz.*clients"),
        ({"partition": {"limit": {"train": 0}}}, r"runs.0.partition.*limit"),
        ({"partition": {"intern": []}}, r"runs.0.partition.*intern.*internal"),
        (
            {"inferences": [{"name": "source", "client": "client9"}]},
            r"runs.0.inferences: client: 'client9' is not an internal site",
        ),
    ],
)
def test_a_wrong_key_of_a_grid_is_named(tmp_path: Path, grid: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(tmp_path, runs=[{"algorithm": "fedavg", **grid}])


def test_folds_stand_for_a_run_each(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}]
    made = plan(
        tmp_path, runs=runs, partition={"internal": ["mnist", "svhn"], "external": ["usps"], "split": {"folds": 4}}
    )
    assert [p.title for p in made.partitions] == [f"usps, fold {k}" for k in (1, 2, 3, 4)]
    assert len({p.identity("d") for p in made.partitions}) == 4
    single = {"internal": ["mnist", "svhn"], "external": ["usps"], "split": {"folds": 4, "fold": 3}}
    assert plan(tmp_path, runs=runs, partition=single).partitions == [made.partitions[2]]


def test_folds_beside_another_partition_are_refused(tmp_path: Path) -> None:
    sites = {"internal": ["mnist", "svhn"], "external": ["usps"]}
    with pytest.raises(UserError, match="has folds, and the study has other data or partitions"):
        plan(
            tmp_path,
            runs=[{"algorithm": "fedavg"}],
            partition=[sites | {"split": {"folds": 4}}, sites | {"held_out": "whole"}],
        )


def test_a_grid_has_transforms_of_its_own(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "transforms": ["macenko", "flip"]}]
    usual, own = plan(tmp_path, runs=runs, seeds=[0], transforms=["scale_intensity"]).runs.values()
    assert [[t.name for t in run.transforms] for run in (usual, own)] == [["scale_intensity"], ["flip"]]
    assert [[t.name for t in run.data.prepare] for run in (usual, own)] == [[], ["macenko"]]
    assert (usual.data.id == own.data.id, usual.data.source == own.data.source) == (False, True)
