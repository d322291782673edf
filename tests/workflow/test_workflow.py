"""The workflow end to end, and what a change makes it do again."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny_project import ROOT, STUDY, Job, Project

pytestmark = pytest.mark.slow

HEADER = "study,run,algorithm,bn,addon,held_out,site,role,inference,momentum,batch_size,order,seed,metric,value,n"
SCORES = HEADER.split(",")
AFTER = {"score", "report", "index"}
FEDAVG, DAMPED = STUDY["runs"]


@pytest.fixture(scope="module")
def finished_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The tiny study, built once. Tests leave it as they find it."""
    made = Project.create(tmp_path_factory.mktemp("workflow") / "a project")
    done = made.build()
    assert done.returncode == 0, done.stdout + done.stderr
    (made.root.parent / "terminal.txt").write_text(done.stderr, encoding="utf-8")
    return made


def rules(jobs: set[Job]) -> set[str]:
    return {job.rule for job in jobs}


def trained(jobs: set[Job]) -> set[str]:
    """The runs that would be trained."""
    return {job["run"] for job in jobs if job.rule == "train"}


def predicted(jobs: set[Job]) -> set[str]:
    return {job["run"] for job in jobs if job.rule == "predict"}


def test_a_build_prints_one_line_a_job(finished_project: Project) -> None:
    """Jobs at work may be named in between, where the machine is slow; Snakemake's log file holds the rest."""
    lines = (finished_project.root.parent / "terminal.txt").read_text(encoding="utf-8").splitlines()
    jobs = [match for line in lines if (match := re.match(r" ?(\d+) of (\d+)  (\w+)", line))]
    assert [int(job[1]) for job in jobs] == list(range(1, int(jobs[0][2]) + 1))
    assert sum(job[3] == "train" for job in jobs) == 4
    assert any("  train damped, bn local, held out C, seed 1  " in line for line in lines)
    waiting = [line for line in lines if re.match(r"  \d\d:\d\d:\d\d  ", line)]
    assert len(lines) - len(jobs) - len(waiting) < 10
    log = min((finished_project.root / ".snakemake" / "log").iterdir(), key=lambda path: path.name).read_text()
    assert log.count("Finished jobid: ") == len(jobs)
    assert len(re.findall(r"^(?:local)?rule (\w+):$", log, re.MULTILINE)) == len(jobs)
    assert lines[-1] == f"The page: {finished_project.root / 'reports' / 'tiny.html'}"


# --- what is there after a build ------------------------------------------------------------------------------------


def test_every_run_has_the_files_of_the_contract(finished_project: Project) -> None:
    runs = finished_project.runs()
    assert {(spec["algorithm"]["name"], spec["bn"], spec["seed"]) for spec in runs.values()} == {
        (algorithm, bn, seed) for algorithm, bn in (("fedavg", "aggregated"), ("damped", "local")) for seed in (0, 1)
    }
    for name in runs:
        folder = finished_project.root / "results" / "runs" / name
        files = {p.name for p in folder.iterdir()}
        assert files >= {"spec.json", "model.safetensors", "clients.safetensors", "rounds.parquet", "manifest.json"}
        assert "checkpoint" not in files
        rounds = pd.read_parquet(folder / "rounds.parquet")
        wanted = ["round", "site", "split", "loss", "accuracy", "floats_down", "floats_up", "seconds"]
        assert set(wanted) <= set(rounds)
        assert set(rounds["round"]) == {1, 2}
        assert set(rounds["site"]) == {"A", "B"}
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {"versions", "device", "code", "seed", "git"} <= set(manifest)


def test_data_and_partition_have_the_columns_of_the_contract(finished_project: Project) -> None:
    (samples,) = finished_project.root.glob("results/data/*/samples.parquet")
    assert list(pd.read_parquet(samples)) == ["sample", "site", "label", "patient"]
    (assigned,) = finished_project.root.glob("results/partitions/*.parquet")
    table = pd.read_parquet(assigned)
    assert list(table) == ["sample", "site", "role", "split"]
    assert set(table["split"]) == {"train", "val", "test"}
    both = table.merge(pd.read_parquet(samples)[["sample", "patient"]])
    assert (both.groupby("patient")["split"].nunique() == 1).all()


def test_every_prediction_has_a_probability_for_each_class(finished_project: Project) -> None:
    for name in finished_project.runs():
        (file,) = (finished_project.root / "results" / "runs" / name).glob("predictions-*.parquet")
        both = pd.read_parquet(file)
        assert list(both["inference"].unique()) == ["source", "tsmobn"]
        for _, table in both.groupby("inference"):
            assert list(table) == ["sample", "site", "role", "split", "label", "p0", "p1", "inference"]
            assert set(table.loc[table["split"] == "val", "site"]) == {"A", "B"}
            assert ((table["p0"] + table["p1"] - 1).abs() < 1e-9).all()
            assert set(table["site"]) == {"A", "B", "C"}
            assert (table["site"] == "C").sum() == 24, "an external site is tested whole"


def test_scores_have_the_columns_of_the_contract(finished_project: Project) -> None:
    table = pd.read_csv(finished_project.root / "results" / "studies" / "tiny" / "scores.csv")
    assert list(table) == SCORES
    assert len(table) == 4 * 2 * 3 * 2, "runs, inferences, sites, metrics"
    assert set(table["run"]) == set(finished_project.runs())
    assert set(table["held_out"]) == {"C"}
    assert table.groupby("inference")["momentum"].nunique().to_dict() == {"source": 0, "tsmobn": 1}


def test_summary_tables_figure_and_page_are_there(finished_project: Project) -> None:
    folder = finished_project.root / "results" / "studies" / "tiny"
    summary = pd.read_csv(folder / "summary.csv")
    averaged = {"mean", "std", "seeds", "published", "published_std"}
    assert averaged | set(SCORES) - {"run", "seed", "value"} <= set(summary) | {"n"}
    assert set(summary["seeds"]) == {2}
    for kind in ("csv", "md", "tex"):
        assert list(folder.glob(f"tables/*.{kind}"))
    assert (folder / "figures" / "sites.svg").read_text(encoding="utf-8").lstrip().startswith("<")
    page = (finished_project.root / "reports" / "tiny.html").read_text(encoding="utf-8")
    assert "A tiny study" in page
    assert "<!doctype html>" in page.lower()
    for name in ("comparison.csv", "trends.csv", "headline.json"):
        assert (folder / name).is_file()
    index = (finished_project.root / "reports" / "index.html").read_text(encoding="utf-8")
    assert '<a href="tiny.html">A tiny study</a>' in index


def test_every_job_has_a_log_and_nothing_temporary_stays(finished_project: Project) -> None:
    found = finished_project.files()
    for run in finished_project.runs():
        assert f"results/logs/train/{run}.log" in found
        assert f"results/benchmarks/train/{run}.tsv" in found
    assert not [name for name in found if ".tmp-" in name]


def test_a_second_call_does_nothing_and_says_where_the_page_is(finished_project: Project) -> None:
    again = finished_project.build()
    assert again.returncode == 0
    said = (again.stdout + again.stderr).splitlines()
    assert said[-2].startswith("Nothing to be done")
    assert said[-1] == f"The page: {finished_project.root}/reports/tiny.html"
    assert finished_project.jobs() == set()


# --- what a change does again ---------------------------------------------------------------------------------------


def other(project: Project, **changes: Any) -> set[Job]:
    """Return the jobs that would run if the study had these changes."""
    project.study(**changes)
    try:
        return project.jobs()
    finally:
        project.study()


def test_a_comment_in_the_study_changes_nothing(finished_project: Project) -> None:
    with finished_project.edited("config/studies/tiny.yaml", "model: mlp", "# a remark\nmodel:   mlp  # and another"):
        assert finished_project.jobs() == set()


def test_a_changed_setting_of_one_entry_trains_its_runs_only(finished_project: Project) -> None:
    jobs = other(finished_project, runs=[FEDAVG, DAMPED | {"training": {"lr": 0.02}}])
    assert len(trained(jobs)) == 2
    assert all(run.startswith("damped-local-") for run in trained(jobs))
    assert not trained(jobs) & set(finished_project.runs())
    assert predicted(jobs) == trained(jobs)


def test_a_seed_more_trains_that_seed_only(finished_project: Project) -> None:
    jobs = other(finished_project, seeds=[0, 1, 2])
    assert sorted(run.rpartition("-")[0] for run in trained(jobs)) == ["damped-local", "fedavg-aggregated"]
    assert not trained(jobs) & set(finished_project.runs())
    assert rules(jobs) == {"train", "predict"} | AFTER


def test_an_inference_more_predicts_and_trains_nothing(finished_project: Project) -> None:
    jobs = other(finished_project, inferences=["source", "tsmobn", {"name": "tsmobn", "momentum": 0.5}])
    assert rules(jobs) == {"predict"} | AFTER
    assert sum(job.rule == "predict" for job in jobs) == 4


@pytest.mark.parametrize("change", [{"title": "Another title"}, {"metrics": ["accuracy", "auc", "brier"]}])
def test_what_a_study_says_is_shown_anew_and_trains_nothing(finished_project: Project, change: dict[str, Any]) -> None:
    assert {"report"} <= rules(other(finished_project, **change)) <= AFTER


def test_another_study_in_the_folder_renews_the_index_alone(finished_project: Project) -> None:
    path = finished_project.study("second", title="Another study")
    try:
        assert rules(finished_project.jobs()) == {"index"}
    finally:
        path.unlink()
    assert finished_project.jobs() == set()


def test_the_template_of_the_index_renews_it_alone(finished_project: Project) -> None:
    with finished_project.edited("src/fedshift/page/templates/index.html.j2", "<h1>", "<!-- --><h1>"):
        assert rules(finished_project.jobs()) == {"index"}


@pytest.mark.parametrize(("template", "part"), [("page", "<h1>"), ("base", "<header>"), ("macros", "<table>")])
def test_a_template_makes_the_page_anew_and_nothing_else(finished_project: Project, template: str, part: str) -> None:
    with finished_project.edited(f"src/fedshift/page/templates/{template}.html.j2", part, f"<!-- new -->{part}"):
        assert rules(finished_project.jobs()) == {"report", "index"}


def test_behaviour_of_one_algorithm_trains_its_runs_again(finished_project: Project) -> None:
    mine = {name for name in finished_project.runs() if name.startswith("damped-")}
    with finished_project.edited("src/fedshift/algorithms/damped.py", "0.5)", "0.25)"):
        assert trained(finished_project.jobs()) == mine


def test_words_about_an_algorithm_train_nothing(finished_project: Project) -> None:
    """A docstring and a comment."""
    file, words = "src/fedshift/algorithms/damped.py", '"""One half of'
    comment = finished_project.edited(file, "        server.", "        # half\n        server.")
    with finished_project.edited(file, '"""Half of', words), comment:
        assert finished_project.jobs() == set()


def test_behaviour_of_one_inference_predicts_again_and_trains_nothing(finished_project: Project) -> None:
    with finished_project.edited("src/fedshift/inferences/source.py", "Field(256,", "Field(128,"):
        jobs = finished_project.jobs()
    assert rules(jobs) == {"predict"} | AFTER


def test_behaviour_of_the_engine_trains_everything_again(finished_project: Project) -> None:
    with finished_project.edited("src/fedshift/core/rng.py", "_entropy(key) >> 65", "_entropy(key) >> 64"):
        assert trained(finished_project.jobs()) == set(finished_project.runs())


def test_another_call_that_shares_runs_uses_them(finished_project: Project) -> None:
    finished_project.study("second", title="Another study", seeds=[1])
    try:
        jobs = finished_project.jobs("second")
        assert rules(jobs) == AFTER
        assert finished_project.jobs("second,tiny") == jobs, "tiny is done, whoever asks beside it"
    finally:
        (finished_project.root / "config" / "studies" / "second.yaml").unlink()


def test_processes_change_nothing_that_is_there_and_share_a_training(finished_project: Project) -> None:
    assert finished_project.jobs("tiny", "processes=2") == set()
    path = finished_project.study(
        "shared", training={"rounds": 3, "batch_size": 4, "lr": 0.01}, runs=[FEDAVG], seeds=[0]
    )
    try:
        (run,) = trained(finished_project.jobs("shared"))
        manifest = f"results/runs/{run}/manifest.json"
        done = finished_project.snakemake("--cores", "2", "--config", "study=shared", "processes=2", "--", manifest)
    finally:
        path.unlink()
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((finished_project.root / manifest).read_text())["processes"] == 2


def test_a_mirror_changes_nothing_that_is_there(finished_project: Project) -> None:
    assert finished_project.jobs("tiny", "mirror=own images") == set()


def test_own_images_that_change_are_prepared_again(finished_project: Project) -> None:
    with finished_project.edited("own images/samples.csv", "A0.png,0,A,A0", "A0.png,1,A,A0"):
        assert {"prepare", "partition", "train"} <= rules(finished_project.jobs())


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("study=tinny",), "study: unknown study 'tinny'; did you mean 'tiny'?"),
        (("study=tiny", "scale=minni"), "scale: unknown scale 'minni'; did you mean 'mini'?"),
    ],
)
def test_a_wrong_setting_gets_one_line(finished_project: Project, settings: tuple[str, ...], line: str) -> None:
    done = finished_project.snakemake("--cores", "1", "--config", *settings)
    assert done.returncode == 2
    said = [text for text in (done.stdout + done.stderr).splitlines() if not text.startswith(("Using", "Config file"))]
    assert said == [line]


def test_a_wrong_study_gets_a_line_for_each_error(finished_project: Project) -> None:
    path = finished_project.study("wrong", modle="mlp", seeds=[-1])
    try:
        done = finished_project.snakemake("--cores", "1", "--config", "study=wrong")
    finally:
        path.unlink()
    assert done.returncode == 2
    assert "wrong.yaml.modle: unknown key 'modle'; did you mean 'model'?" in done.stderr
    assert "wrong.yaml.seeds.0: Input should be greater than or equal to 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_fails_lets_the_others_finish_and_says_why(finished_project: Project) -> None:
    bad = {"algorithm": "fedavg", "bn": "local", "training": {"lr": 1e18}}
    good = {"algorithm": "fedavg", "training": {"rounds": 1}}
    path, before = finished_project.study("failing", runs=[bad, good], seeds=[0]), set(finished_project.runs())
    try:
        done = finished_project.build("failing", "--keep-going")
    finally:
        path.unlink()
    assert done.returncode == 1
    (finished,) = set(finished_project.runs()) - before
    assert finished.startswith("fedavg-aggregated-")
    assert len(list((finished_project.root / "results" / "runs" / finished).glob("predictions-*.parquet"))) == 1
    said = done.stdout + done.stderr
    assert "Traceback (most recent call last)" not in said
    assert re.search(r"round 1.*the training loss is (nan|inf)", said), "the log of the failed job is not shown"
    (failed,) = {p.name for p in (finished_project.root / "results" / "runs").iterdir()} - set(finished_project.runs())
    assert failed.startswith("fedavg-local-")
    left = {name for name in finished_project.files() if f"runs/{failed}/" in name}
    assert not {name for name in left if name.endswith((".safetensors", ".parquet", "spec.json", "manifest.json"))}
    assert not [name for name in finished_project.files() if ".tmp-" in name]
    assert not (finished_project.root / "reports" / "failing.html").exists()


# --- Snakemake's own tools ------------------------------------------------------------------------------------------


def test_the_workflow_has_no_lints(finished_project: Project) -> None:
    done = finished_project.snakemake("--lint", "--config", "study=tiny")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_is_formatted() -> None:
    command = [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_snakemake_makes_its_own_report(finished_project: Project, tmp_path: Path) -> None:
    done = finished_project.snakemake("--report", str(tmp_path / "report.zip"), "--config", "study=tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(tmp_path / "report.zip") as archive:
        names = archive.namelist()
    assert any(name.endswith("tiny.html") for name in names)
    assert any(name.endswith("sites.svg") for name in names)
