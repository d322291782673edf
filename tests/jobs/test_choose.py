"""The choice of a search: which training wins by each rule, what is written, and what the page says about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_study
import pytest
from searched_study import trained

from fedshift.analysis import score, study_results
from fedshift.core.errors import UserError
from fedshift.io import checksums
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table
from fedshift.io.text import read_json, write_json
from fedshift.jobs.choose import choice, choose, oracle
from fedshift.page import page, summary
from fedshift.study.plan import Plan
from fedshift.study.run import Run

SETTINGS: dict[str, Any] = {
    "training": {"rounds": 4, "lr": [0.3, 0.2, 0.1]},
    "runs": [{"algorithm": "fedavg"}],
    "seeds": [0, 1],
    "figures": [],
    "control": False,
}


def chosen(plan: Plan, paths: Paths) -> list[float]:
    """Return the learning rate of each searched run's spec.json."""
    return [read_json(paths.run_files(key).spec)["training"]["lr"] for key in plan.searches]


def test_the_best_validation_value_wins_seed_by_seed(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SETTINGS)
    trained(plan, paths, {0: [0.5, 0.9, 0.6], 1: [0.7, None, 0.7]})
    for run in plan.searches.values():
        choose(run, paths)
        files = paths.run_files(run.id)
        record = choice(files.manifest, read_json(files.manifest))
        assert record is not None
        source = paths.run_files(record.chosen)
        for file in files.trained[:-1]:
            assert file.read_bytes() == (source.folder / file.name).read_bytes()
        assert all(checksums.recorded(file) and not checksums.damage(file) for file in files.trained)
        assert [one.values for one in record.candidates] == [{"lr": 0.3}, {"lr": 0.2}, {"lr": 0.1}]
        manifest = read_json(files.manifest)
        assert (manifest["run"], manifest["seed"]) == (run.id, run.seed)
    assert chosen(plan, paths) == [0.2, 0.3]  # of equal values the first


def test_the_lowest_loss_wins(tmp_path: Path) -> None:
    training = {**SETTINGS["training"], "select_by": "loss"}
    plan, paths = fake_study.build(tmp_path, **SETTINGS | {"training": training})
    trained(plan, paths, {0: [0.5, 0.9, 0.6], 1: [0.7, None, 0.4]})
    for run in plan.searches.values():
        choose(run, paths)
    assert chosen(plan, paths) == [0.3, 0.1]


def test_an_oracle_looks_at_external_sites_alone(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SETTINGS, search="oracle")
    trained(plan, paths, {0: [0.9, 0.8, 0.7], 1: [0.9, 0.8, 0.7]})
    table = fake_study.samples(plan)
    roles = dict.fromkeys(fake_study.INTERNAL, "internal") | dict.fromkeys(fake_study.EXTERNAL, "external")
    table = table.assign(role=table["site"].map(roles))

    def share_right(run: Run, inference: str, site: str, role: str) -> float:
        outside = {0.3: 0.5, 0.2: 0.5, 0.1: 0.6}[run.training.lr]
        return outside if role == "external" else run.training.lr + 0.6  # inside, the largest rate is best

    for run in plan.searches.values():
        for key, candidate in run.candidates.items():
            predicted = fake_study.predict(table, candidate, "source", share_right).assign(split="test")
            write_table(paths.predictions(key, plan.oracles[key]), predicted)
        choose(run, paths, oracle("accuracy", plan.oracles[key], {"source": plan.inferences["source"]}))
        record = choice(paths.run_files(run.id).manifest, read_json(paths.run_files(run.id).manifest))
        assert record is not None and [one.score for one in record.candidates] == [0.5, 0.5, 0.6]
    assert chosen(plan, paths) == [0.1, 0.1]


def test_no_value_at_all_is_refused(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SETTINGS)
    trained(plan, paths, {0: [None] * 3, 1: [0.5] * 3})
    run = next(iter(plan.searches.values()))
    with pytest.raises(UserError, match="no candidate of the search has a value of accuracy"):
        choose(run, paths)
    assert checksums.recorded(paths.run_files(run.id).model) is False


@pytest.mark.parametrize(
    "wrong",
    [
        {"chosen": "another"},
        {"candidates": [3]},
        {"candidates": []},
        {"metric": 7},
        {"candidates": [{"run": "a", "values": {"lr": 1}, "seconds": "long"}], "chosen": "a"},
    ],
)
def test_a_wrong_record_is_refused(wrong: dict[str, Any]) -> None:
    record = {
        "metric": "accuracy",
        "inference": None,
        "chosen": "a",
        "candidates": [{"run": "a", "values": {"lr": 0.1}, "score": 0.5, "seconds": 1.0}],
    }
    path = Path("manifest.json")
    assert choice(path, {}) is None and choice(path, {"search": record}) is not None
    with pytest.raises(UserError, match=r"manifest\.json: "):
        choice(path, {"search": record | wrong})


def shown(root: Path, **changes: Any) -> str:
    plan, paths = fake_study.build(root, **SETTINGS | changes)
    trained(plan, paths, {0: [0.5, 0.9, 0.6], 1: [0.7, 0.61, 0.62]})
    for run in plan.searches.values():
        if plan.oracles:
            write_json(
                paths.run_files(run.id).manifest,
                fake_study.manifest(run)
                | {
                    "search": {
                        "metric": "accuracy",
                        "inference": "source",
                        "chosen": next(iter(run.candidates)),
                        "candidates": [
                            {"run": key, "values": values, "score": 0.5, "seconds": 1.0}
                            for key, values in run.tried().items()
                        ],
                    }
                },
            )
        else:
            choose(run, paths)
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    text = page.write(study_results.load(plan, paths)).read_text()
    assert study_results.load(plan, paths).manifests.keys() == plan.runs.keys()
    return text


def test_the_page_says_what_was_tried_and_what_was_chosen(tmp_path: Path) -> None:
    text = shown(tmp_path)
    assert "6 trainings were made for 2 runs, with several values of lr" in text
    assert "Test images and external sites play no part" in text
    assert "lr 0.3: 50.0; lr 0.2: 90.0; lr 0.1: 60.0" in text
    assert "a value beyond it may be better" in text  # seed 1 chose 0.3, the highest
    assert "oracle" not in text


def test_the_page_and_the_index_warn_of_an_oracle_first(tmp_path: Path) -> None:
    text = shown(tmp_path, search="oracle")
    assert "upper bounds, and no results" in text.split('id="answer"')[0]
    headline = json.loads((tmp_path / "results/studies/fake/headline.json").read_text())
    assert headline["lead"].startswith("Settings were chosen by an oracle")
