"""The key `norms` of a study: what it changes, what it leaves, and what `fedshift check` says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_grids import STUDY as GRIDS

from fedshift import study
from fedshift.cli.data import norms
from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.nn.policies import NORMS
from fedshift.study.plan import Plan
from fedshift.study.run import Run

STUDY: dict[str, Any] = {"title": "Norms"}
STUDY |= {key: GRIDS[key] for key in ("dataset", "partition", "model", "inferences")}
LOCAL = [{"algorithm": "fedavg", "bn": "local"}]


def plan(tmp_path: Path, **changes: Any) -> Plan:
    path = tmp_path / "norms.yaml"
    path.write_text(json.dumps(STUDY | changes), encoding="utf-8")
    return study.load(path, "paper")


def run_of(tmp_path: Path, **changes: Any) -> Run:
    return next(iter(plan(tmp_path, runs=changes.pop("runs", LOCAL), **changes).runs.values()))


def test_batch_norm_alone_is_the_study_as_it_was(tmp_path: Path) -> None:
    """The key at its default is part of neither the specification nor the identity."""
    usual, said = run_of(tmp_path), run_of(tmp_path, norms=["batch"])
    assert usual == said == run_of(tmp_path, norms="batch")
    assert "norms" not in usual.spec
    assert usual.norms == ("batch",)


def test_other_norms_are_another_run_that_is_read_again_from_its_specification(tmp_path: Path) -> None:
    every = run_of(tmp_path, norms="all")
    assert every.norms == NORMS
    assert every.id != run_of(tmp_path).id
    assert every.id == run_of(tmp_path, norms=["instance", "group", "layer", "batch"]).id
    assert registry.validated(Run, every.spec, "spec.json").id == every.id


def test_a_grid_has_norms_of_its_own(tmp_path: Path) -> None:
    made = plan(tmp_path, runs=[*LOCAL, LOCAL[0] | {"norms": "group"}], norms="layer")
    assert [run.norms for run in made.runs.values()] == [("layer",), ("group",)]


def test_unknown_norms_are_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"norms\.yaml\.norms: unknown type of norm 'bach'; did you mean 'batch'\?"):
        plan(tmp_path, runs=LOCAL, norms=["bach"])


@pytest.mark.parametrize(
    ("model", "asked", "bn", "words"),
    [
        ("mlp", "batch", "local", []),
        ({"name": "mlp", "norm": "group"}, "batch", "local", ["since the network has no batch-norm layer"]),
        ({"name": "mlp", "norm": "layer"}, "all", "local_statistics", ["since layer norm has no running statistics"]),
        ({"name": "mlp", "norm": "layer"}, "all", "aggregated", []),
        (
            {"name": "resnet20", "norm": "instance"},
            "all",
            "local",
            ["keeps 38 tensors of instance norm at home; they have no running statistics"],
        ),
        ({"name": "resnet20", "norm": "mixture"}, "batch", "local", []),
    ],
)
def test_check_says_what_a_policy_keeps(tmp_path: Path, model: Any, asked: Any, bn: str, words: list[str]) -> None:
    found = norms(plan(tmp_path, runs=[{"algorithm": "fedavg", "bn": bn}], model=model, norms=asked))
    assert len(found) == len(words)
    assert all(text in line and f"norms.yaml: bn: {bn!r}" in line for text, line in zip(words, found, strict=True))


def test_check_refuses_networks_that_cannot_be_built(tmp_path: Path) -> None:
    """Images of MNIST have 28x28 pixels: after two halvings and a stride of 4, one is left."""
    models = [{"name": "densenet_small", "norm": "instance"}, {"name": "mlp", "norm": "group", "groups": 7}]
    runs = [{"algorithm": ["fedavg", "fedprox"], "model": model} for model in models]
    with pytest.raises(UserErrors) as error:
        norms(plan(tmp_path, runs=runs))
    assert str(error.value).splitlines() == [
        "model densenet_small: takes images of at least 29x29 pixels, these have 28x28; resize them",
        "model mlp.groups: 7 groups do not divide 30 channels evenly; choose a number that divides all layers",
    ]
