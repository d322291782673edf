"""Prediction: sweeps of inferences in one job, which networks predict which sites, and what a study's grid asks for."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from predicting import (
    EXTERNAL,
    INTERNAL,
    TINY,
    by_hand,
    complaint,
    images_of,
    load,
    predicted,
    state_of,
    trained,
)

import fedshift.jobs.predict
import fedshift.jobs.run_images
from fedshift.analysis import predictions, score
from fedshift.core.errors import UserError
from fedshift.inferences import Inference
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.paths import Paths
from fedshift.io.text import read_json, write_json
from fedshift.jobs.predict import predict
from fedshift.study import declaration
from fedshift.study.plan import Plan

SWEEP: dict[str, Any] = {"name": "tsmobn", "momentum": [0, 0.5, 0.9], "batch_size": [2, 4]}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    return trained(tmp_path_factory.mktemp("swept"), inferences=[SWEEP])


# ---- the network by hand


def check_by_hand(plan: Plan, paths: Paths, run: str, table: pd.DataFrame, inference: Inference) -> None:
    for site, part in table.groupby("site"):
        x = images_of(plan, paths, run, part)
        expected = by_hand(state_of(paths, run, inference.client or str(site)), x, inference)
        np.testing.assert_allclose(part[["p0", "p1"]].to_numpy(), expected, rtol=1e-3, atol=1e-5)


def test_a_run_whose_batch_norm_stayed_at_real_sites_says_so(tmp_path: Path) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": "fedbn"}])
    (run,) = plan.runs
    files = paths.run_files(run)
    tensors, about = read_tensors(files.model)
    stayed = sorted(name for name in tensors if "running_" in name)
    write_tensors(files.model, {k: v for k, v in tensors.items() if k not in stayed}, about)
    write_json(files.manifest, read_json(files.manifest) | {"stayed_at_sites": stayed})
    with pytest.raises(UserError, match=f"lacks {stayed[0]}, which stayed at the sites of its federation"):
        predict(files.folder, plan.inferences, paths, tmp_path / "out.parquet")


# ---- sweeps


def test_lists_of_settings_stand_for_an_inference_each_in_one_file(tmp_path: Path) -> None:
    plan = load(tmp_path, inferences=[SWEEP])
    found = [(i.name, i.momentum, i.batch_size) for i in plan.inferences.values() if isinstance(i, TsmoBN)]
    assert found == [("tsmobn", m, b) for m in (0.0, 0.5, 0.9) for b in (2, 4)]
    assert len(plan.inferences) == 6
    ((name, members),) = plan.sweeps.items()
    assert members == tuple(plan.inferences)
    assert plan.prediction_jobs == dict.fromkeys(plan.runs, name)


def test_a_sweep_gives_the_bits_of_single_predictions(swept: tuple[Plan, Paths]) -> None:
    plan, paths = swept
    (run,) = plan.runs
    together = predicted(plan, paths, run, *plan.inferences)
    assert list(together["inference"].unique()) == list(plan.inferences)
    assert not together.duplicated(["inference", "sample"]).any()
    for name in plan.inferences:
        alone = predicted(plan, paths, run, name)
        assert list(alone) == ["sample", "site", "role", "label", "p0", "p1"]
        mine = together[together["inference"] == name].drop(columns="inference").reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, alone, check_exact=True)


def test_each_inference_of_a_sweep_is_what_its_settings_say(swept: tuple[Plan, Paths]) -> None:
    plan, paths = swept
    (run,) = plan.runs
    table = predicted(plan, paths, run, *plan.inferences)
    for name, inference in plan.inferences.items():
        check_by_hand(plan, paths, run, table[table["inference"] == name], inference)
    wide = table.pivot(index="sample", columns="inference", values="p1")
    apart = [(wide[a] - wide[b]).abs().max() for a, b in itertools.combinations(wide, 2)]
    assert min(apart) > 1e-3, "and no two are the same"


@pytest.mark.parametrize("algorithm", ["fedbn", "local"])
def test_every_site_can_be_predicted_with_the_network_of_one_client(tmp_path: Path, algorithm: str) -> None:
    """FedTAN's figures 8 and 13: FedBN's and SingleNet's local models at all sites."""
    asked = ["source", {"name": "source", "client": INTERNAL}]
    plan, paths = trained(tmp_path, runs=[{"algorithm": algorithm}], inferences=asked)
    (run,) = plan.runs
    plain, *one = plan.inferences
    table = predicted(plan, paths, run, *plan.inferences)
    sites = {*INTERNAL, *(EXTERNAL if algorithm == "fedbn" else ())}
    for name in plan.inferences:
        assert set(table.loc[table["inference"] == name, "site"]) == sites
        check_by_hand(plan, paths, run, table[table["inference"] == name], plan.inferences[name])
    at_home = table.pivot(index=["site", "sample"], columns="inference", values="p1")
    for name, site in zip(one, INTERNAL, strict=True):
        same = (at_home[name] == at_home[plain]).groupby(level="site").all()
        assert same[same].index.tolist() == [site], "its own site, and no other, sees no difference"


def test_model_and_data_are_loaded_once(swept: tuple[Plan, Paths], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, paths = swept
    calls: Counter[str] = Counter()
    for name in ("initialise", "Prepared", "read_tensors"):
        module = fedshift.jobs.run_images if name == "Prepared" else fedshift.jobs.predict
        original = getattr(module, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Any:
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, counted)
    (run,) = plan.runs
    assert len(predicted(plan, paths, run, *plan.inferences)) > 0
    assert calls == {"initialise": 1, "Prepared": 1, "read_tensors": 2}


ALONE = [
    *({"name": "tsmobn", "momentum": 0, "batch_size": 2**k} for k in range(1, 10)),
    *({"name": "tsmobn", "momentum": k / 10} for k in range(10)),
    *({"name": "tsmobn", "order": k} for k in range(5)),
    {"name": "tsmobn", "affine": False},
]
LISTED = [
    {"name": "tsmobn", "momentum": 0, "batch_size": [2**k for k in range(1, 10)]},
    {"name": "tsmobn", "momentum": [k / 10 for k in range(10)]},
    {"name": "tsmobn", "order": list(range(5))},
    {"name": "tsmobn", "affine": [False]},
]
ABLATIONS = {
    *(("tsmobn", 0.0, 2**k, 0) for k in range(1, 10)),
    *(("tsmobn", k / 10, 32, 0) for k in range(10)),
    *(("tsmobn", 0.9, 32, k) for k in range(5)),
    ("tsmobn(affine=False)", 0.9, 32, 0),
}


@pytest.mark.parametrize("given", [ALONE, LISTED], ids=["one by one", "in lists"])
def test_ablations_are_told_apart_in_the_scores(tmp_path: Path, given: list[dict[str, Any]]) -> None:
    plan, paths = fake_study.build(tmp_path, inferences=given, seeds=[0])
    table = score.read_table(score.score(plan, paths))
    assert score.missing(plan, paths) == []
    columns = ["inference", "momentum", "batch_size", "order"]
    assert set(table[columns].itertuples(index=False, name=None)) == ABLATIONS
    assert not table.duplicated(["run", "site", "metric", *columns]).any()
    assert len(table) == 2 * 4 * 7 * len(ABLATIONS)  # runs, sites, metrics


def test_ablations_in_one_entry_are_all_combinations(tmp_path: Path) -> None:
    entry = {"name": "tsmobn", "affine": [True, False], "order": [None, 3], "var_center": ["updated", "batch"]}
    plan = load(tmp_path, inferences=[entry])
    found = [i.model_dump() for i in plan.inferences.values()]
    expected = itertools.product(*(entry[k] for k in ("affine", "order", "var_center")))
    assert [(f["affine"], f["order"], f["var_center"]) for f in found] == list(expected)
    told = predictions.inferences(plan).values()
    assert len({tuple(t.values()) for t in told}) == 8
    twice = load(tmp_path, inferences=[{"name": "tsmobn", "momentum": [0.9, 0.9]}])
    assert twice.sweeps == {"tsmobn": ("tsmobn",)}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "tsmobn", "momentum": []}, "inferences.1.momentum: is an empty list; give at least one value"),
        (
            {"name": "tsmobn", "momentum": [0, 1.5]},
            "inferences.1 (tsmobn).momentum: Input should be less than or equal to 1 (got 1.5)",
        ),
        (
            {"name": "tsmobn", "var_center": ["updated", "batsch"]},
            "inferences.1 (tsmobn).var_center: unknown value 'batsch'; did you mean 'batch'?",
        ),
        ({"name": "tsmobn", "oder": [0, 1]}, "inferences.1 (tsmobn).oder: unknown key 'oder'; did you mean 'order'?"),
        (
            {"name": "source", "personalise": {"steps": [1, 2]}},
            "inferences.1 (source).personalise.steps: Input should be a valid integer (got [1, 2])",
        ),
    ],
)
def test_what_is_wrong_with_a_list_is_one_line_that_names_the_key(
    tmp_path: Path, entry: dict[str, Any], said: str
) -> None:
    assert complaint(tmp_path, inferences=["source", entry]) == said


def test_an_inference_alone_and_in_a_sweep_is_predicted_once(tmp_path: Path) -> None:
    again = {"name": "tsmobn", "momentum": [0.9, 0.5]}
    plan, paths = fake_study.build(tmp_path, lambda *_: 0.9, inferences=["tsmobn", again], seeds=[0])
    for run in plan.runs:
        first, second = plan.predictions(run)
        assert first == "tsmobn" and second.startswith("tsmobn-")
    scores = score.read_table(score.score(plan, paths)).query("metric == 'accuracy'")
    assert scores["value"].tolist() == pytest.approx([0.9] * 2 * 4 * 2)  # runs, sites, inferences


# ---- inferences of some runs


def test_a_grid_asks_for_inferences_of_its_own(tmp_path: Path) -> None:
    runs = [
        {"algorithm": "fedavg", "bn": ["aggregated", "local"]},
        {"algorithm": "fedavg", "bn": "aggregated", "inferences": [SWEEP]},
        {"algorithm": "pooled", "inferences": ["population", "source"]},
        {"algorithm": "local", "inferences": ["source"]},
    ]
    plan = load(tmp_path, runs=runs, inferences=["source", "tsmobn"])
    unused = load(tmp_path, runs=[runs[3]], inferences=["tsmobn"])
    assert list(unused.inferences) == list(unused.sweeps) == ["source"]
    default = [(0.9, 32)]
    swept = [(m, b) for m in (0.0, 0.5, 0.9) for b in (2, 4)]
    wanted = {
        ("fedavg", "aggregated"): (["source", *["tsmobn"] * 7], default + swept),
        ("fedavg", "local"): (["source", "tsmobn"], default),
        ("pooled", "aggregated"): (["population", "source"], []),
        ("local", "local"): (["source"], []),
    }
    assert {(r.algorithm.name, r.bn) for r in plan.runs.values()} == wanted.keys()
    for key, run in plan.runs.items():
        found = plan.predictions(key)
        asked = [plan.inferences[name] for name in found]
        names, settings = wanted[run.algorithm.name, run.bn]
        assert [i.name for i in asked] == names
        assert [(i.momentum, i.batch_size) for i in asked if isinstance(i, TsmoBN)] == settings
        assert found == plan.sweeps[plan.prediction_jobs[key]]
    assert {*plan.prediction_jobs.values()} == plan.sweeps.keys()
    assert {name for members in plan.sweeps.values() for name in members} == plan.inferences.keys()


def test_inferences_of_some_runs_are_not_missed_in_others(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": "pooled", "inferences": ["source"]}]
    plan, paths = fake_study.build(tmp_path, runs=runs, seeds=[0])
    table = score.read_table(score.score(plan, paths))
    found = set(table[["algorithm", "inference"]].itertuples(index=False, name=None))
    assert found == {("fedavg", "source"), ("fedavg", "tsmobn"), ("pooled", "source")}
    assert score.missing(plan, paths) == []


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ([SWEEP], True),
        (["source", {"name": "tsmobn", "order": [None, 0, 1]}], True),
        ([{"name": "source", "personalise": {"source": "val", "steps": 2}}], True),
        ([{"name": "tsmobn", "momentum": []}], False),
        ([{"name": "tsmobn", "momentum": [0, 1.5]}], False),
        ([{"name": "tsmobn", "oder": [0]}], False),
        ([{"name": ["source", "tsmobn"]}], False),
    ],
)
def test_the_schema_knows_lists_of_settings(tmp_path: Path, given: list[Any], fits: bool) -> None:
    """An editor marks what the study refuses, in the study and in a grid of runs."""
    validator = pytest.importorskip("jsonschema").Draft202012Validator(declaration.schema())
    runs = [{"algorithm": "fedavg", "inferences": given}]
    for changes in ({"inferences": given}, {"runs": runs}):
        assert validator.is_valid(TINY | changes) == fits
        if not fits:
            assert complaint(tmp_path, **changes)
    assert not fits or load(tmp_path, runs=runs).inferences


# ---- runs


def test_a_run_with_an_addon_predicts_as_if_it_had_none(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "addon": [None, {"name": "jigen", "permutations": 5}]}]
    plan, paths = trained(tmp_path, runs=runs, inferences=["source", "tsmobn"])
    with_jigen = {key: run.addon is not None for key, run in plan.runs.items()}
    assert sorted(with_jigen.values()) == [False, True]
    answers = []
    for run, jigen in with_jigen.items():
        state = state_of(paths, run, "far")
        assert {name: state[name].shape for name in state if "jigsaw" in name} == (
            {"4.jigsaw_weight": (6, 6), "4.jigsaw_bias": (6,)} if jigen else {}
        )
        for name, inference in (("source", Source()), ("tsmobn", TsmoBN())):
            table = predicted(plan, paths, run, name)
            assert set(table["site"]) == {*INTERNAL, *EXTERNAL}
            check_by_hand(plan, paths, run, table, inference)
        answers.append(table["p1"].to_numpy())
    assert np.abs(answers[0] - answers[1]).max() > 1e-3, "but it was trained otherwise"


def test_clients_alone_predict_their_own_site_and_a_pooled_model_all(tmp_path: Path) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": ["local", "pooled"]}])
    for run, about in plan.runs.items():
        table = predicted(plan, paths, run, "source")
        alone = about.algorithm.name == "local"
        assert set(table["site"]) == ({*INTERNAL} if alone else {*INTERNAL, *EXTERNAL})
        assert set(table["role"]) == ({"internal"} if alone else {"internal", "external"})
        check_by_hand(plan, paths, run, table, Source())
        north, south = (state_of(paths, run, site) for site in INTERNAL)
        same = [np.array_equal(north[k], south[k]) for k in north if k != "2.num_batches_tracked"]
        assert same == [not alone] * len(same)
        out = paths.predictions(run, "source")
        predict(paths.run(run), {"source": Source()}, paths, out)
    scores = score.read_table(score.score(plan, paths))
    assert score.missing(plan, paths) == [], "external sites are not missed where there is no model for them"
    assert set(scores.query("algorithm == 'local'")["site"]) == {*INTERNAL}


def test_fedbn_is_the_run_of_fedavg_with_local_batch_norm(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedbn"}, {"algorithm": "fedavg", "bn": "local"}]
    named, spelt = (load(tmp_path, runs=[grid]).runs for grid in runs)
    assert named.keys() == spelt.keys()
    both = load(tmp_path, runs=[{**runs[0], "inferences": ["tsmobn"]}, runs[1]])
    assert both.runs.keys() == named.keys()
    assert list(map(both.predictions, both.runs)) == [("tsmobn", "source")], (
        "one training, predicted as either asks for"
    )


def test_each_algorithm_has_its_own_default_of_batch_norm(tmp_path: Path) -> None:
    runs = load(tmp_path, runs=[{"algorithm": ["fedavg", "fedbn", "silobn", "local", "pooled"]}]).runs
    assert [(r.algorithm.name, r.bn) for r in runs.values()] == [
        ("fedavg", "aggregated"),
        ("fedavg", "local"),
        ("fedavg", "local_statistics"),
        ("local", "local"),
        ("pooled", "aggregated"),
    ]


@pytest.mark.parametrize(
    ("algorithm", "bn"), [("fedtan", "local"), ("fedbn", "aggregated"), ("silobn", "local"), ("local", "aggregated")]
)
def test_batch_norm_without_meaning_is_an_error_that_names_the_run(tmp_path: Path, algorithm: str, bn: str) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": ["fedavg", algorithm], "bn": bn}]
    said = complaint(tmp_path, runs=runs)
    assert said.startswith(f"runs.1.bn: '{bn}' has no meaning with {algorithm}: ")
    assert len(said.splitlines()) == 1


def test_no_addon_is_one_of_several(tmp_path: Path) -> None:
    runs = load(tmp_path, runs=[{"algorithm": "fedavg", "addon": [None, "jigen"]}]).runs
    assert [r.addon and r.addon.name for r in runs.values()] == [None, "jigen"]
    assert len(load(tmp_path, runs=[{"algorithm": "fedavg"}]).runs.keys() & runs.keys()) == 1


def test_sites_without_test_images_are_passed_over(tmp_path: Path) -> None:
    """Nothing is predicted there, and nothing adapted to: TsmoBN's studies test external sites alone."""
    split = {"train": 0.7, "val": 0.3, "test": 0}
    personal = {"name": "source", "personalise": {"source": "test_included", "batch_size": 4}}
    partition = {"internal": INTERNAL, "external": EXTERNAL, "split": split}
    plan, paths = trained(tmp_path, partition=partition, inferences=["source", personal])
    (run,) = plan.runs
    assert set(predicted(plan, paths, run, *plan.inferences)["site"]) == set(EXTERNAL)
