"""Selectors: which conditions of a plan they mean, and what is said of one that means nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pytest

from fedshift.analysis.conditions import Cell, Finder
from fedshift.core.errors import UserError, UserErrors
from fedshift.core.registry import validated
from fedshift.nn.policies import NORMS
from fedshift.study.published import Published, checked, merged

RUNS = [
    {"algorithm": ["fedavg", "fedbn", {"name": "fedprox", "mu": 0.01}]},
    {"algorithm": "fedavg", "addon": "jigen"},
    {"algorithm": "fedavg", "training": {"local_epochs": 4}},
]


def found(root: Path, selector: dict[str, Any], **changes: Any) -> list[Cell]:
    plan = fake_study.plan(root, **({"runs": RUNS} | changes))
    return Finder(plan).cells(checked(selector))


def names(cells: list[Cell]) -> set[tuple[str, str, str, int]]:
    runs = [c.condition.run for c in cells]
    return {(r.algorithm.name, r.bn, r.addon.name if r.addon else "", r.training.local_epochs) for r in runs}


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        ({"algorithm": "fedbn"}, {("fedavg", "local", "", 1)}),
        ({"algorithm": "fedavg"}, {("fedavg", "aggregated", "", 1), ("fedavg", "aggregated", "", 4)}),
        ({"algorithm": "fedavg", "training.local_epochs": "4"}, {("fedavg", "aggregated", "", 4)}),
        ({"algorithm": "fedavg", "bn": "local"}, {("fedavg", "local", "", 1)}),
        ({"algorithm": {"name": "fedprox", "mu": "1e-2"}}, {("fedprox", "aggregated", "", 1)}),
        ({"algorithm": {"name": "fedprox", "mu": 0.1}}, set()),
        ({"addon": "jigen"}, {("fedavg", "aggregated", "jigen", 1)}),
        ({"addon": None, "bn": "local"}, {("fedavg", "local", "", 1)}),
        ({"model": "mlp", "bn": "local"}, {("fedavg", "local", "", 1)}),
        ({"held_out": "nowhere"}, set()),
    ],
)
def test_what_a_selector_means(tmp_path: Path, selector: dict[str, Any], meant: set[Any]) -> None:
    assert names(found(tmp_path, selector)) == meant


def test_seeds_are_one_condition_and_sites_have_roles(tmp_path: Path) -> None:
    cells = found(tmp_path, {"algorithm": "fedbn", "role": "external"})
    assert [c.site for c in cells] == ["centre1", fake_study.EVIL]
    assert all(len(c.condition.runs) == 3 for c in cells)
    assert {c.inference for c in cells} == {"source"}, "where none is named"


def test_types_of_norms_tell_conditions_apart(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedbn"}, {"algorithm": "fedbn", "norms": "all"}]
    kept = [{c.condition.run.norms for c in found(tmp_path, {"norms": norms}, runs=runs)} for norms in ("batch", "all")]
    assert kept == [{("batch",)}, {NORMS}]
    with pytest.raises(UserErrors, match=r"unknown type of norm 'bach'; did you mean 'batch'\?"):
        checked({"norms": ["bach"]})


def test_of_a_sweep_the_default_is_meant(tmp_path: Path) -> None:
    sweep = ["source", {"name": "tsmobn", "momentum": [0.5, 0.9]}]
    plain = {c.inference for c in found(tmp_path, {"inference": "tsmobn", "bn": "local"}, inferences=sweep)}
    assert plain == {"tsmobn"}
    given = {"inference": {"name": "tsmobn", "momentum": 0.5}, "bn": "local"}
    (other,) = {c.inference for c in found(tmp_path, given, inferences=sweep)}
    assert other.startswith("tsmobn-")


def test_training_alone_has_no_external_cells(tmp_path: Path) -> None:
    cells = found(tmp_path, {"algorithm": "local"}, runs=[{"algorithm": "local"}])
    assert {c.role for c in cells} == {"internal"}


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        ({"algoritm": "fedavg"}, "algoritm: unknown key 'algoritm'; did you mean 'algorithm'?"),
        ({"training.local_epoch": 4}, "unknown setting 'local_epoch'; did you mean 'local_epochs'?"),
        ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        ({"algorithm": {"name": "fedprox", "nu": 1}}, "unknown setting 'nu'; known: form, mu,"),
        ({"algorithm": {"name": "fedprox", "mu": "much"}}, "unable to parse string as a number (got 'much')"),
        ({"bn": "locl"}, "unknown value 'locl'; did you mean 'local'?"),
        ({"site": 5}, "must be a name (got 5)"),
        ({"inference": ["source"]}, "must be a name, or a mapping with the key 'name'"),
    ],
)
def test_a_wrong_selector_is_told_where_it_stands(selector: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        validated(Published, {"tables": ["t"], "words": {"FedX": selector}}, "study.yaml.published")
    assert str(caught.value).startswith("study.yaml.published.words.FedX.")
    assert said in str(caught.value)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    assert merged([{"algorithm": {"name": "fedprox"}}, {"algorithm": {"name": "fedprox", "mu": 1}}]) == {
        "algorithm": {"name": "fedprox", "mu": 1}
    }
    with pytest.raises(UserError, match="algorithm: is both 'fedprox' and 'fedavg'"):
        merged([{"algorithm": {"name": "fedprox"}}, {"algorithm": {"name": "fedavg"}}])
    with pytest.raises(UserError, match="bn: is both 'local' and 'aggregated'"):
        merged([{"bn": "local"}, {"bn": "aggregated"}])
    with pytest.raises(UserError, match="'aggregated' has no meaning with fedbn"):
        found(tmp_path, {"algorithm": "fedbn", "bn": "aggregated"})


def test_a_setting_that_no_run_has(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.depth: no run of the study has this setting"):
        found(tmp_path, {"model.depth": 3})
