"""Scores, summary, effects and tables, on invented predictions whose scores are known."""

import csv
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_study
import intervals
import pandas as pd
import pytest
from fake_study import EVIL
from scored_study import scored, summarised

from fedshift.analysis import predictions, score, study_results
from fedshift.analysis.conditions import conditions, distinguishing_settings
from fedshift.analysis.predictions import Predictions
from fedshift.core.errors import UserError
from fedshift.datasets.own_images import OwnImages
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_json
from fedshift.page import page, summary
from fedshift.page.summary import overview
from fedshift.study import calls
from fedshift.study.plan import Plan

COLUMNS = "study run algorithm bn addon held_out site role inference momentum batch_size order seed metric value n"
SUMMARY = (
    "study condition_id inference_id algorithm bn addon held_out site role inference momentum batch_size order "
    "metric n patients rarer mean std seeds published published_std low high se chance majority p_chance"
)


def by_seed(run, inference, site, role):  # type: ignore[no-untyped-def]
    """Outside: 0.5, 0.6, 0.7 over seeds with training statistics, 0.2 more with TsmoBN."""
    return 0.9 if role == "internal" else 0.5 + 0.1 * run.seed + (0.2 if inference == "tsmobn" else 0)


def pick(table: pd.DataFrame, **wanted: str) -> pd.DataFrame:
    return table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]


def test_scores_are_tidy(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    out = score.score(plan, paths)
    assert out == tmp_path / "results" / "studies" / "fake" / "scores.csv"
    table = score.read_table(out)
    assert list(table) == COLUMNS.split()
    assert len(table) == 6 * 2 * 4 * 7  # runs, inferences, sites, metrics
    assert set(table["site"]) == {"centre0", "centre3", "centre1", EVIL}
    row = pick(table, site=EVIL, inference="tsmobn", metric="accuracy").iloc[0]
    assert (row["value"], row["n"], row["momentum"], row["batch_size"], row["order"]) == (0.8, 60, 0.9, 32, 0)
    assert pick(table, inference="source")[["momentum", "batch_size", "order"]].isna().all(axis=None)
    assert json.loads(out.with_name("missing.json").read_text()) == []


def test_summary_is_over_seeds(tmp_path: Path) -> None:
    plan, paths = scored(tmp_path, by_seed)
    table = score.read_table(summary.summarise(study_results.load(plan, paths)))
    assert list(table) == SUMMARY.split()
    row = pick(table, site="centre1", inference="source", metric="accuracy", bn="local").iloc[0]
    assert (row["mean"], row["std"], row["seeds"], row["n"]) == pytest.approx((0.6, 0.1, 3, 60))
    # All six patients are alike, and count as their samples; three trainings differ.
    wanted = intervals.alike(6, 10, 0.5, 0.6, 0.7, sites=1)
    assert (row["low"], row["high"]) == pytest.approx(wanted.level((0.01 / 3, 2)))
    assert row["se"] == pytest.approx(math.sqrt(wanted.variance))
    assert math.isnan(row["published"])


def test_effects_are_of_the_means_over_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 30)  # six of them are tested at internal sites
    plan, paths = summarised(tmp_path, by_seed)
    found = study_results.load(plan, paths).findings
    group = found.conditions[0]
    level = found.effect("level", group, "source")
    assert (level.mean, level.std, level.seeds) == pytest.approx((0.6, 0.1, 3))
    assert found.gap(group, "source").mean == pytest.approx(0.3)
    gain = found.gain(group, "tsmobn", "external")
    # The patients of each site are alike with both inferences, and count as their samples.
    wanted = intervals.alike(30, 10, 0.7, 0.8, 0.9).gain_over(intervals.alike(30, 10, 0.5, 0.6, 0.7))
    assert (gain.mean, gain.std, gain.low, gain.high) == pytest.approx((0.2, 0.0, *wanted), abs=1e-12)
    assert found.recovered(group, "tsmobn").gain == gain
    row = overview(found).rows[1]
    nb = "\N{NO-BREAK SPACE}"
    assert row[2:5] == ("12 + 60", f"90.0{nb}±{nb}0.0", f"80.0{nb}±{nb}10.0")
    assert row[-1] == f"+20.0{nb}±{nb}0.0"


def test_a_mean_over_partitions_stands_beside_each(tmp_path: Path) -> None:
    split = {"train": 0.5, "val": 0.2, "test": 0.3}
    two = [
        {"internal": ["centre0", "centre3"], "external": ["centre1"], "held_out": "one", "split": split},
        {"internal": ["centre0", "centre1"], "external": ["centre3"], "held_out": "three", "split": split},
    ]

    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return 0.9 if role == "internal" else {"one": 0.5, "three": 0.7}[run.partition.title]

    plan, paths = summarised(tmp_path, share_right, partition=two)
    found = study_results.load(plan, paths).findings
    one, three = (next(c for c in found.conditions if c.held_out == h) for h in ("one", "three"))
    means = [found.gap(one, "source").mean, found.gap(three, "source").mean, found.gap(one, "source", across=True).mean]
    assert means == pytest.approx([0.4, 0.2, 0.3])


def test_a_missing_run_is_named_and_counted(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, by_seed, without={"bn": "local", "seed": 2})
    out = score.score(plan, paths)
    table = score.read_table(summary.summarise(study_results.load(plan, paths)))
    missing = read_json(out.with_name("missing.json"))
    assert [(m["run"].startswith("fedavg-local-"), m["inference"]) for m in missing] == [
        (True, "source"),
        (True, "tsmobn"),
    ]
    assert "not trained" in missing[0]["why"]
    row = pick(table, site="centre1", inference="source", metric="accuracy", bn="local").iloc[0]
    assert (row["mean"], row["seeds"]) == pytest.approx((0.55, 2))
    cells = (out.parent / "tables" / "overview.md").read_text()
    assert "(2 of 3 seeds)" in cells


def test_a_partial_file_is_missing_not_averaged(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    run = next(iter(plan.runs))
    path = fake_study.predictions_of(plan, paths, run)
    table = read_table(path)
    write_table(path, table.drop(index=table.index[table["inference"] == "source"][:5]))
    score.score(plan, paths)
    (entry,) = score.missing(plan, paths)
    assert (entry["run"], entry["inference"]) == (run, "source")
    assert entry["why"].startswith("partial: 5 of ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="label"), "no column label"),
        (lambda t: t.drop(columns=["p0", "p1"]), "no column p0 of predictions"),
        (lambda t: t.assign(p1=math.nan), "NaN or infinite"),
        (lambda t: t.assign(p1=t["p1"] + 0.01), "do not add up to 1"),
        (lambda t: t.assign(p0=1.5, p1=-0.5), "do not add up to 1"),
        (lambda t: t.assign(label=7), "outside of 0 to 1"),
        (lambda t: pd.concat([t, t.iloc[:1]]), "predicted twice"),
        (lambda t: pd.concat([t, t.iloc[:1].assign(sample="new")]), "1 samples are not test samples of the partition"),
        (lambda t: t.iloc[:0], "holds no predictions"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, change, words: str) -> None:  # type: ignore[no-untyped-def]
    plan, paths = fake_study.build(tmp_path)
    run = next(iter(plan.runs.values()))
    path = fake_study.predictions_of(plan, paths, run.id)
    table = read_table(path)
    write_table(path, change(table[table["inference"] == "source"]))
    with pytest.raises(UserError, match=words):
        Predictions(plan, paths).read(run, "source")


@pytest.mark.parametrize("content", [b"not parquet", b""])
def test_a_file_that_is_no_table_is_an_error(tmp_path: Path, content: bytes) -> None:
    """Predictions that are there and cannot be read are not those of a run that has none."""
    plan, paths = fake_study.build(tmp_path)
    file = fake_study.predictions_of(plan, paths, next(iter(plan.runs)))
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{re.escape(str(file))}: not a readable table"):
        score.score(plan, paths)


def test_no_predictions_at_all_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, without={})
    for run in plan.runs:
        fake_study.predictions_of(plan, paths, run).unlink()
    with pytest.raises(UserError, match=r"trained, but not predicted.*fedshift run fake$"):
        score.score(plan, paths)
    assert not (paths.study("fake") / "scores.csv").exists()


def test_runs_that_differ_in_training_only_are_told_apart(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedavg", "training": {"lr": 0.5}}]
    plan = fake_study.plan(tmp_path, runs=runs)
    names = {c.algorithm for c in conditions(plan).values()}
    assert names == {"fedavg [lr=0.01]", "fedavg [lr=0.5]"}


def settings(**given: Any) -> dict[str, str]:
    return {key: json.dumps(value) for key, value in given.items()}


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([{"clients": 1, "sites": ["a"]}, {"clients": 2, "sites": ["a", "b"]}], ["clients"]),
        ([{"sites": ["a"]}, {"sites": ["b"]}], ["sites"]),
        ([{"n": 1, "sites": ["a"]}, {"n": 1, "sites": ["b"]}, {"n": 2, "sites": ["c"]}], ["n", "sites"]),
        ([{"epochs": e, "rounds": 300 // e, "lr": x} for e in (1, 4) for x in (0.1, 0.2)], ["epochs", "lr"]),
        ([{"epochs": 1, "rounds": 3}, {"epochs": 2, "rounds": 3}, {"epochs": 1, "rounds": 5}], ["epochs", "rounds"]),
        ([{"at": None, "rate": 0.1}, {"at": 100, "rate": 0.2}], ["rate"]),
        ([{"at": None}, {"at": 100}], ["at"]),
        ([{"name": "a", "lr": 0.1}, {"name": "b", "lr": 0.2}], ["name"]),
        ([{"lr": 0.1, "by": "a"}, {"lr": 0.2, "by": "b"}], ["by"]),
        ([{"by": "a", "fast": True}, {"by": "b", "fast": False}], ["by", "fast"]),
    ],
)
def test_settings_that_another_one_decides_are_not_told(runs: list[dict[str, Any]], told: list[str]) -> None:
    specs = [settings(**run) for run in runs]
    assert distinguishing_settings(specs) == told
    assert len({tuple(spec.get(key) for key in told) for spec in specs}) == len(specs)


def test_inferences_that_differ_beyond_their_columns_are_told_apart(tmp_path: Path) -> None:
    given = ["source", "tsmobn", {"name": "tsmobn", "affine": False}, {"name": "tsmobn", "batch_size": 8}]
    found = predictions.inferences(fake_study.plan(tmp_path, inferences=given)).values()
    assert [(f["inference"], f["batch_size"]) for f in found] == [
        ("source", None),
        ("tsmobn", 32),
        ("tsmobn(affine=False)", 32),
        ("tsmobn", 8),
    ]


def test_inferences_whose_columns_say_the_same_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TsmoBN, "score_columns", lambda self: {"momentum": 0.5, "batch_size": 1, "order": 1})
    given = [{"name": "tsmobn", "momentum": 0.5}, {"name": "tsmobn", "momentum": 0.5, "batch_size": 1}]
    found = predictions.inferences(fake_study.plan(tmp_path, inferences=given)).values()
    assert [f["inference"] for f in found] == ["tsmobn(momentum=0.5)", "tsmobn(batch_size=1, momentum=0.5)"]


def uneven(table: pd.DataFrame) -> pd.DataFrame:
    """Patients of 10, 9, 8, ... samples, so that shares differ between them."""
    n = table.groupby("patient").cumcount()
    return table[n < fake_study.PER_PATIENT - table["patient"].str.rpartition("/")[2].astype(int)]


def test_the_interval_of_balanced_accuracy_is_over_whole_patients(tmp_path: Path) -> None:
    """That of the mean of two recalls, each with the factor k / (k - 1) of its k patients."""
    plan, paths = scored(tmp_path, by_seed, seeds=[1], change=uneven)
    table = score.read_table(summary.summarise(study_results.load(plan, paths)))
    row = pick(table, site="centre1", inference="source", metric="balanced_accuracy", bn="local").iloc[0]
    run = next(r for r in plan.runs.values() if r.bn == "local")
    predicted = Predictions(plan, paths).read(run, "source").query("site == 'centre1'")
    predicted["patient"] = predicted["sample"].str.rpartition("/")[0]
    predicted["right"] = (predicted["p1"] > 0.5) == (predicted["label"] == 1)
    moved, fewest = 0.0, []
    for _, rows in predicted.groupby("label"):
        deviation = (rows["right"] - rows["right"].mean()).groupby(rows["patient"]).sum() / len(rows) / 2
        moved = moved + deviation * math.sqrt(len(deviation) / (len(deviation) - 1))
        fewest.append(len(deviation))
    wanted = intervals.of_share(row["mean"], (moved**2).sum(), min(fewest) - 1)
    assert (row["low"], row["high"]) == pytest.approx(wanted)
    assert row["low"] < row["mean"] < row["high"]


def test_partitions_do_not_make_new_patients(tmp_path: Path) -> None:
    """Two partitions have equal predictions of equal patients: their mean is no surer than either."""
    two = [
        {"internal": ["centre0"], "external": ["centre1"], "held_out": "one"},
        {"internal": ["centre3"], "external": ["centre1"], "held_out": "two"},
    ]
    plan, paths = summarised(tmp_path, by_seed, partition=two, change=uneven)
    found = study_results.load(plan, paths).findings
    one, both = (found.effect("level", found.conditions[0], "source", across=across) for across in (False, True))
    assert (both.low, both.high) == pytest.approx((one.low, one.high))
    assert one.low < one.high


def guises(table: pd.DataFrame) -> pd.DataFrame:
    """Every site shows the same images, each under its own corruption."""
    return table.assign(base=table["sample"].str.split("/").str[-2:].str.join("/"), patient=None)


def test_sites_that_show_the_same_images_do_not_make_new_ones(tmp_path: Path) -> None:
    """Right and wrong at the same images: the mean of two sites is no surer than either."""
    by_image = fake_study.build(tmp_path / "one", by_seed, change=guises)
    alone = fake_study.build(tmp_path / "two", by_seed, change=lambda table: table.assign(patient=None))
    found = {}
    for plan, paths in (by_image, alone):
        score.score(plan, paths)
        summary.summarise(study_results.load(plan, paths))
        findings = study_results.load(plan, paths).findings
        group = findings.conditions[0]
        one, both = (
            findings.value(group, "internal", "centre0", "source"),
            findings.effect("level", group, "source", "internal"),
        )
        found[paths.root.name] = (one.high - one.low, both.high - both.low)
    assert found["one"][1] == pytest.approx(found["one"][0])
    assert found["two"][1] == pytest.approx(found["two"][0] / math.sqrt(2), rel=0.2)


def test_a_partition_without_a_role_counts_in_no_mean_over_partitions(tmp_path: Path) -> None:
    """Held out is a site of one class: its internal mean must not be compared with external means of others."""
    two = [
        {"internal": ["centre0"], "external": ["centre1"], "held_out": "one"},
        {"internal": ["centre3"], "external": [EVIL], "held_out": "two"},
    ]

    def share_right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return {"centre0": 0.4, "centre1": 0.5, "centre3": 0.8, EVIL: 0.6}[site]

    plan, paths = fake_study.build(
        tmp_path,
        share_right,
        partition=two,
        headline="balanced_accuracy",
        change=lambda t: t.assign(label=t["label"].where(t["site"] != "centre1", 1)),
    )
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    found = study_results.load(plan, paths).findings
    assert found.left_out() == ["centre1"]
    assert found.gap(found.conditions[0], "source", across=True).mean == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("config/studies/fake.yaml", "fake"),
        ("elsewhere/fake.yaml", "{root}/elsewhere/fake.yaml"),
        ("my files/fa ke.yaml", "'{root}/my files/fa ke.yaml'"),
    ],
)
def test_the_command_finds_the_study_again(tmp_path: Path, path: str, words: str) -> None:
    plan = Plan("fake", tmp_path / path, "mini", fake_study.study())
    told = calls.snakemake(plan, Paths(tmp_path))
    assert told == f"fedshift run {words.format(root=tmp_path)}"


def test_the_command_asks_for_the_folder_of_an_archive(tmp_path: Path) -> None:
    for given, wanted in (({"archive": "a.tar"}, True), ({"archive": "a.tar", "url": "https://x.org/a.tar"}, False)):
        study = fake_study.study(dataset=OwnImages(table=Path("s.csv"), **given))
        plan = Plan("fake", tmp_path / "fake.yaml", "mini", study)
        assert calls.snakemake(plan, Paths(tmp_path)).endswith(" --mirror DIR") == wanted
        assert calls.archives(plan) == ["a.tar"] * wanted


def test_tables_escape_names(tmp_path: Path) -> None:
    name = "=cmd|' /C calc'!A0 _50%_ $x$ \\ & # <b>"
    _, paths = summarised(tmp_path, partition={"internal": ["centre0", "centre3"], "external": [name]})
    folder = paths.study("fake") / "tables"
    rows = list(csv.reader((folder / "sites.csv").read_text().splitlines()))
    assert f"'{name}" in {row[1] for row in rows}
    tex = (folder / "sites.tex").read_text()
    assert r"=cmd\textbar{}' /C calc'!A0 \_50\%\_ \$x\$ \textbackslash{} \& \# \textless{}b\textgreater{}" in tex
    assert r"\|' /C calc'!A0 \_50%\_ \$x\$ \\ \& \# \<b\>" in (folder / "sites.md").read_text()


@pytest.mark.parametrize("name", ["01", "NA", "1e3", "None"])
def test_a_site_keeps_its_name(tmp_path: Path, name: str) -> None:
    plan, paths = scored(tmp_path, partition={"internal": ["centre0", "centre3"], "external": [name]})
    table = score.read_table(summary.summarise(study_results.load(plan, paths)))
    assert name in set(table["site"])
    assert set(table["held_out"]) == {name}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    plan, paths = scored(tmp_path, by_seed)
    first = summary.summarise(study_results.load(plan, paths)).read_bytes()
    score.score(plan, paths)
    assert summary.summarise(study_results.load(plan, paths)).read_bytes() == first


def test_runs_with_other_inferences_have_other_commands(tmp_path: Path) -> None:
    grids = [
        {"algorithm": "fedavg", "bn": ["aggregated", "local"]},
        {"algorithm": "fedprox", "inferences": ["source"]},
    ]
    plan, paths = fake_study.plan(tmp_path, runs=grids, seeds=[0, 1]), Paths(tmp_path)
    start = "fedshift run fake -- results/runs/RUN/predictions-source.parquet"
    commands = calls.single_runs(plan, paths)
    both = paths.predictions("RUN", next(iter(plan.prediction_jobs.values()))).relative_to(tmp_path)
    assert list(commands) == [f"fedshift run fake -- {both}", start]
    assert [len(runs) for runs in commands.values()] == [4, 2]
    last = list(plan.runs)[-1]
    assert calls.one_run(plan, paths, last) == start.replace("RUN", last)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: pd.concat([table, table]), "is predicted twice"),
        (lambda table: table.assign(p1=float("nan")), "a probability is NaN or infinite"),
        (lambda table: table[table["site"] != "centre1"], "samples are not predicted"),
        (lambda table: table.assign(site="centre1"), "a sample has another site than in the partition"),
    ],
)
def test_predictions_that_cannot_be_scored_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], change: Callable[[pd.DataFrame], pd.DataFrame], why: str
) -> None:
    plan, paths = fake_study.build(tmp_path)
    path = fake_study.predictions_of(plan, paths, next(iter(plan.runs)))
    write_table(path, change(read_table(path)))
    score.score(plan, paths)
    said = capfd.readouterr().err.splitlines()
    said = [line for line in said if line.startswith(f"{path}: ")]
    assert said
    assert all("is left out of all scores: " in line and why in line for line in said)
    assert {entry["run"] for entry in score.missing(plan, paths)} == {path.parent.name}


def test_the_page_says_which_predictions_cannot_be_scored(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, without={"bn": "local", "seed": 2})
    path = fake_study.predictions_of(plan, paths, next(iter(plan.runs)))
    write_table(path, read_table(path).assign(p1=float("nan")))
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    text = " ".join(page.write(study_results.load(plan, paths)).read_text(encoding="utf-8").split())
    assert "Incomplete: 2 entries are missing." in text, "a run that was not trained is another matter"
    assert "Of 1 the predictions are there and cannot be scored." in text
