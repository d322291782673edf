"""Ids of conditions and inferences: what shares one, what does not, and the way from words to ids and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fake_study
import pandas as pd
import pytest
from scored_study import summarised

from fedshift.analysis import score, study_results
from fedshift.analysis.conditions import ALL, CONDITION, conditions, several
from fedshift.analysis.numbers import Names
from fedshift.io.paths import IDS, INFERENCE, LEVELS

SWEEP: list[Any] = [
    "source",
    {"name": "source", "batch_size": 64},
    {"name": "source", "personalise": {"source": "val"}},
    {"name": "tsmobn", "momentum": [0, 0.5, 0.9], "batch_size": [8, 32], "order": [0, 3]},
    {"name": "tsmobn", "affine": False},
]
TWO = [
    {"internal": ["centre0"], "external": ["centre1"], "held_out": "one"},
    {"internal": ["centre3"], "external": ["centre1"], "held_out": "two"},
]


def test_a_condition_is_all_its_seeds_and_nothing_else(tmp_path: Path) -> None:
    runs = [{"algorithm": ["fedavg", "fedbn"]}, {"algorithm": "fedavg", "training": {"lr": 0.5}}]
    found = conditions(fake_study.plan(tmp_path, runs=runs))
    assert [sorted(run.seed for run in one.runs.values()) for one in found.values()] == [[0, 1, 2]] * 3
    assert list(found) == [one.id for one in found.values()]
    assert all(re.fullmatch(r"fedavg-(aggregated|local)-[0-9a-f]{10}", key) for key in found)
    assert not set(found) & {name for one in found.values() for name in one.runs}


def test_the_id_depends_on_the_settings_only(tmp_path: Path) -> None:
    """Another title, other seeds and other conditions beside it leave it as it is; a learning rate does not."""
    (one,) = conditions(fake_study.plan(tmp_path, runs=[{"algorithm": "fedavg"}]))
    more = fake_study.plan(tmp_path, runs=[{"algorithm": ["fedprox", "fedavg"]}], seeds=[7], title="Another")
    assert one in conditions(more)
    assert one not in conditions(fake_study.plan(tmp_path, runs=[{"algorithm": "fedavg"}], training={"lr": 0.5}))


def test_seeds_that_do_not_overlap_make_no_single_condition_of_two(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "seeds": [0]}, {"algorithm": "fedavg", "seeds": [1], "training": {"lr": 0.5}}]
    found = conditions(fake_study.plan(tmp_path, runs=runs)).values()
    assert [one.algorithm for one in found] == ["fedavg [lr=0.01]", "fedavg [lr=0.5]"]
    assert [len(one.runs) for one in found] == [1, 1]


def test_conditions_of_a_family_differ_in_their_partition(tmp_path: Path) -> None:
    found = list(conditions(fake_study.plan(tmp_path, partition=TWO)).values())
    assert several(found)
    assert len({one.id for one in found}) == 4
    families = {(one.bn, one.family) for one in found}
    assert len(families) == len({family for _, family in families}) == 2
    assert not {one.family for one in found} & {one.id for one in found}


@pytest.mark.parametrize("partition", [TWO, TWO[:1]], ids=["two", "one"])
def test_words_lead_to_ids_and_back(tmp_path: Path, partition: Any) -> None:
    """Words are those of scores.csv as it is read, for settings that have a column and for those that have none."""
    plan, paths = fake_study.build(
        tmp_path, lambda *_: 0.8, partition=partition, inferences=SWEEP, seeds=[0, 1], metrics=["accuracy"]
    )
    written = score.read_table(score.score(plan, paths))
    names = Names(plan)
    scores = names.identified(written)
    assert len(scores) == len(written)
    assert not scores.duplicated([*LEVELS, "seed"]).any()
    assert set(scores["inference_id"]) == set(plan.inferences)
    assert scores["condition_id"].tolist() == [plan.runs[run].condition for run in scores["run"]]
    described = names.described(scores[[*IDS, "value"]])
    pd.testing.assert_frame_equal(described[[*CONDITION, *INFERENCE]], written[[*CONDITION, *INFERENCE]])


def test_rows_of_another_study_are_left_out(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    written = score.read_table(score.score(plan, paths))
    fewer = fake_study.plan(tmp_path, runs=[{"algorithm": "fedavg", "bn": "local"}], inferences=["tsmobn"])
    scores = Names(fewer).identified(written)
    assert set(scores["run"]) == set(fewer.runs)
    assert set(scores["inference_id"]) == {"tsmobn"}
    assert len(scores) == len(written) / 4


def test_the_mean_over_partitions_has_the_id_of_the_family(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, partition=TWO)
    found = study_results.load(plan, paths)
    means = found.table("effects")["held_out"] == ALL
    assert set(found.table("effects").loc[means, "condition_id"]) == {one.family for one in found.findings.conditions}
    assert set(found.table("effects").loc[~means, "condition_id"]) == {one.id for one in found.findings.conditions}
    for table in (found.table("summary"), found.table("effects")):
        assert not table.duplicated([*LEVELS, *(["quantity"] if "quantity" in table else [])]).any()
