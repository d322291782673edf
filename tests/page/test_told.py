"""Edge cases of studies, scores and pages: what is refused, distinguished, preferred and left in doubt."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
import torch
from predicting import complaint, load, predicted, trained
from scored_study import results_of
from torch import nn

from fedshift.analysis import score, study_results
from fedshift.analysis.conditions import conditions
from fedshift.analysis.findings import LABELS, Findings
from fedshift.analysis.values import DASH
from fedshift.cli import main
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.samples import TensorSamples
from fedshift.inferences import Personalise
from fedshift.io.paths import INFERENCE, Paths
from fedshift.io.text import write_json
from fedshift.page import history
from fedshift.page.answer import answer
from fedshift.page.summary import overview, sites_on_page
from fedshift.study.plan import Plan

POPULATION: dict[str, Any] = {"name": "population", "personalise": {"source": "test_excluded"}}
NB = "\N{NO-BREAK SPACE}"
PERSONAL: dict[str, Any] = {"name": "source", "personalise": {}}


def rights(**shares: float) -> Any:
    """So many right answers under each inference outside; 0.9 inside."""
    return lambda run, inference, site, role: 0.9 if role == "internal" else shares[inference]


def scored(root: Path, share_right: Any = fake_study.helps, **changes: Any) -> tuple[Findings, Plan, Paths]:
    found = results_of(root, share_right, **changes)
    return found.findings, found.plan, found.paths


# ---- settings without meaning

MEANINGLESS: list[dict[str, Any]] = [
    {"algorithm": "fedtan", "bn": "local"},
    {"algorithm": "fedavg"},
    {"algorithm": ["fedprox", "scaffold"], "training": {"momentum": 0.9}},
    {"algorithm": {"name": "fedtan2", "exchange_rounds": 50}},
    {"algorithm": ["pooled", "local"], "bn": "local_affine", "addon": [None, "csd"]},
]


def test_everything_meaningless_is_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserErrors) as caught:
        load(tmp_path, runs=MEANINGLESS, seeds=[0, 1])
    path = tmp_path / "tiny.yaml"
    wanted = [
        f"{path}.runs.0.bn",
        f"{path}.runs.2.training.momentum",
        f"{path}.runs.3.algorithm (fedtan2).exchange_rounds",
        f"{path}.runs.4.bn",
        f"{path}.runs.4.bn",
    ]
    assert [e.where for e in caught.value.errors] == wanted
    assert len(set(map(str, caught.value.errors))) == len(wanted)
    capsys.readouterr()
    assert main(["check", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    for place in set(wanted):
        assert sum(line.startswith(f"{place}: ") for line in lines) == wanted.count(place)


def test_a_fault_that_has_nothing_to_do_with_bn_is_one_line_for_all_policies(tmp_path: Path) -> None:
    runs = [{"algorithm": "scaffold", "bn": ["aggregated", "local"], "training": {"momentum": 0.9}}]
    assert len(complaint(tmp_path, runs=runs).splitlines()) == 1


@pytest.mark.parametrize("given", [[["source", "tsmobn"]], ["source", [{"name": "tsmobn", "momentum": [0, 0.5]}]], []])
def test_lists_of_inferences_that_are_empty_or_too_deep_are_one_line(tmp_path: Path, given: list[Any]) -> None:
    said = complaint(tmp_path, inferences=["source", given])
    assert said.startswith("inferences.1: is an empty list, or a list of lists of lists; ")
    assert len(said.splitlines()) == 1
    assert complaint(tmp_path, runs=[{"algorithm": "fedavg", "inferences": [given]}]).startswith("runs.0.inferences.0:")


@pytest.mark.parametrize("place", ["study", "grid"])
def test_the_order_of_a_list_of_settings_names_no_other_job(tmp_path: Path, place: str) -> None:
    def jobs(momenta: list[float], sizes: list[int]) -> tuple[list[str], set[str]]:
        asked = [{"name": "tsmobn", "momentum": momenta, "batch_size": sizes}]
        runs: list[dict[str, Any]] = [{"algorithm": "fedavg"}]
        changes = {"inferences": asked} if place == "study" else {"runs": [runs[0] | {"inferences": asked}]}
        plan = load(tmp_path, **({"runs": runs} | changes))
        return list(plan.sweeps), set(plan.inferences)

    one = jobs([0, 0.5, 0.9], [2, 4])
    assert len(one[0]) == 1
    assert len(one[1]) == 6
    assert jobs([0.9, 0, 0.5], [4, 2]) == one
    assert jobs([0.9, 0, 0.4], [4, 2])[0] != one[0]


# ---- the lead of the page


@pytest.mark.parametrize("unasked", ["grid", "study"])
def test_without_the_baseline_the_lead_tells_of_what_was_asked(tmp_path: Path, unasked: str) -> None:
    """Levels of 90 and 70 percent, under the name of the inference; no change, and no gap to recover.

    The first federated condition leads, so it is the one of two grids that is asked without the baseline.
    """
    asked: dict[str, Any] = {"inferences": ["population"]}
    if unasked == "grid":
        grids = [{"algorithm": "pooled"}, {"algorithm": "fedavg", "inferences": ["population"]}]
        asked = {"runs": grids, "inferences": ["source"]}
    found, *_ = scored(tmp_path, rights(population=0.7, source=0.6), **asked)
    told = answer(found)
    assert "Accuracy 90.0 ± 0.0 % at internal sites and 70.0 ± 0.0 % at external sites" in unspaced(told.lead)
    assert "with Population" in told.lead
    assert "has been scored" not in told.lead
    assert [unspaced(tile.value) for tile in told.tiles[:2]] == ["90.0 %", "70.0 %"]
    assert all("Population" in tile.label for tile in told.tiles)


def test_without_the_baseline_no_number_is_there_twice(tmp_path: Path) -> None:
    grids = [{"algorithm": "pooled", "inferences": ["population"]}, {"algorithm": "fedavg"}]
    found, *_ = scored(tmp_path, rights(population=0.7, source=0.6), runs=grids, inferences=["source"])
    labels = [tile.label for tile in answer(found).tiles]
    assert labels == list(dict.fromkeys(labels))


def unspaced(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("given", [["source", POPULATION, "tsmobn"], ["source", "tsmobn", POPULATION]])
def test_the_lead_prefers_what_needs_no_labels(tmp_path: Path, given: list[Any]) -> None:
    found, *_ = scored(tmp_path, rights(source=0.6, tsmobn=0.8, population=0.9), inferences=given)
    told = answer(found)
    for text in (told.lead, *told.others):
        assert "TsmoBN" in text
        assert LABELS not in text
    assert not any(LABELS in tile.label for tile in told.tiles)


@pytest.mark.parametrize("given", [[POPULATION, "tsmobn"], ["tsmobn", POPULATION]])
def test_without_the_baseline_too(tmp_path: Path, given: list[Any]) -> None:
    told = answer(scored(tmp_path, rights(tsmobn=0.8, population=0.9), inferences=given)[0])
    assert "with TsmoBN" in told.lead
    assert LABELS not in told.lead


@pytest.mark.parametrize("seeds", [[0], [0, 1, 2]])
@pytest.mark.parametrize(("patients", "cell"), [(6, "gap in doubt"), (30, "+0.200")])
def test_a_gap_without_interval_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patients: int, cell: str, seeds: list[int]
) -> None:
    """Of 6 patients two are tested at home, of 30 six. Seeds that agree do not take the place of patients."""
    monkeypatch.setattr(fake_study, "PATIENTS", patients)
    found, *_ = scored(tmp_path, rights(source=0.6, tsmobn=0.8), headline="auc", seeds=seeds)
    rows = {(row[0], row[1]): row[-1] for row in overview(found).rows}
    assert len(rows) == 4
    assert {v.split(NB)[0] for (_, how), v in rows.items() if how == "TsmoBN"} == {cell}
    assert {v for (_, how), v in rows.items() if how == "Source"} == {DASH}
    few = "no interval can be given (too few test patients of a class at centre0 and centre3)"
    assert (few in answer(found).lead) == (patients == 6)
    assert ("recovers 0.200 of the external loss" in answer(found).lead) == (patients == 30)


# ---- labels of a site


def one_left(table: pd.DataFrame) -> pd.DataFrame:
    """The external site has a single image."""
    return table[(table["site"] != "far") | (table["sample"] == "far/0/0")]


@pytest.mark.parametrize(
    ("how", "change", "site", "words"),
    [
        ({"batch_size": 20}, None, "north", "all 20 test images would be adapted to, and none left to score"),
        ({"batch_size": 2}, one_left, "far", "has 1 labelled images to adapt to"),
    ],
)
def test_too_few_images_to_adapt_to_are_one_line_that_names_the_site(
    tmp_path: Path, how: dict[str, Any], change: Any, site: str, words: str
) -> None:
    asked = {"name": "source", "personalise": {"source": "test_excluded"} | how}
    plan, paths = trained(tmp_path, inferences=[asked], change=change)
    (run,), (name,) = plan.runs, plan.inferences
    with pytest.raises(UserError) as caught:
        predicted(plan, paths, run, name)
    assert caught.value.where == f"site {site!r}"
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not (paths.root / "predictions.parquet").exists()


def test_all_but_one_test_image_may_be_adapted_to(tmp_path: Path) -> None:
    asked = {"name": "source", "personalise": {"source": "test_excluded", "batch_size": 19}}
    plan, paths = trained(tmp_path, inferences=[asked])
    table = predicted(plan, paths, *plan.runs, *plan.inferences)
    left = table[~table["adapted"].astype(bool)]["site"].value_counts().to_dict()
    assert left == {"north": 1, "south": 1, "far": 41}


def test_one_labelled_image_is_refused_before_the_model_is_touched() -> None:
    model = nn.Linear(3, 2)
    before, one = model.weight.detach().clone(), TensorSamples(torch.ones(1, 3), torch.zeros(1))
    with pytest.raises(
        UserError, match=r"^site 'far': has 1 labelled images to adapt to, fewer than 2; leave personalise out$"
    ):
        Personalise().adapt(model, one, TensorSamples(torch.ones(0, 3), torch.zeros(0)), "far")
    assert torch.equal(model.weight, before)


def test_inferences_that_differ_in_the_seed_of_the_draw_are_told_apart(tmp_path: Path) -> None:
    given = [{"name": "source", "personalise": [None, {"seed": 0}, {"seed": 1}, {"seed": 0, "steps": 2}]}]
    found, plan, paths = scored(tmp_path, lambda *_: 0.9, inferences=given, seeds=[0])
    assert len(plan.inferences) == 4
    names = [found.name(key) for key in plan.inferences]
    assert len(set(names)) == 4
    assert "seed 0" in names[1]
    assert "seed 1" in names[2]
    table = score.read_table(paths.study(plan.name) / "scores.csv")
    assert table["inference"].nunique() == 4
    assert not table.duplicated(["run", "site", "metric", *INFERENCE]).any()


def test_labels_are_told_in_full_where_all_settings_are_the_default(tmp_path: Path) -> None:
    _, plan, paths = scored(tmp_path, lambda *_: 0.9, inferences=["source", PERSONAL], seeds=[0])
    table = score.read_table(paths.study(plan.name) / "scores.csv")
    plain, told = sorted(table["inference"].unique())
    assert plain == "source"
    assert told.startswith("source(personalise={")
    settings = ast.literal_eval(told.removeprefix("source(personalise=").removesuffix(")"))
    assert settings == {"source": "val", "steps": 1, "batch_size": 32, "lr": 0.01, "seed": 0}


def test_nothing_of_the_loss_is_recovered_by_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 30)
    given = ["source", "tsmobn", POPULATION]
    share_right = rights(source=0.6, tsmobn=0.8, population=0.9)
    found, *_ = scored(tmp_path, share_right, inferences=given, headline="auc")
    rows = [(row[1], row[-1]) for row in overview(found).rows]
    assert len(rows) == 6
    assert {cell for name, cell in rows if LABELS in name} == {DASH}
    assert {cell for name, cell in rows if name == "TsmoBN"} == {f"+0.200{NB}±{NB}0.000"}


# ---- conditions, and the code behind them

VERSIONS = "The runs were trained by different versions of the training code; see Provenance."


@pytest.mark.parametrize(
    ("which", "told"),
    [
        (lambda run: run.seed == 1, True),
        (lambda run: run.bn == "local" and run.seed == 0, True),
        (lambda run: run.algorithm.name == "fedprox", False),
        (lambda run: run.algorithm.name == "fedprox" and run.seed == 0, True),
        (lambda run: True, False),
    ],
)
def test_code_differs_only_among_runs_with_the_same_plug_ins(tmp_path: Path, which: Any, told: bool) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}, {"algorithm": "fedprox"}]
    found, plan, paths = scored(tmp_path, runs=runs, seeds=[0, 1])
    for run in filter(which, plan.runs.values()):
        write_json(paths.run(run.id) / "manifest.json", fake_study.manifest(run) | {"code": "ba9876543210"})
    done = history.trained(study_results.load(plan, paths))
    assert len(done) == 6
    assert (VERSIONS in list(history.caveats(found, done))) is told


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            [{"model": {"name": "mlp", "hidden": 6}}, {"model": "mlp"}],
            {"fedavg [model.hidden=6]", "fedavg [model.hidden=30]"},
        ),
        (
            [{"model": "mlp"}, {"model": {"name": "densenet_small", "stem": 8}}],
            {'fedavg [model.name="mlp"]'},
        ),
        ([{"training": {"clip_norm": 1.5}}, {}], {"fedavg [clip_norm=1.5]", "fedavg"}),
    ],
)
def test_a_setting_that_is_not_there_is_not_told(tmp_path: Path, settings: list[Any], wanted: set[str]) -> None:
    plan = fake_study.plan(tmp_path, runs=[{"algorithm": "fedavg"} | own for own in settings])
    labels = [c.algorithm for c in conditions(plan).values() for _ in c.runs]
    assert sorted(np.unique(labels, return_counts=True)[1].tolist()) == [3, 3]
    assert wanted <= set(labels)
    assert not any(word in label for label in labels for word in ("None", "null"))


def test_fedtan2_always_tells_when_its_exchange_ends(tmp_path: Path) -> None:
    given: list[Any] = [
        "fedtan2",
        {"name": "fedtan2", "exchange_rounds": 100},
        {"name": "fedtan2", "exchange_rounds": 7},
    ]
    plan = fake_study.plan(tmp_path, runs=[{"algorithm": given}], training={"rounds": 100}, seeds=[0])
    labels = {c.algorithm for c in conditions(plan).values()}
    assert labels == {"fedtan2(exchange_rounds=100)", "fedtan2(exchange_rounds=7)"}
    assert len(plan.runs) == 2


def test_the_table_of_a_condition_has_the_inferences_asked_of_it(tmp_path: Path) -> None:
    """And no gain of what uses labels, whose score is of other images or of known ones."""
    runs = [{"algorithm": "fedavg"}, {"algorithm": "perfedavg", "inferences": ["source", PERSONAL]}]
    found = results_of(tmp_path, runs=runs, seeds=[0])
    findings = found.findings
    tables = (sites_on_page(findings, c, "patients", found.controls) for c in findings.conditions)
    plain, personal = (table.header[4:] for table in tables)
    assert plain == ("Source", "TsmoBN", "Gain, TsmoBN")
    assert [LABELS in title for title in personal] == [False, True]
    assert not any(title.startswith("Gain") for title in personal)


SLOW, CLIPPED = {"lr": 0.5}, {"clip_norm": 1.5}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ([{}, SLOW, CLIPPED], ["fedavg", "fedavg [lr=0.5]", "fedavg [clip_norm=1.5]"]),
        # lr is 0.01 in two of four conditions, and no other value in more than one
        (
            [{}, SLOW, {"lr": 0.1}, CLIPPED],
            ["fedavg", "fedavg [lr=0.5]", "fedavg [lr=0.1]", "fedavg [clip_norm=1.5]"],
        ),
        # lr is 0.01 and there is no clip_norm unless said otherwise; of two and two values, neither is usual
        (
            [{}, SLOW, CLIPPED, SLOW | CLIPPED],
            [
                "fedavg [lr=0.01]",
                "fedavg [lr=0.5]",
                "fedavg [clip_norm=1.5, lr=0.01]",
                "fedavg [clip_norm=1.5, lr=0.5]",
            ],
        ),
        # without what is usual, the first and the last would both be called fedavg
        (
            [CLIPPED, SLOW | CLIPPED, {}],
            ["fedavg [clip_norm=1.5, lr=0.01]", "fedavg [clip_norm=1.5, lr=0.5]", "fedavg [lr=0.01]"],
        ),
    ],
)
def test_a_setting_of_most_conditions_is_not_told(tmp_path: Path, settings: list[Any], wanted: list[str]) -> None:
    plan = fake_study.plan(tmp_path, runs=[{"algorithm": "fedavg", "training": own} for own in settings])
    assert [condition.algorithm for condition in conditions(plan).values()] == wanted
