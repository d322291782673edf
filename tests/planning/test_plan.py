"""Jobs that would run, and what they take: against Snakemake's own dry run, and against sums done by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from tiny_project import Project

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.datasets.camelyon17 import Camelyon17
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table
from fedshift.io.tensors import write_tensors
from fedshift.io.text import write_json, write_text
from fedshift.planning import disk as sizes
from fedshift.planning import hours as timing
from fedshift.planning.dag import MISSING, Job, pending_jobs
from fedshift.planning.hours import LEVELS, Clock, Timed, timed
from fedshift.planning.plan import Need, Survey, job_counts, lines, survey
from fedshift.planning.run_state import State
from fedshift.planning.sample_counts import SampleCounts
from fedshift.study.run import Data, Run

PATHS = Paths()
STUDIES = Path("config/studies")
SAME, SEEDS, ALGORITHM, KIN, MODEL = LEVELS


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
    assert {job.reason for job in pending if job.rule == "download"} == {MISSING}
    assert job_counts(plans) == {"ledger": 0, "choose": 0} | Counter(job.rule for job in pending)


def test_an_empty_folder_has_the_workflow_that_comes_with_fedshift() -> None:
    jobs = Counter(job.rule for job in pending_jobs({"study": "demo"}))
    assert (jobs["download"], jobs["prepare"], jobs["train"], jobs["predict"]) == (1, 1, 6, 12)


def test_a_snakefile_of_something_else_is_left_alone() -> None:
    Path("Snakefile").write_text("rule all:\n    input: 'lost.txt'\n")
    assert "train" in {job.rule for job in pending_jobs({"study": "demo"})}


def test_a_workflow_that_fails_is_named() -> None:
    Path("Snakefile").write_text("# fedshift.io.shipped\nrule all:\n    input: 'lost.txt'\n")
    with pytest.raises(UserError, match=r"Snakefile: Snakemake's dry run failed: .*lost\.txt"):
        pending_jobs({})


# ---- how long


def run(
    sites: str = "AB",
    algorithm: str = "fedavg",
    seed: int = 0,
    rounds: int = 10,
    bn: str = "aggregated",
    transforms: tuple[Any, ...] = (),
    **training: Any,
) -> Run:
    data = Data(dataset=fake_study.Fake(), synthetic=False)
    settings: dict[str, Any] = {
        "partition": {"internal": tuple(sites), "external": ("X",)},
        "model": "mlp",
        "transforms": transforms,
        "algorithm": {"name": algorithm},
        "bn": bn,
        "addon": None,
        "training": {"rounds": rounds, "batch_size": 4, **training},
    }
    return Run.model_validate({**settings, "data": data, "seed": seed})


def write_partition(of: Run, rows: list[tuple[str, str]]) -> None:
    """The partition of a run, with the site and the split of each sample."""
    table = pd.DataFrame(rows, columns=["site", "split"])
    role = table["site"].isin(of.partition.internal).map({True: "internal", False: "external"})
    write_table(PATHS.partition(of.partition_id), table.assign(sample=[str(n) for n in range(len(table))], role=role))


def made(of: Run, side: int = 8, train: int = 30, test: int = 12) -> None:
    """Data and partition: so many images that train at each internal site, so many tests at each site."""
    rows = [(site, "train") for site in of.partition.internal for _ in range(train)]
    rows += [(site, "test") for site in of.tested for _ in range(test)]
    write_partition(of, rows)
    PATHS.data(of.data.id).mkdir(parents=True, exist_ok=True)
    np.save(PATHS.data(of.data.id) / "images.npy", np.zeros((1, side, side, 3), np.uint8))


def clock(*given: Timed) -> Clock:
    return Clock(given, SampleCounts(PATHS), PATHS)


def test_nothing_timed_nothing_known() -> None:
    assert clock().train(run()).seconds is None
    assert clock().predict(run(), "source", 1).seconds is None


def test_other_seeds_tell_first_and_their_median_counts() -> None:
    given = [Timed(run(seed=n), seconds, 10) for n, seconds in enumerate([10.0, 20.0, 60.0])]
    found = clock(*given, Timed(run(algorithm="fedprox"), 1000.0, 10)).train(run(seed=9))
    assert (found.seconds, found.source) == (20.0, SEEDS)


def test_a_run_tells_most_of_itself() -> None:
    found = clock(Timed(run(seed=0), 10.0, 5), Timed(run(seed=1), 50.0, 10)).train(run(seed=0))
    assert (found.seconds, found.source) == (20.0, SAME), "five of ten rounds took 10 s"


def test_the_same_algorithm_goes_before_others_and_rounds_count() -> None:
    given = [Timed(run(rounds=5), 10.0, 5), Timed(run(algorithm="fedprox", rounds=5), 100.0, 5)]
    found = clock(*given).train(run(rounds=20))
    assert (found.seconds, found.source) == (40.0, ALGORITHM)
    found = clock(given[1]).train(run(rounds=20))
    assert (found.seconds, found.source) == (400.0, KIN)


def test_images_count() -> None:
    """60 images a round took 10 s; three sites of 30 are 90, in two epochs 180."""
    small, large, longer = run(), run("ABC"), run("ABC", local_epochs=2)
    made(small)
    known = Timed(small, 10.0, 10)
    assert clock(known).train(large).seconds is None, "its partition is not made"
    made(large)
    assert clock(known).train(large) == timing.Estimate(15.0, ALGORITHM)
    assert clock(known).train(longer) == timing.Estimate(30.0, MODEL)


@pytest.mark.parametrize(
    ("training", "images"),
    [
        ({}, 40),
        ({"local_epochs": 3}, 120),
        ({"local_steps": 5}, 2 * 5 * 4),
        ({"equal_steps": True}, 60),
        ({"participation": 0.5}, 20),
    ],
)
def test_images_of_a_round(training: dict[str, Any], images: float) -> None:
    of = run(**training)
    write_partition(of, [("A", "train")] * 30 + [("B", "train")] * 10 + [("B", "val")] * 5)
    assert SampleCounts(PATHS).trained(of) == images


def test_the_size_of_images_counts() -> None:
    """Brought from 8 to 16 pixels a side, an image has four times as many."""
    small, large = run(), run(transforms=({"name": "resize", "size": 16},))
    made(small)
    found = clock(Timed(small, 10.0, 10)).train(large)
    assert (found.seconds, found.source) == (40.0, MODEL)
    assert SampleCounts(PATHS).shape(large) == (3, 16, 16)


def test_the_device_that_most_ran_on() -> None:
    given = [Timed(run(seed=n), n + 1.0, 10, "GPU" if n < 3 else "CPU") for n in range(5)]
    assert clock(*given).train(run(seed=9)) == timing.Estimate(2.0, SEEDS, "GPU")


def test_predictions_by_rule_of_thumb() -> None:
    """600 s for 10 rounds of 60 images: a second an image, a third of it in a test; 36 images are tested twice."""
    of = run()
    made(of)
    found = clock(Timed(of, 600.0, 10, "A GPU")).predict(run(seed=1), "source", 2)
    assert (found.seconds, found.source, found.device) == (24.0, timing.THIRD, "A GPU")


def benchmark(rule: str, name: str, wall: float, cores: float | str = "") -> None:
    text = f"s\th:m:s\tcpu_time\n{wall}\t0:00:00\t{cores}\n"
    write_text(Path("results/benchmarks") / rule / f"{name}.tsv", text)


def test_predictions_that_were_timed() -> None:
    of, other = run(), run("ABC")
    made(of)
    made(other)
    benchmark("predict", f"{of.id}-source", 9.0)
    found = clock(Timed(of, 600.0, 10)).predict(other, "source", 1)
    assert (found.seconds, found.source) == (12.0, timing.PREDICTED), "48 images and 36"


@pytest.mark.parametrize("text", ["", "s\n", "s\nx\n", "h\n1\n", "\n", "s\tcpu_time\n1\t-\n"])
def test_a_benchmark_that_cannot_be_read(text: str) -> None:
    write_text(Path("results/benchmarks/train/r.tsv"), text)
    assert timing.Benchmark.read(PATHS, "train", "r") is None
    assert timing.Benchmark.read(PATHS, "train", "another") is None


def finished(of: Run, **changes: Any) -> None:
    write_json(PATHS.run(of.id) / "manifest.json", fake_study.manifest(of) | {"seconds": 12.5} | changes)


CPU, GPU = "CPU (x86_64)", "A GPU"


@pytest.mark.parametrize(
    ("told", "measured", "seconds"),
    [
        ({"device": GPU}, None, 12.5),
        ({"device": GPU, "threads": 4}, (20.0, 60.0), 20.0),  # the start of the job counts
        ({"device": GPU}, (10.0, 60.0), 12.5),  # a resumed run's end alone
        ({"device": CPU, "threads": 4}, None, 50.0),
        ({"device": CPU, "threads": 4}, (20.0, 44.0), 44.0),  # four threads, not always busy
        ({"device": CPU, "threads": 4}, (20.0,), 20.0),
        ({"device": CPU, "threads": 4}, (10.0, 40.0), 50.0),
    ],
)
def test_seconds_of_a_gpu_or_of_a_core(
    told: dict[str, Any], measured: tuple[float, ...] | None, seconds: float
) -> None:
    of = run()
    finished(of, **told)
    if measured:
        benchmark("train", of.id, *measured)
    assert list(timed({of.id: of}, {}, PATHS)) == [Timed(of, seconds, 10, told["device"])]


def test_what_was_timed_in_a_folder() -> None:
    first, second, third = (run(seed=n) for n in range(3))
    finished(first, device=GPU)
    benchmark("train", second.id, 30.0)  # its folder is gone
    write_json(PATHS.run("broken") / "manifest.json", {"seconds": 1})
    states = {third.id: State(third.id, "X", 2, "running", 10, round=4, seconds_a_round=2.5)}
    found = {t.run.seed: t for t in timed({r.id: r for r in (first, second, third)}, states, PATHS)}
    assert found == {0: Timed(first, 12.5, 10, GPU), 1: Timed(second, 30.0, 10), 2: Timed(third, 10.0, 4)}


# ---- how much disk


def network_bytes() -> int:
    """An mlp of 30 hidden units for 3 x 8 x 8 and 2 classes: two layers, and gamma, beta, mean and variance."""
    return 4 * (192 * 30 + 30 + 4 * 30 + 30 * 2 + 2)


@pytest.mark.parametrize(
    ("algorithm", "bn", "expected"),
    [
        ("fedavg", "aggregated", network_bytes()),
        ("fedavg", "local", network_bytes() + 2 * 4 * 4 * 30),
        ("fedavg", "local_statistics", network_bytes() + 2 * 4 * 2 * 30),
        ("local", "local", 3 * network_bytes()),
        ("pooled", "aggregated", 2 * network_bytes()),
    ],
)
def test_models_are_counted(algorithm: str, bn: str, expected: int) -> None:
    assert sizes.counted(run(algorithm=algorithm, bn=bn), (3, 8, 8)) == expected


def test_models_that_lie_there_tell_of_others() -> None:
    known, unknown = run(), run(algorithm="fedprox")
    for name, size in (("model", 100), ("clients", 11)):
        write_text(PATHS.run(known.id) / f"{name}.safetensors", size * "x")
    models = sizes.Models([known, unknown], SampleCounts(PATHS), PATHS)
    assert models.size(run(seed=1)) == sizes.Size(111, sizes.LIKE)
    assert models.size(unknown) == sizes.Size(None, sizes.UNPREPARED)


def test_raw_files() -> None:
    assert sizes.raw(Data(dataset=Camelyon17(), synthetic=False)).bytes == 10_658_709_504
    assert sizes.raw(Data(dataset=Camelyon17(), synthetic=True)).bytes == 0
    assert sizes.raw(Data(dataset=fake_study.Fake(), synthetic=False)).bytes is None


def test_predictions() -> None:
    assert sizes.predictions(run(), 100, 3).bytes == 3 * 100 * (2 * 8 + 25)
    assert sizes.predictions(run(), 0, 3).bytes is None


# ---- all together


def test_a_study_that_is_partly_trained(tmp_path: Path) -> None:
    """Five of six runs are trained, in 12.5 s each, and a quarter of the sixth."""
    plan, _ = fake_study.build(tmp_path)
    last = list(plan.runs)[-1]
    (PATHS.run(last) / "manifest.json").unlink()
    for key, of in plan.runs.items():
        code = study.code("jobs.train", *of.plugins)
        for name in ("model", "clients"):
            write_text(PATHS.run(key) / f"{name}.safetensors", 50 * "x")
        if key != last:
            write_json(PATHS.run(key) / "manifest.json", {**fake_study.manifest(of), "code": code})
    made_of = {"identity": "", "progress": json.dumps({"round": 1})}
    write_tensors(PATHS.run(last) / "checkpoint" / "state.safetensors", {}, made_of)
    untold = [
        Job("predict", f"{last}-{sweep}", "input files updated by another job") for sweep in plan.prediction_jobs[last]
    ]
    found = survey({"fake": plan}, [Job("train", last, MISSING), *untold], PATHS)
    assert {c.rule: (c.jobs, c.cached, c.why) for c in found.counts if c.rule in ("train", "predict", "prepare")} == {
        "prepare": (1, 1, {}),
        "train": (6, 5, {MISSING: 1}),
        "predict": (12, 10, {"input files updated by another job": 2}),
    }
    train, *_ = found.hours
    assert train == Need("train", 1, pytest.approx(12.5 * 0.75 / 3600), SEEDS, "cpu")
    assert (found.at_work, found.going_on, found.may_end_early) == (0, 1, 0)
    assert found.bytes[0] == Need("train", 1, 100, sizes.LIKE)


def test_the_words_of_a_survey() -> None:
    found = Survey(
        [],
        [
            Need("train", 3, 2.0, "seeds", "CPU (x86_64)"),
            Need("train", 1, 0.5, "kin", "H"),
            Need("predict", 9, None, "?"),
            Need("predict", 1, 0.05, "kin"),
        ],
        [Need("train", 3, 2.5e9, "like"), Need("predict", 9, 5e6, "thumb")],
        2_000_000_000,
        at_work=1,
        going_on=2,
        may_end_early=0,
    )
    assert list(lines(found))[2:] == [
        "Runs to train: running now: 1; resume from a checkpoint (if code and data have not changed): 2.",
        "Time for training and prediction: at least 2.00 CPU-hours and 0.50 GPU-hours (H) and 3.00 minutes "
        "(device not recorded)",
        "  train         3   2.00 CPU-hours   seeds",
        "  train         1   0.50 GPU-hours (H) kin",
        "  predict       9   unknown          ?",
        "  predict       1   3.00 minutes (device not recorded) kin",
        "Disk space: 2.50 GB",
        "  train         3   2.50 GB          like",
        "  predict       9   5.00 MB          thumb",
        "  free: 2.00 GB, which is too little",
    ]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    monkeypatch.chdir(Project.create(tmp_path / "p", runs=runs).root)
    assert cli.main(["plan", "tiny"]) == 0
    out = capsys.readouterr().out.splitlines()
    rules = ["download", "prepare", "partition", "control", "train", "predict", "score", "summarise", "figure", "page"]
    assert [line.split()[0] for line in out[1:13]] == [*rules, "index", "all"]
    assert out[5].split(maxsplit=4) == ["train", "4", "0", "4", "4 missing output files"]
    assert "Time for training and prediction: unknown" in out
    assert cli.main(["plan", "tiny", "--json"]) == 0
    assert {c["rule"]: c["to_run"] for c in json.loads(capsys.readouterr().out)["counts"]}["train"] == 4
    assert not Path("results").exists(), "looking makes nothing"


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
