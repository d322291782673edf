"""Lists of values in `training`: which trainings a search makes, what it is called, and which lists are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from predicting import complaint, load

from fedshift.cli import main
from fedshift.io.paths import Paths
from fedshift.planning.call import outputs
from fedshift.planning.plan import job_counts

TRAINING = {"rounds": 2, "batch_size": 8}
GRID: dict[str, Any] = {"training": {**TRAINING, "lr": [0.1, 0.01], "momentum": [0, 0.9]}}


def test_each_combination_is_a_training_and_one_run_counts(tmp_path: Path) -> None:
    plan = load(tmp_path, **GRID, seeds=[0, 1])
    tried = {(r.training.lr, r.training.momentum, r.seed) for r in plan.candidates.values()}
    assert tried == {(lr, m, seed) for lr in (0.1, 0.01) for m in (0, 0.9) for seed in (0, 1)}
    assert len(plan.runs) == 2 and plan.runs == plan.searches
    assert plan.trainings == plan.candidates and not plan.runs.keys() & plan.trainings.keys()
    for run in plan.runs.values():
        assert run.id.startswith("fedavg-local-search-")
        assert [one.seed for one in run.candidates.values()] == [run.seed] * 4
        assert list(run.tried().values())[:2] == [{"lr": 0.1, "momentum": 0.0}, {"lr": 0.1, "momentum": 0.9}]


def test_a_candidate_is_the_training_that_the_value_alone_would_make(tmp_path: Path) -> None:
    searched = load(tmp_path, training={**TRAINING, "lr": [0.1, 0.01]})
    single = [load(tmp_path, training={**TRAINING, "lr": lr}) for lr in (0.1, 0.01)]
    assert list(searched.candidates) == [key for plan in single for key in plan.runs]


def test_a_list_with_one_value_is_that_value(tmp_path: Path) -> None:
    assert load(tmp_path, training={**TRAINING, "lr": [0.1]}).runs == load(tmp_path).runs


def test_rule_and_values_are_part_of_the_id(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"search": "oracle"},
        {"training": {**TRAINING, "lr": [0.1, 0.02]}},
        {"training": {**TRAINING, "lr": [0.01, 0.1]}},
    ]
    base = {"training": {**TRAINING, "lr": [0.1, 0.01]}}
    assert len({key for change in changes for key in load(tmp_path, **base | change).runs}) == 4


def test_an_entry_of_runs_searches_alone_or_not(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "training": {"lr": 0.1}}]
    plan = load(tmp_path, runs=runs, training={**TRAINING, "lr": [0.1, 0.01]})
    assert [run.search is None for run in plan.runs.values()] == [False, True]
    assert len(plan.trainings) == 3 and len(plan.searches) == 1


def test_settings_show_all_values(tmp_path: Path) -> None:
    plan = load(tmp_path, **GRID)
    settings = next(iter(plan.runs.values())).settings
    assert (settings["training.lr"], settings["search"]) == ([0.1, 0.01], "validation")
    assert all("search" not in run.settings for run in plan.candidates.values())


def test_jobs_and_files_of_a_search_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = load(tmp_path, **GRID, search="oracle")
    jobs = job_counts({"tiny": plan})
    assert (jobs["train"], jobs["choose"], jobs["predict"]) == (4, 1, 5)  # the oracle looks at each training
    rules = [one.rule for one in outputs(plan, Paths(tmp_path))]
    assert (rules.count("train"), rules.count("choose"), rules.count("predict")) == (4, 1, 5)
    digits = {"dataset": "digits_five", "partition": {"internal": ["mnist", "usps"], "external": ["svhn"]}}
    plan = load(tmp_path, **GRID, **digits)
    main(["check", str(tmp_path / "tiny.yaml"), "--scale", "paper", "--ids"])
    out = capsys.readouterr().out
    assert "4 trainings in all" in out
    assert all(f"candidate {key}" in out for key in plan.candidates)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": {"lr": []}}, "training.lr: is an empty list"),
        ({"training": {"lr": [0.1, 0.1]}}, "training.lr: has a value twice"),
        ({"training": {"lr": [0.1, -1]}}, "training.lr"),
        (
            {"training": {"precision": ["float32", "bfloat16"]}},
            "training.precision: is a list, but this setting cannot be searched",
        ),
        ({"training": {"momentum": [0, 0.9], "optimiser": "adam"}}, "momentum: is a setting of sgd"),
        ({"training": {"lr": [0.1, 0.01], "select": "last"}}, "set select: best_validation"),
        ({"training": {"lr": [n / 1000 for n in range(1, 102)]}}, "make 101 combinations, more than 100"),
        ({"training": {"lr": [0.1, 0.01]}, "search": "test"}, "search: unknown value 'test'"),
        (
            {"training": {"lr": [0.1, 0.01]}, "search": "oracle", "runs": [{"algorithm": "local"}]},
            "an oracle chooses by results at external sites, and this run has none",
        ),
    ],
)
def test_lists_that_cannot_be_searched_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    assert words in complaint(tmp_path, **changes)


def test_a_list_of_class_weights_is_one_value(tmp_path: Path) -> None:
    plan = load(tmp_path, training={**TRAINING, "class_weights": [1, 2]})
    assert not plan.searches and next(iter(plan.runs.values())).training.class_weights == (1, 2)


def test_a_list_of_inferences_is_one_job(tmp_path: Path) -> None:
    plan = load(tmp_path, inferences=[["source", {"name": "tsmobn", "momentum": [0, 0.5]}], "t3a"])
    (job,) = plan.prediction_jobs.values()
    assert plan.sweeps == {job: tuple(plan.inferences)}
    assert len(plan.inferences) == 4
    assert "is an empty list" in complaint(tmp_path, inferences=[[]])


OPTIONS = {"algorithm": {"name": "fedprox", "mu": [0.01, 0.1, 1]}}


def test_settings_of_an_algorithm_are_searched_too(tmp_path: Path) -> None:
    plan = load(tmp_path, runs=[OPTIONS], training={**TRAINING, "lr": [0.1, 0.01]})
    (run,) = plan.runs.values()
    tried = list(run.tried().values())
    assert tried == [{"lr": lr, "algorithm.mu": mu} for lr in (0.1, 0.01) for mu in (0.01, 0.1, 1.0)]
    made = {(one.training.lr, one.algorithm.model_dump()["mu"]) for one in plan.candidates.values()}
    assert made == {(lr, mu) for lr in (0.1, 0.01) for mu in (0.01, 0.1, 1.0)}
    assert run.settings["algorithm.mu"] == [0.01, 0.1, 1.0]
    assert run.method == "fedprox(mu=chosen)"


def test_a_candidate_is_the_algorithm_that_the_value_alone_would_make(tmp_path: Path) -> None:
    searched = load(tmp_path, runs=[OPTIONS], training=TRAINING)
    single = [
        load(tmp_path, runs=[{"algorithm": {"name": "fedprox", "mu": mu}}], training=TRAINING) for mu in (0.01, 0.1, 1)
    ]
    assert list(searched.candidates) == [key for plan in single for key in plan.runs]
    one = load(tmp_path, runs=[{"algorithm": {"name": "fedprox", "mu": [0.1]}}], training=TRAINING)
    assert list(one.runs) == list(single[1].runs)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "fedprox", "form": ["squared", "norm"]}, "form: is a list, and a search varies numbers alone"),
        ({"name": "fedprox", "mu": [0.1, 0.1]}, "mu: has a value twice"),
        ({"name": "fedprox", "mu": []}, "mu: is an empty list"),
        ({"name": "fedprox", "mu": [0.1, -1]}, "mu: Input should be greater than or equal to 0"),
        ({"name": "moon", "projection_dim": [8, 16]}, "projection_dim: is a list, but this setting shapes the network"),
    ],
)
def test_lists_of_an_algorithm_that_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    assert words in complaint(tmp_path, runs=[{"algorithm": settings}], training=TRAINING)
