"""The page and its figures: words follow the numbers, nothing is loaded, nothing unescaped."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from fake_study import EVIL
from outline import Outline
from scored_study import page_of, reported, summarised

from fedshift.analysis import score, study_results
from fedshift.analysis.findings import Findings
from fedshift.analysis.values import Value
from fedshift.datasets.own_images import OwnImages
from fedshift.figures import _canvas
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import write_json
from fedshift.page import page, summary
from fedshift.page import protocol as protocol_module
from fedshift.page.answer import Answer, answer
from fedshift.page.history import Trained, runs_table
from fedshift.page.html import FOLDED, Fold, PageTable, further
from fedshift.page.protocol import protocol
from fedshift.study.plan import Plan

SMALL: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0], "figures": []}
"""One training, for what does not depend on trainings and conditions."""
ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": []}
"""Three trainings of one condition."""


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six test patients at internal sites in place of two, which is enough for intervals."""
    monkeypatch.setattr(fake_study, "PATIENTS", 30)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths, str]:
    return reported(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of SMALL."""
    return reported(tmp_path_factory.mktemp("small"), **SMALL)[2]


def test_page_is_one_small_file(whole: tuple[Plan, Paths, str]) -> None:
    plan, paths, html = whole
    assert paths.page(plan.name).stat().st_size < 2_000_000
    outline = Outline(html)
    for tag, attributes in outline.tags:
        assert tag not in ("script", "iframe", "object", "embed")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value or (tag == "a" and value.startswith("https://doi.org"))
    assert not re.search(r"@import|url\((?!#)", html)


def test_names_are_text_everywhere(whole: tuple[Plan, Paths, str]) -> None:
    plan, paths, html = whole
    assert "<script" not in html.lower()
    assert "<b>friends" not in html
    assert "<i>markup" not in html
    assert EVIL in Outline(html).text
    for name in plan.figures:
        assert "<script" not in (paths.study(plan.name) / "figures" / f"{name}.svg").read_text()


def test_ids_are_unique_and_links_lead_somewhere(whole: tuple[Plan, Paths, str]) -> None:
    outline = Outline(whole[2])
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    references = [v[1:] for _, a in outline.tags for k, v in a.items() if k.endswith("href") and v and v[:1] == "#"]
    references += re.findall(r"url\(#([^)]+)\)", whole[2])
    references += [v for _, a in outline.tags for v in (a.get("aria-labelledby") or "").split()]
    assert set(references) <= set(ids)


def test_structure(whole: tuple[Plan, Paths, str]) -> None:
    tags = Outline(whole[2]).tags
    names = [t for t, _ in tags]
    assert all(names.count(t) == 1 for t in ("h1", "main", "header", "nav", "footer"))
    levels = [int(t[1]) for t in names if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert names.count("table") == names.count("caption")
    assert all(a.get("scope") in ("col", "row") for t, a in tags if t == "th")


def test_synthetic_data_are_said_twice_and_on_every_printed_sheet(
    whole: tuple[Plan, Paths, str], tmp_path: Path
) -> None:
    assert Outline(whole[2]).text.count("Synthetic: not a result") == 3
    assert "@top-left" in whole[2].partition("Synthetic: not a result")[0][-80:]
    assert "The images are synthetic: no hospital made them." in whole[2]
    html = reported(tmp_path, synthetic=False, **SMALL)[2]
    text = Outline(html).text
    assert "not a result" not in text
    assert "The images are synthetic: no hospital made them." not in text


def test_help_is_told_in_numbers(whole: tuple[Plan, Paths, str]) -> None:
    text = Outline(whole[2]).text
    assert (
        "FedAvg, aggregated BN: cannot tell: at home accuracy is 90.0 %, but no interval can be given (too few test "
        "patients at centre0 and centre3). Accuracy 90.0 ± 0.0 % at internal sites and 60.0 ± 0.0 % at external sites, "
        "with training statistics. TsmoBN adds 20.0 points at external sites (95% interval "
        f"{gain(0.6, 0.8)} over 12 patients and 3 trainings)."
    ) in text
    assert "Incomplete" not in text


def gain(source: float, tsmobn: float) -> str:
    """The interval of a gain at two sites with six patients, who are all alike and count as their ten samples each."""
    before, after = (intervals.alike(6, 10, share) for share in (source, tsmobn))
    return intervals.percent(*after.gain_over(before))


def lead(root: Path, outside: dict[str, float], inside: float = 0.9) -> str:
    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return inside if role == "internal" else outside[inference]

    return Outline(reported(root, share_right, **SMALL)[2]).text


@pytest.mark.parametrize(
    ("source", "tsmobn", "words"),
    [
        (
            0.6,
            0.4,
            f"TsmoBN does not help: it costs 20.0 points at external sites (95% interval {gain(0.6, 0.4)} over",
        ),
        (0.6, 0.6, "TsmoBN changes nothing at external sites"),
        (
            0.5,
            0.9,
            f"TsmoBN adds 40.0 points at external sites (95% interval {gain(0.5, 0.9)} over 12 patients only: one "
            "training).",
        ),
        (0.9, 0.7, "TsmoBN does not help: it costs 20.0 points"),
        (0.9, 1.0, "TsmoBN adds 10.0 points at external sites"),
    ],
)
def test_words_follow_the_numbers(tmp_path: Path, source: float, tsmobn: float, words: str) -> None:
    text = lead(tmp_path, {"source": source, "tsmobn": tsmobn})
    assert words in text
    assert "There is no loss" not in text
    assert "One seed: how much the result varies" in text


def test_no_external_site(tmp_path: Path) -> None:
    plan, paths, html = reported(tmp_path, partition={"internal": ["centre0", "centre3"]}, seeds=[0], figures=["sites"])
    told = answer(study_results.load(plan, paths).findings)
    assert told.lead.endswith("The study has no external site, so it cannot say how the model travels.")
    assert told.others and not any("external" in text for text in told.others)
    assert Outline(html).text.count("The study has no external site") == 1
    header = (paths.study("fake") / "tables" / "overview.csv").read_text().splitlines()[0]
    assert header == "Condition,Inference,Patients,Internal mean,95% interval (Internal mean)"


def test_no_external_site_is_said_once_where_a_condition_is_of_clients_alone(tmp_path: Path) -> None:
    runs = [{"algorithm": ["local", "fedavg", "fedprox"], "bn": "local"}]
    plan, paths, _ = reported(tmp_path, partition={"internal": ["centre0", "centre3"]}, **SMALL | {"runs": runs})
    told = answer(study_results.load(plan, paths).findings)
    said = [text.count("The study has no external site") for text in (told.lead, *told.others)]
    assert said == [1, 0, 0], "the first federated condition leads, and FedProx and the clients alone stand below"


@pytest.mark.usefixtures("many")
def test_lower_is_better_is_understood(tmp_path: Path) -> None:
    """Brier scores: right answers cost 0.04 a sample, wrong ones 0.64; a better TsmoBN lowers them.

    A share that is right has this share of the squares of 0.6, by which they differ, as the variance of its patients.
    """
    inside, outside, adapted = (
        replace(sites, value=0.64 - 0.6 * sites.value, variance=0.36 * sites.variance)
        for sites in (intervals.alike(6, 10, 0.9), intervals.alike(30, 10, 0.6), intervals.alike(30, 10, 0.8))
    )
    loss, gain = ("{:.3f} to {:.3f}".format(*found) for found in (outside.minus(inside), outside.gain_over(adapted)))
    text = Outline(reported(tmp_path, headline="brier", **ONE)[2]).text
    assert "Brier score" in text
    assert "Brier score 0.100 ± 0.000 at internal sites and 0.280 ± 0.000 at external sites" in text
    assert f"loses 0.180 at its 2 external sites (95% interval {loss} over 72 patients and 3 trainings)" in text
    assert f"TsmoBN recovers 0.120 of the external loss, 95% interval {gain} over" in text


def shows(monkeypatch: pytest.MonkeyPatch, root: Path, gain: Value, gap: Value) -> Answer:
    """The answer of a study with that gain outside and that gap, and nothing changed inside."""
    plan, paths = summarised(root, **ONE)
    monkeypatch.setattr(Findings, "gap", lambda *_: gap)
    monkeypatch.setattr(Findings, "losing", lambda *_: [])
    monkeypatch.setattr(Findings, "gain", lambda _, group, key, role, **__: gain if role == "external" else Value())
    return answer(study_results.load(plan, paths).findings)


SURE = Value(mean=0.3, std=0.01, seeds=3, low=0.2, high=0.4)


@pytest.mark.parametrize(
    ("gain", "gap", "words"),
    [
        (
            Value(0.1, 0.01, 3, 0.05, 0.2),
            SURE,
            "recovers 10.0 points of the external loss, 95% interval",
        ),
        (Value(-0.1, 0.01, 3, -0.2, -0.05), SURE, "does not help: it costs 10.0 points"),
        (Value(0.1, 0.01, 3), SURE, "adds 10.0 points at external sites, but no interval can be given ("),
        (
            Value(-0.1, 0.01, 3),
            SURE,
            "TsmoBN costs 10.0 points at external sites, but no interval can be given (",
        ),
        (
            Value(0.1, 0.01, 3, -0.05, 0.2),
            SURE,
            "adds 10.0 points at external sites (95% interval −5.0 to +20.0 over patients and trainings), "
            "but the interval includes no change at all.",
        ),
        (
            Value(0.1, 0.15, 3, 0.05, 0.2),
            SURE,
            "recovers 10.0 points of the external loss, 95% interval 5.0 to 20.0 over patients and trainings.",
        ),
        (
            SURE,
            Value(0.3, 0.4, 3, 0.2, 0.4),
            "loses 30.0 points at its 2 external sites (95% interval 20.0 to 40.0 over patients and trainings)",
        ),
        (
            SURE,
            Value(0.3, 0.1, 3, -0.2, 0.4),
            "the loss outside is 30.0 points, but its 95% interval (−20.0 to +40.0 over patients and trainings) "
            "includes both no loss and 5.0 points, the margin.",
        ),
    ],
)
@pytest.mark.usefixtures("many")
def test_doubts_are_told(  # type: ignore[no-untyped-def]
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gain: Value, gap: Value, words: str
) -> None:
    found = shows(monkeypatch, tmp_path, gain, gap)
    assert words in found.lead


def test_few_patients_outside_take_the_interval_and_the_colour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under five patients nothing bounds a gain of 20 points: it is neither green nor without a doubt."""
    monkeypatch.setattr(fake_study, "PATIENTS", 4)
    html = reported(tmp_path, **SMALL)[2]
    text = Outline(html).text
    assert "TsmoBN adds 20.0 points at external sites, but no interval can be given." in text
    assert f"(too few test patients at centre0, centre3, centre1 and {EVIL})" in text
    assert 'class="good"' not in html
    assert "below, the 95% interval" not in text
    assert "have a 95% interval that excludes zero" not in text
    assert "no interval" in text


def test_a_metric_without_intervals_promises_none(tmp_path: Path) -> None:
    text = Outline(reported(tmp_path, headline="ece", metrics=["ece"], **SMALL)[2]).text
    assert "no interval can be given (ECE comes without)" in text
    assert "below, the 95% interval" not in text


def test_balanced_accuracy_has_intervals(tmp_path: Path) -> None:
    text = Outline(reported(tmp_path, headline="balanced_accuracy", **ONE)[2]).text
    assert "Balanced accuracy 90.0 ± 0.0 %" in text
    assert "(too few test patients of a class at centre0 and centre3)" in text
    # Each class has 30 of the 60 samples of a site, and half of the weight: (p (1 - p) + q (1 - q)) / 29 / 2.
    half = intervals.half((0.6 * 0.4 + 0.8 * 0.2) / 29 / 2 / 2, 2 * 5)
    assert f"adds 20.0 points at external sites (95% interval {intervals.percent(0.2 - half, 0.2 + half)}" in text


@pytest.mark.usefixtures("many")
def test_a_gap_that_grows_is_told(tmp_path: Path) -> None:
    """All of the external loss comes back, and yet the gap is larger than it was: internal sites gain more."""

    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return {("internal", "source"): 0.7, ("external", "source"): 0.5, ("internal", "tsmobn"): 1.0}.get(
            (role, inference), 0.7
        )

    plan, paths, html = reported(tmp_path, share_right, **ONE)
    text = Outline(html).text
    assert "TsmoBN recovers 20.0 points of the external loss" in text
    told = "At internal sites it adds 30.0 ± 0.0 points, and the gap with TsmoBN is 30.0 points, larger than the 20.0"
    assert told in text
    assert "won back" not in text
    assert "wins back" not in text
    caption = (paths.study(plan.name) / "tables" / "overview.tex").read_text()
    assert "External loss recovered: gain at external sites, where it is sure and so is the gap with Source" in caption


@pytest.mark.usefixtures("many")
def test_a_loss_in_doubt_is_not_a_denominator(tmp_path: Path) -> None:
    """Gaps of -10, 20 and 50 points over seeds, a variance of 0.09 / 3: no share is made of their mean."""

    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return 0.7 if role == "internal" else {"source": 0.8 - 0.3 * run.seed, "tsmobn": 0.9}[inference]

    text = Outline(reported(tmp_path, share_right, **ONE)[2]).text
    found = intervals.alike(6, 10, 0.7).minus(intervals.alike(30, 10, 0.8, 0.5, 0.2), (0.03, 2))
    interval = intervals.percent(*found, sign="+")
    assert f"20.0 points, but its 95% interval ({interval} over 72 patients and 3 trainings) includes both" in text
    assert "More trainings would narrow the interval." not in text, "internal sites have few patients of a class"
    assert "6 patients of" in text
    assert "gap in doubt" in text
    assert "of the external loss" not in text


def one_class(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(label=table["label"].where(table["site"] != "centre1", 1))


def test_a_site_of_one_class_is_a_dash_and_left_out(tmp_path: Path) -> None:
    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return 0.2 if site == "centre1" else 0.8 if role == "internal" else 0.6

    text = Outline(
        reported(tmp_path, share_right, change=one_class, headline="balanced_accuracy", **ONE | {"figures": ["sites"]})[
            2
        ]
    ).text
    assert "Balanced accuracy 80.0 ± 0.0 % at internal sites and 60.0 ± 0.0 % at 1 of 2 external sites" in text
    assert "centre1 external 60 – – –" in text
    assert "At centre1, which has only class tumour & <b>friends</b>, sensitivity is 20.0 % (" in text
    assert "The worst external result is accuracy at centre1: 20.0 % (" in text
    assert text.lower().count("worst external") == text.lower().count("worst external site") + 1
    assert f"{EVIL} (60.0)" in text
    assert "(%): mean ± standard deviation over seeds, mean over sites without centre1, where it is not defined" in text
    assert (
        "Accuracy, balanced accuracy, AUC and specificity are not defined at centre1, or mean something "
        "else where all test samples have one class: left out of means over sites." in text
    )
    assert "AUC is not defined there" not in text


def test_a_metric_defined_nowhere_is_no_missing_run(tmp_path: Path) -> None:
    def all_one(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(label=1)

    text = Outline(
        reported(tmp_path, change=all_one, headline="auc", metrics=["auc"], **SMALL | {"figures": ["sites"]})[2]
    ).text
    assert "its headline metric is defined at none of its sites" in text
    assert "no run no run" not in text
    assert "Incomplete" not in text


def test_missing_runs_are_loud(tmp_path: Path) -> None:
    plan, _, html = reported(tmp_path, without={"bn": "local", "seed": 2}, figures=[])
    text = Outline(html).text
    gone = next(name for name, run in plan.runs.items() if (run.bn, run.seed) == ("local", 2))
    assert "Incomplete: 1 entry is missing." in text
    assert f"{gone} FedAvg, local BN 2 all not trained, or failed before the first checkpoint" in text
    assert "fedshift run fake" in text
    assert "scale=" not in text
    assert "(2 of 3 seeds)" in text


UNTESTED = {
    "internal": fake_study.INTERNAL,
    "external": fake_study.EXTERNAL,
    "split": {"train": 0.8, "val": 0.2, "test": 0},
}


@pytest.mark.painted
def test_internal_sites_without_test_samples_are_left_out(tmp_path: Path) -> None:
    plan, paths, html = reported(tmp_path, partition=UNTESTED, figures=["sites"])
    text = Outline(html).text
    told = answer(study_results.load(plan, paths).findings)
    assert "internal" not in told.lead + " ".join(told.others)
    assert "at external sites, with training statistics. TsmoBN adds 20.0 points at external sites" in told.lead
    assert [t.label.partition(",")[0] for t in told.tiles] == ["Accuracy outside", "Outside"]
    assert "0 of 3 seeds" not in text
    assert "Training is at centre0 and centre3, where all samples train or validate" in text
    rows = (paths.study("fake") / "tables" / "sites.csv").read_text()
    assert "internal" not in rows
    header = (paths.study("fake") / "tables" / "overview.csv").read_text().splitlines()[0]
    assert header == "Condition,Inference,Patients,External mean,95% interval (External mean),Worst external site"
    assert "External loss recovered" not in text
    drawn = (paths.study("fake") / "figures" / "sites.svg").read_text()
    assert "centre1, external" in drawn
    assert "internal" not in drawn


def test_missing_runs_are_loud_where_internal_sites_are_not_tested(tmp_path: Path) -> None:
    text = Outline(reported(tmp_path, partition=UNTESTED, figures=[], without={"bn": "local", "seed": 2})[2]).text
    assert "Incomplete: 1 entry is missing." in text
    assert "(2 of 3 seeds) at external sites" in text


@pytest.mark.painted
def test_where_one_partition_tests_inside_the_dash_of_the_other_is_explained(tmp_path: Path) -> None:
    tested = {"internal": ["centre0", "centre1"], "external": ["centre3"], "held_out": "three"}
    partition = [UNTESTED | {"held_out": "one"}, tested]
    _, paths, html = reported(tmp_path, partition=partition, **SMALL | {"figures": ["sites"]})
    text = Outline(html).text
    assert "Gap: loss from the internal to the external mean, a dash where internal sites have no test samples" in text
    assert "With one held out, training is at centre0 and centre3" in text
    assert "With three held out, training" not in text
    drawn = (paths.study("fake") / "figures" / "sites.svg").read_text()
    assert "centre0, internal" in drawn
    assert "centre3, internal" not in drawn


def test_a_condition_without_any_run_is_still_there(tmp_path: Path) -> None:
    text = Outline(reported(tmp_path, without={"bn": "local"}, figures=[])[2]).text
    assert "Incomplete: 3 entries are missing." in text
    assert "FedAvg, local BN: no run of it has been scored" in text
    assert "FedAvg, local BN Source – no run no run" in text


def test_an_inference_without_predictions_is_missing_in_every_run(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, figures=[])
    for run in plan.runs:
        fake_study.remove(plan, paths, run, "tsmobn")
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    assert "Incomplete: 6 entries are missing." in text
    assert "TsmoBN has not been scored." in text
    assert "TsmoBN holds no predictions" in text


def test_training_time_is_that_of_all_rounds(tmp_path: Path) -> None:
    """The manifest of a resumed run knows its last process only."""
    plan, paths = fake_study.build(tmp_path, **SMALL)
    for run in plan.runs.values():
        write_json(paths.run(run.id) / "manifest.json", fake_study.manifest(run) | {"seconds": 0.1})
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    # 4 rounds, 2 clients, training and validation, half a second each
    assert "64.0 kB 0:08 100" in text


def test_validation_must_not_share_patients_with_test(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SMALL)
    run = next(iter(plan.runs.values()))
    assigned = read_table(paths.partition(run.partition_id))
    table = fake_study.samples(plan)
    splits = assigned.set_index("sample")["split"].reindex(table["sample"]).to_numpy()
    table.loc[(table["site"] == "centre0") & np.isin(splits, ["val", "test"]), "patient"] = "one"
    write_table(paths.data(run.data.id) / "samples.parquet", table)
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    assert "PROBLEM Patients shared by validation and test: 1 shared" in text
    assert "ok Samples shared by validation and test: none" in text
    assert "ok Patients shared by training and test: none" in text


def test_the_protocol_has_every_setting_of_each_inference(whole: tuple[Plan, Paths, str]) -> None:
    text = Outline(whole[2]).text
    for setting in (
        "batch size = 256",
        "batch size = 32",
        "momentum = 0.9: tau",
        "order = 0",
        "var center = updated",
        "affine = true",
        "init = first_batch",
    ):
        assert setting in text


def test_the_protocol_names_the_data_and_no_more(whole: tuple[Plan, Paths, str]) -> None:
    plan = whole[0]
    lines = dict(protocol(study_results.load(plan, whole[1]).findings))
    assert lines["Dataset"] == ["Invented patches, version 1.0"]
    own = OwnImages(table=Path("s.csv"), archive="a.tar", sha256="0" * 64, title="Ours", licence="ask us")
    bare = Plan("fake", plan.path, "mini", fake_study.study(dataset=own))
    findings = study_results.load(plan, whole[1]).findings
    findings.plan = bare
    assert dict(protocol(findings))["Dataset"] == ["Ours"]


def test_without_validation_the_last_round_is_kept_and_that_is_said(tmp_path: Path) -> None:
    partition = {"internal": fake_study.INTERNAL, "split": {"train": 0.7, "val": 0, "test": 0.3}}
    training = {"rounds": 4, "select": "last"}
    text = Outline(reported(tmp_path, partition=partition, training=training, **SMALL)[2]).text
    assert "Model selection The last round: there are no validation samples to choose a round by." in text
    assert "highest mean validation accuracy" not in text


def test_the_scale_is_named_where_there_are_scales(small: str, tmp_path: Path) -> None:
    text = Outline(small).text
    assert "Skip to the answer fake · " in text
    assert "Mini scale" not in text
    text = Outline(reported(tmp_path, **SMALL, scales={"mini": {"model": "mlp"}})[2]).text
    assert "Skip to the answer fake at scale mini · " in text
    assert "Mini scale" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("accuracy", "highest mean validation accuracy over clients"),
        ("auc", "highest mean validation AUC over clients"),
        ("brier", "lowest mean validation Brier score over clients"),
        ("loss", "lowest mean validation loss (cross-entropy) over clients"),
    ],
)
def test_the_protocol_says_by_which_value_rounds_are_chosen(name: str, words: str) -> None:
    assert protocol_module.best_by(name) == words


def test_the_round_is_chosen_by_validation_accuracy(whole: tuple[Plan, Paths, str]) -> None:
    words = "The round with the highest mean validation accuracy over clients. Test data play no part."
    assert dict(protocol(study_results.load(*whole[:2]).findings))["Model selection"] == [words]


@pytest.mark.parametrize(
    ("name", "header", "cell"),
    [("accuracy", "Validation (%)", "52.3"), ("brier", "Validation", "0.523"), ("loss", "Validation", "0.523")],
)
def test_the_value_that_a_round_was_kept_for_has_its_unit(name: str, header: str, cell: str) -> None:
    run = Trained("fedavg-0", "FedAvg", 0, {"best_value": 0.5231}, 4, 0.0, 0.0, 0.0, name)
    table = runs_table([run])
    assert dict(zip(table.header, table.rows[0], strict=True))[header] == cell


def test_runs_that_were_accepted_as_unchanged_are_named_with_reason_and_date(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SMALL | {"seeds": [0, 1]})
    change = {"code": "a", "was": "b", "reason": "Only <b>messages</b> changed", "date": "2026-01-31", "version": "1"}
    for run in plan.runs.values():
        accepted = {"accepted": [change]} if run.seed else {}
        write_json(paths.run(run.id) / "manifest.json", fake_study.manifest(run) | accepted)
    score.score(plan, paths)
    html = page_of(plan, paths)
    assert "Accepted as unchanged Only <b>messages</b> changed (2026-01-31)" in Outline(html).text
    assert "<b>messages" not in html


def test_without_accepted_runs_nothing_is_said_of_them(whole: tuple[Plan, Paths, str]) -> None:
    assert "Accepted as unchanged" not in whole[2]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_best_last_round_is_no_alarm_where_the_rate_falls_to_zero(tmp_path: Path, schedule: str) -> None:
    training = {"rounds": 4, "schedule": schedule}
    plan, paths = fake_study.build(tmp_path, training=training, **SMALL | {"seeds": [0, 1]})
    for run in plan.runs.values():
        write_json(paths.run(run.id) / "manifest.json", fake_study.manifest(run) | {"best_round": 4})
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    alarm = "2 of 2 runs validated best in their last round: they may not have converged."
    assert (alarm in text) == (schedule == "constant")


def test_real_images_on_the_page_are_announced(whole: tuple[Plan, Paths, str], tmp_path: Path) -> None:
    words = "The page contains these images: to share it without them, write figures: [convergence, sites]"
    assert words not in Outline(whole[2]).text
    assert words in Outline(reported(tmp_path, synthetic=False, **SMALL | {"figures": ["patches"]})[2]).text


def test_settings_of_an_inference_without_columns_of_their_own(tmp_path: Path) -> None:
    """Two batch sizes of `source`, which scores.csv has no column for, are two inferences all the way to the page."""
    given = ["source", {"name": "source", "batch_size": 64}, "tsmobn"]
    text = Outline(reported(tmp_path, inferences=given, **SMALL)[2]).text
    assert "Source (batch_size 256)" in text
    assert "Source (batch_size 64)" in text
    assert "TsmoBN adds 20.0 points at external sites" in text


def test_shared_patients_are_a_problem(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SMALL)
    table = fake_study.samples(plan)
    table.loc[table["site"] == EVIL, "patient"] = "centre0/0"
    write_table(paths.data(next(iter(plan.data))) / "samples.parquet", table)
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    assert "PROBLEM Patients shared by internal and external sites: 1 shared" in text
    assert "ok Patients shared by training and test: none" in text


def problems(html: str) -> str:
    """The text of the banner about problems with the data, before the answer; empty without one."""
    banners = re.findall(r'<div class="banner missing problems">.*?</div>', html, re.DOTALL)
    assert all(html.index(banner) < html.index('id="answer"') for banner in banners)
    assert len(banners) <= 1
    return " ".join(Outline(banner).text for banner in banners)


def test_sixteen_patients_shared_with_an_external_site_are_said_at_the_top(small: str, tmp_path: Path) -> None:
    """Each of the 20 patients of a site has three images."""

    def shared(table: pd.DataFrame) -> pd.DataFrame:
        number = table.groupby("site").cumcount() // 3
        site = table["site"].where((table["site"] != EVIL) | (number >= 16), "centre0")
        return table.assign(patient=site + "/" + number.astype(str))

    html = reported(tmp_path, **SMALL, change=shared)[2]
    finding = (
        f"Patients shared by internal and external sites: 16 shared (48 images at centre0 and 48 images at {EVIL})"
    )
    assert "The scores on this page count images that are not new to the model" in problems(html)
    assert finding in problems(html)
    assert f"PROBLEM {finding}" in Outline(html).text
    assert problems(small) == ""


def fingerprinted(root: Path, copies: dict[str, str], **changes: Any) -> str:
    """The page of a study whose images all differ, but for the samples that `copies` says are copies of others."""
    plan, paths = fake_study.build(root, **SMALL | changes)
    (data,) = plan.data
    table = read_table(paths.data_files(data).samples, ["sample"])
    write_table(paths.data_files(data).pixels, table.assign(pixels=table["sample"].replace(copies)))
    score.score(plan, paths)
    return page_of(plan, paths)


def train_samples(root: Path, site: str) -> list[str]:
    plan, paths = fake_study.build(root, **SMALL)
    split = read_table(paths.partition(next(iter(plan.runs.values())).partition_id))
    return split["sample"][(split["site"] == site) & (split["split"] == "train")].tolist()


def test_ten_external_copies_of_training_images_are_a_problem(tmp_path: Path) -> None:
    outside = [f"{EVIL}/{n // 10}/{n % 10}" for n in range(10)]
    trained = train_samples(tmp_path / "plain", "centre0")[:10]
    html = fingerprinted(tmp_path / "copies", dict(zip(outside, trained, strict=True)))
    text = Outline(html).text
    counts = f"10 shared (10 images at centre0 and 10 images at {EVIL})"
    assert f"PROBLEM Pixel-identical images shared by internal and external sites: {counts}" in text
    assert "ok Samples shared by internal and external sites: none" in text
    assert "ok Pixel-identical images shared by training and test: none" in text
    assert "ok Pixel-identical images shared by internal sites: none" in text
    assert f"Pixel-identical images shared by internal and external sites: {counts}" in problems(html)


def test_an_image_of_two_internal_sites_is_a_problem(tmp_path: Path) -> None:
    html = fingerprinted(tmp_path, {"centre3/0/0": "centre0/0/0", "centre3/0/1": "centre0/0/0"})
    counts = "1 shared (1 image at centre0 and 2 images at centre3)"
    assert f"PROBLEM Pixel-identical images shared by internal sites: {counts}" in Outline(html).text
    assert f"Pixel-identical images shared by internal sites: {counts}" in problems(html)


def test_images_that_were_not_compared_are_unknown_and_never_called_fine(
    tmp_path: Path, whole: tuple[Plan, Paths, str]
) -> None:
    text = Outline(whole[2]).text
    assert "unknown Pixel-identical images shared by internal and external sites: images have not been compared" in text
    assert "ok Identical" not in text
    compared = Outline(fingerprinted(tmp_path, {})).text
    assert "ok Pixel-identical images shared by internal and external sites: none" in compared
    assert "unknown Identical" not in compared
    assert "PROBLEM" not in compared


def test_identical_versions_of_one_source_image_are_no_problem(tmp_path: Path) -> None:
    """A corruption may leave an image as it was; sites that show the same source images do so by design."""

    def based(table: pd.DataFrame) -> pd.DataFrame:
        own = table["sample"].where(table["site"] != "centre1", table["sample"].str.replace("centre1", "centre0"))
        return table.assign(base=own, patient=None)

    text = Outline(fingerprinted(tmp_path, {"centre1/0/0": "centre0/0/0"}, change=based)).text
    assert "caveat Pixel-identical images shared by internal and external sites: 1 shared" in text
    assert "PROBLEM" not in text


def test_source_images_shown_again_outside_are_a_caveat(tmp_path: Path) -> None:
    """Each external site has 60 images: centre1 shows those of centre0, and the other site its own."""

    def based(table: pd.DataFrame) -> pd.DataFrame:
        own = table["sample"].where(table["site"] != "centre1", table["sample"].str.replace("centre1", "centre0"))
        return table.assign(base=own, patient=None)

    plan, paths, html = reported(tmp_path, **SMALL, change=based)
    run = next(iter(plan.runs.values()))
    split = read_table(paths.partition(run.partition_id))
    seen = ((split["site"] == "centre0") & (split["split"] == "train")).sum()
    text = Outline(html).text
    assert f"External sites show the same source images as training sites ({seen} of 120): accuracy there is" in text
    assert f"caveat Source images shared by training and external sites: {seen} shared" in text
    assert "ok Source images shared by training and test: none" in text
    assert "PROBLEM" not in text


def test_unknown_patients_are_a_caveat(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SMALL)
    table = fake_study.samples(plan).assign(patient=None)
    write_table(paths.data(next(iter(plan.data))) / "samples.parquet", table)
    score.score(plan, paths)
    text = Outline(page_of(plan, paths)).text
    assert "unknown Patients shared by training and test: patients unknown" in text
    assert "Patients are unknown: intervals treat images as independent" in text


def test_bare_files_do(tmp_path: Path) -> None:
    """A page is written from scores alone: no manifest, rounds, card, samples or figures."""
    plan, paths = summarised(tmp_path, seeds=[0])
    for pattern in ("runs/*/manifest.json", "runs/*/rounds.parquet", "data/*/*"):
        for path in (tmp_path / "results").glob(pattern):
            path.unlink()
    text = Outline(page.write(study_results.load(plan, paths)).read_text()).text
    assert "This figure has not been drawn." in text
    assert "The samples or the partition of this study are missing." in text


def test_provenance(whole: tuple[Plan, Paths, str]) -> None:
    plan, _, html = whole
    text = Outline(html).text
    for word in (*plan.runs, "a" * 40, "0123456789ab", "python 3.11", "CC0", "raw.zip", "2025-01-01 00:00"):
        assert word in text
    assert "torch AVX2, oneDNN on, processor avx2, ONEDNN_MAX_CPU_ISA SSE41, threads 1" in text
    # 2 clients x 1000 floats, down and up, 4 rounds, 4 bytes; 2 clients x 2 splits x 4 rounds of half a second
    assert "FedAvg, aggregated BN 0 4 2,000 2,000 64.0 kB 0:08 100" in text


def test_runs_that_recorded_no_arithmetic_have_a_dash(tmp_path: Path) -> None:
    """Their manifests were written by an earlier version."""
    plan, paths = fake_study.build(tmp_path, **SMALL)
    for run in plan.runs.values():
        earlier = {key: value for key, value in fake_study.manifest(run).items() if key != "arithmetic"}
        write_json(paths.run(run.id) / "manifest.json", earlier)
    score.score(plan, paths)
    assert "Arithmetic of the CPU –" in Outline(page_of(plan, paths)).text


def test_the_order_is_that_of_a_reader(whole: tuple[Plan, Paths, str]) -> None:
    """The answer, what can be wrong, the evidence, and what few readers open; downloads after everything else."""
    html = whole[2]
    first = ("answer", "words", "care", "sites", "cohort", "operating-point", "calibration", "new-hospital")
    last = ("comparison", "examples", "author", "training", "costs", "protocol", "provenance", "checklists", "cite")
    places = [html.index(f'<section id="{name}"') for name in (*first, *last)]
    assert places == sorted(places)
    assert html.index("<footer>") < html.index('class="downloads"')
    headings = re.findall(r"<h[1-6][^>]*>(.*?)</h", html, re.DOTALL)
    assert len(headings) == len(set(headings)), "no two headings have the same words"


@pytest.mark.painted
@pytest.mark.parametrize(
    ("name", "limit"),
    [("convergence", 150_000), ("sites", 150_000), ("patches", 300_000), ("roc", 150_000), ("calibration", 150_000)],
)
def test_figures_are_light_well_formed_and_the_same_each_time(
    whole: tuple[Plan, Paths, str], name: str, limit: int
) -> None:
    plan, paths, _ = whole
    text = study_results.draw(study_results.load(plan, paths), name).read_text()
    assert study_results.draw(study_results.load(plan, paths), name).read_text() == text
    assert len(text.encode()) < limit
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root[0].tag.endswith("title")
    assert root[0].text
    assert _canvas.INK not in text
    assert "currentColor" in text
    assert "<metadata" not in text
    assert "<style" not in text


@pytest.mark.painted
def test_patches_are_shrunk_to_a_light_file(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, **SMALL)
    noise = np.random.default_rng(0).integers(0, 256, (len(fake_study.samples(plan)), 96, 96, 3), dtype=np.uint8)
    np.save(paths.data(next(iter(plan.data))) / "images.npy", noise)
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    assert study_results.draw(study_results.load(plan, paths), "patches").stat().st_size < 300_000


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("colour", _canvas.COLOURS)
@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_colours_stand_out_on_light_and_dark(colour: str, ground: str) -> None:
    low, high = sorted((luminance(colour), luminance(ground)))
    assert (high + 0.05) / (low + 0.05) >= 3


def test_a_section_folds_away_the_first_of_many_further_conditions_and_says_so() -> None:
    shown, *others = (PageTable(f"condition {k}", (), [], 0) for k in range(FOLDED + 6))
    few, many = further([shown], others[:FOLDED])[1], further([shown], others)[1]
    assert isinstance(few, Fold)
    assert isinstance(many, Fold)
    assert few.blocks == many.blocks == others[:FOLDED]
    assert few.title == "20 further conditions"
    assert many.title == "25 further conditions, the first 20 of them here; all are in the tables to download"
    assert further([shown], []) == [shown]
