"""Jobs that would run, and what they take: against Snakemake's own dry run, and against sums done by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fake_study
import pytest
from tiny_project import Project

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.io.arrays import write_tensors
from fedshift.io.paths import Paths
from fedshift.io.text import write_json, write_text
from fedshift.planning.plan import (
    CONDITION,
    RELATED,
    UNKNOWN,
    Clock,
    Job,
    Need,
    Survey,
    job_counts,
    lines,
    pending_jobs,
    survey,
)
from fedshift.study.run import Data, Run

PATHS = Paths()
STUDIES = Path("config/studies")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- which jobs would run


def test_jobs_are_those_of_snakemakes_dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First nothing is made; then data and partition are made by hand."""
    project = Project.create(tmp_path / "p", runs=[{"algorithm": "fedavg", "bn": ["aggregated", "local"]}])
    monkeypatch.chdir(project.root)
    assert cli.main(["plan", "tiny", "--json"]) == 0
    assert not (project.root / ".snakemake").exists(), "a look leaves nothing"
    plans = study.select("tiny", "mini", STUDIES)
    jobs = project.jobs()
    pending = pending_jobs({"study": "tiny"})
    assert Counter(job.rule for job in pending) == Counter(job.rule for job in jobs)
    assert {job.id for job in pending if job.rule == "train"} == set(plans["tiny"].runs)
    assert {job.reason for job in pending if job.rule == "download"} == {"missing output files"}
    assert job_counts(plans) == {"ledger": 0, "divergence": 0, "choose": 0} | Counter(job.rule for job in pending)


def test_an_empty_folder_has_the_workflow_that_comes_with_fedshift() -> None:
    jobs = Counter(job.rule for job in pending_jobs({"study": "demo"}))
    assert (jobs["download"], jobs["prepare"], jobs["train"], jobs["predict"]) == (1, 1, 6, 6)


def test_a_snakefile_of_something_else_is_left_alone() -> None:
    Path("Snakefile").write_text("rule all:\n    input: 'lost.txt'\n")
    assert "train" in {job.rule for job in pending_jobs({"study": "demo"})}


def test_a_workflow_that_fails_is_named() -> None:
    Path("Snakefile").write_text("# fedshift.io.shipped\nrule all:\n    input: 'lost.txt'\n")
    with pytest.raises(UserError, match=r"Snakefile: Snakemake's dry run failed: .*lost\.txt"):
        pending_jobs({})


# ---- how long


def run(algorithm: str = "fedavg", seed: int = 0, rounds: int = 10, model: str = "mlp", **training: Any) -> Run:
    data = Data(dataset=fake_study.Fake(), synthetic=False)
    settings: dict[str, Any] = {
        "partition": {"internal": ("A", "B"), "external": ("X",)},
        "model": model,
        "transforms": (),
        "algorithm": {"name": algorithm},
        "bn": "aggregated",
        "addon": None,
        "training": {"rounds": rounds, "batch_size": 4, **training},
    }
    return Run.model_validate({**settings, "data": data, "seed": seed})


CPU, GPU = "CPU (x86_64)", "A GPU"


def finished(of: Run, seconds: float, device: str = GPU, **changes: Any) -> None:
    told = fake_study.manifest(of) | {"seconds": seconds, "device": device} | changes
    write_json(PATHS.run(of.id) / "manifest.json", told)
    write_json(PATHS.run(of.id) / "spec.json", of.spec)


def train(of: Run) -> Need:
    return Clock(PATHS).train(of.spec, of.training.rounds)


def hours(seconds: float) -> Any:
    return pytest.approx(seconds / 3600)


def test_nothing_is_known_without_a_finished_run() -> None:
    assert train(run()) == Need("train", 1, None, UNKNOWN)
    assert Clock(PATHS).predict(run().spec, "source") == Need("predict", 1, None, UNKNOWN)


def test_the_median_of_the_condition_counts() -> None:
    for seed, seconds in enumerate([10.0, 20.0, 60.0]):
        finished(run(seed=seed), seconds)
    finished(run(algorithm="fedprox"), 1000.0)
    assert train(run(seed=9)) == Need("train", 1, hours(20), CONDITION, GPU)


def test_runs_with_the_same_dataset_and_network_tell_by_the_round() -> None:
    finished(run(algorithm="fedprox", rounds=5), 100.0)
    assert train(run(rounds=20)) == Need("train", 1, hours(400), RELATED, GPU)
    assert train(run(model="resnet20", rounds=20)).source == UNKNOWN


def test_a_run_is_told_from_the_finished_one_that_is_most_alike() -> None:
    assert Clock(PATHS).difference(run().spec) == ""
    finished(run(lr=0.5), 1.0)
    finished(run(lr=0.5, model="resnet20"), 1.0)
    clock = Clock(PATHS)
    assert clock.difference(run(lr=0.5, seed=7).spec) == "another seed"
    assert clock.difference(run(lr=0.25).spec) == "training.lr is 0.25, and was 0.5"
    told = clock.difference(run(lr=0.5, select_by="auc").spec)
    assert told == 'training.select_by is "auc", and was null'
    assert clock.difference(run("fedprox", lr=0.1, rounds=3, momentum=0.5, model="mlp").spec) == ""
    (line,) = list(lines(Survey([], [], 0, 0, 0, {told: 6})))[2:-1]
    assert line == f"  never trained before: 6 runs; unlike the most similar finished run: {told}"


def test_a_run_that_is_trained_on_a_cpu_takes_all_its_cores() -> None:
    finished(run(), 12.5, CPU, threads=4)
    assert train(run(seed=1)) == Need("train", 1, hours(50), CONDITION, CPU)


@pytest.mark.parametrize("changes", [{"seconds": None}, {"rounds": 0}, {"device": CPU, "threads": "x"}])
def test_manifests_that_cannot_be_read_tell_nothing(changes: dict[str, Any]) -> None:
    finished(run(), **{"seconds": 1.0, **changes})
    assert train(run()).source == UNKNOWN


def benchmark(name: str, text: str) -> None:
    write_text(Path("results/benchmarks/predict") / f"{name}.tsv", text)


def test_predictions_take_as_long_as_those_with_the_same_inferences() -> None:
    other, on_cpu = run(algorithm="fedprox"), run(algorithm="fedbn")
    finished(other, 600.0)
    benchmark(f"{other.id}-source", "s\tmax_rss\tcpu_time\n9.0\t1.0\t30.0\n")
    assert Clock(PATHS).predict(run().spec, "source") == Need("predict", 1, hours(9), RELATED, GPU)
    assert Clock(PATHS).predict(run().spec, "tsmobn").source == UNKNOWN
    finished(on_cpu, 600.0, CPU)
    benchmark(f"{on_cpu.id}-source", "s\tmax_rss\tcpu_time\n9.0\t1.0\t30.0\n")
    assert Clock(PATHS).predict(on_cpu.spec, "source") == Need("predict", 1, hours(30), CONDITION, CPU)


@pytest.mark.parametrize("text", ["", "s\n", "s\nx\n", "h\n1\n", "\n", "s\tcpu_time\n-\t1\n"])
def test_a_benchmark_that_cannot_be_read(text: str) -> None:
    finished(run(), 600.0)
    benchmark(f"{run().id}-source", text)
    assert Clock(PATHS).predict(run().spec, "source").source == UNKNOWN


# ---- all together


def test_a_study_that_is_partly_trained(tmp_path: Path) -> None:
    """Five of six runs are trained, in 12.5 s each, and a quarter of the sixth."""
    plan, _ = fake_study.build(tmp_path)
    last = list(plan.runs)[-1]
    (PATHS.run(last) / "manifest.json").unlink()
    for key, of in plan.runs.items():
        if key != last:
            finished(of, 12.5)
    made_of = {"identity": "", "progress": json.dumps({"round": 1})}
    write_tensors(PATHS.run(last) / "checkpoint" / "state.safetensors", {}, made_of)
    updated = "input files updated by another job"
    pending = [Job("predict", f"{last}-{plan.prediction_jobs[last]}", updated)]
    found = survey({"fake": plan}, [Job("train", last, "missing output files"), *pending], PATHS)
    assert {c.rule: (c.jobs, c.cached, c.why) for c in found.counts if c.rule in ("train", "predict", "prepare")} == {
        "prepare": (1, 1, {}),
        "train": (6, 5, {"missing output files": 1}),
        "predict": (6, 5, {updated: 1}),
    }
    assert found.hours == [Need("train", 1, hours(12.5 * 0.75), CONDITION, GPU), Need("predict", 1, None, UNKNOWN)]
    assert (found.at_work, found.going_on, found.may_end_early) == (0, 1, 0)


def test_the_words_of_a_survey() -> None:
    needs = [
        Need("train", 3, 2.0, "seeds", "CPU (x86_64)"),
        Need("train", 1, 0.5, "kin", "H"),
        Need("predict", 9, None, "?"),
        Need("predict", 1, 0.05, "kin", "H2"),
    ]
    assert list(lines(Survey([], needs, at_work=1, going_on=2, may_end_early=3)))[2:] == [
        "Runs to train: running now: 1; resume from a checkpoint (if code and data have not changed): 2.",
        "Time for training and prediction: at least 2.00 CPU-hours and 0.50 GPU-hours (H) and 3.00 GPU-minutes (H2)",
        "  train         3   2.00 CPU-hours   seeds",
        "  train         1   0.50 GPU-hours (H) kin",
        "  predict       9   unknown          ?",
        "  predict       1   3.00 GPU-minutes (H2) kin",
        "  runs that may end early because of their patience, and are counted in full: 3",
    ]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    monkeypatch.chdir(Project.create(tmp_path / "p", runs=runs).root)
    assert cli.main(["plan", "tiny"]) == 0
    out = capsys.readouterr().out.splitlines()
    rules = ["download", "prepare", "partition", "control", "train", "predict", "score", "report"]
    assert [line.split()[0] for line in out[1:11]] == [*rules, "index", "all"]
    assert out[5].split(maxsplit=4) == ["train", "4", "0", "4", "4 missing output files"]
    assert "Time for training and prediction: unknown" in out
    assert cli.main(["plan", "tiny", "--json"]) == 0
    assert {c["rule"]: c["to_run"] for c in json.loads(capsys.readouterr().out)["counts"]}["train"] == 4
    # Digests of the user's images are remembered, if these are seconds old.
    made = {path.name for path in Path("results").rglob("*") if path.is_file()}
    assert all(name.endswith(".contents.json") for name in made), "looking makes nothing"


def test_status_needs_no_torch() -> None:
    STUDIES.mkdir(parents=True)
    Path("t.csv").write_text("path,label,site\n")
    (STUDIES / "tiny.yaml").write_text(
        "title: T\ndataset: {name: own_images, table: t.csv}\npartition: {internal: [A], external: [B]}\n"
        "model: mlp\nruns: [{algorithm: fedavg}]\ninferences: [source]\n"
    )
    code = (
        "import sys; from fedshift.cli import main; assert main(['status', 'tiny']) == 0; "
        "assert not {'torch', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
