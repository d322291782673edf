"""A study on a real SLURM: jobs get what the profile asks for, and a run that is stopped loses nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import one_node
import pytest
from one_node import Cluster
from patience import PATIENCE, until
from tiny_project import Project

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

if (lacking := one_node.missing()) and os.environ.get("REQUIRE_SLURM") != "1":
    pytest.skip(f"no SLURM on this machine: {', '.join(lacking)}", allow_module_level=True)

SLOW = '''"""FedAvg on a device that takes its time."""

import os
import time

from fedshift.algorithms import Algorithm


class Slow(Algorithm):
    """Waits before each step, as long as a file is there that the environment names."""

    def loss(self, local, x, y):
        if os.path.exists(os.environ.get("HOLD", "")):
            time.sleep(0.25)
        return super().loss(local, x, y)
'''
CANCELLED, REQUEUED, TIMED_OUT = 1, 2, 3
"""Seeds, each with its fate."""
STOPS = {
    CANCELLED: ["scancel", "{}"],
    REQUEUED: ["scontrol", "requeue", "{}"],
    TIMED_OUT: ["scontrol", "update", "timelimit=1", "jobid={}"],
}
STUDY = {
    # while they are held, for two minutes: SLURM looks every 30 seconds for jobs whose time is over
    "runs": [{"algorithm": "slow", "seeds": [CANCELLED, REQUEUED, TIMED_OUT], "training": {"rounds": 60}}],
    "inferences": ["tsmobn"],
    "figures": [],
}
EQUAL = ("model.safetensors", "clients.safetensors", "predictions-tsmobn.parquet")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    assert not lacking, f"REQUIRE_SLURM=1, but there is no {', '.join(lacking)}"
    with one_node.started() as cluster:
        yield cluster


def created(root: Path) -> Project:
    project = Project.create(root, **STUDY)
    (project.root / "src" / "fedshift" / "algorithms" / "slow.py").write_text(SLOW, encoding="utf-8")
    return project


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The study, done without a cluster."""
    project = created(tmp_path_factory.mktemp("local") / "a project")
    done = project.build()
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@dataclass(frozen=True)
class Outcome:
    """The study, done on a cluster."""

    project: Project
    said: str
    jobs: list[dict[str, str]]

    def trainings(self, seed: int) -> list[dict[str, str]]:
        """SLURM's jobs for a run, in their order."""
        return [job for job in self.jobs if job["Comment"] == f"rule_train_wildcards_{run(self.project, seed)}"]

    def log(self, seed: int) -> str:
        return (self.project.root / "results/logs/train" / f"{run(self.project, seed)}.log").read_text(encoding="utf-8")


def run(project: Project, seed: int) -> str:
    """The run of a seed, once it is done."""
    (found,) = (key for key, spec in project.runs().items() if spec["seed"] == seed)
    return found


@pytest.fixture(scope="module")
def outcome(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, local: Project) -> Outcome:
    """One call of Snakemake, and three runs that are stopped while they are under way, slow until all have stopped."""
    project = created(tmp_path_factory.mktemp("cluster") / "a project")
    words = ["--profile", "profiles/slurm", "--config", "study=tiny"]
    output = project.root.parent / "snakemake.log"
    (hold := project.root.parent / "hold").touch()
    environment = cluster.environment | {"FEDSHIFT_GPU_PARTITION": "gpu", "HOLD": str(hold)}
    with output.open("w") as out:
        process = subprocess.Popen(
            [one_node.plain_python(cluster.folder), str(Path(__file__).parent / "quick.py"), *words],
            cwd=project.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        runs = {run(local, seed): command for seed, command in STOPS.items()}
        waiting = dict(runs)
        while waiting:
            until(lambda: process.poll() is not None or begun(project, waiting), "a run that is under way")
            assert process.poll() is None, output.read_text()
            for key in begun(project, waiting):
                (job,) = (number for number, job in cluster.jobs().items() if job["Comment"].endswith(key))
                cluster.ask(*(word.format(job) for word in waiting.pop(key)))
        until(lambda: process.poll() is not None or stopped(project, runs), "runs that have stopped")
        hold.unlink()
        assert process.wait(2 * PATIENCE) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()
    return Outcome(project, output.read_text(), list(cluster.jobs().values()))


def begun(project: Project, runs: Iterable[str]) -> list[str]:
    """Return the runs that have done some rounds."""
    logs = {key: project.root / "results" / "runs" / key / "rounds.jsonl" for key in runs}
    return [key for key, log in logs.items() if log.exists() and log.read_text(encoding="utf-8").count("\n") >= 2]


def stopped(project: Project, runs: Iterable[str]) -> bool:
    """Return whether all runs have stopped, or go on already."""
    logs = [project.root / "results" / "logs" / "train" / f"{key}.log" for key in runs]
    told = [log.read_text(encoding="utf-8") if log.exists() else "" for log in logs]
    return all("stopped; start again" in text or "resuming after round" in text for text in told)


def test_the_bytes_are_those_of_a_run_without_a_cluster(outcome: Outcome, local: Project) -> None:
    files = [f"results/runs/{key}/{name}" for key in local.runs() for name in EQUAL]
    assert outcome.project.runs() == local.runs()
    for name in (*files, "results/studies/tiny/scores.csv"):
        assert (outcome.project.root / name).read_bytes() == (local.root / name).read_bytes(), name


def test_a_training_gets_a_gpu_and_what_the_profile_asks_for(outcome: Outcome) -> None:
    """A job that is requeued stays the same job."""
    (job,) = outcome.trainings(REQUEUED)
    assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "1")
    assert (job["Partition"], job["TresPerJob"], job["TimeLimit"]) == ("gpu", "gres:gpu:1", "08:00:00")
    assert job["TRES"].split(",")[:2] == ["cpu=1", "mem=16000M"]
    assert job["JobName"].startswith("fedshift_")


@pytest.mark.parametrize(("seed", "ends"), [(CANCELLED, {"CANCELLED"}), (TIMED_OUT, {"FAILED", "TIMEOUT"})])
def test_a_training_that_failed_is_tried_again_with_more(outcome: Outcome, seed: int, ends: set[str]) -> None:
    first, second = outcome.trainings(seed)
    assert first["JobState"] in ends
    assert second["JobState"] == "COMPLETED"
    assert (second["Partition"], second["TresPerJob"], second["TimeLimit"]) == ("gpu", "gres:gpu:1", "16:00:00")
    assert second["TRES"].split(",")[:2] == ["cpu=1", "mem=32000M"]


@pytest.mark.parametrize("seed", [CANCELLED, REQUEUED, TIMED_OUT])
def test_a_training_that_was_stopped_goes_on_from_its_last_round(outcome: Outcome, seed: int) -> None:
    first, *others = outcome.log(seed).splitlines()
    (resumed,) = map(int, re.findall(r"^resuming after round (\d+)$", first))
    assert resumed >= 1
    rounds = [int(line.split()[1].partition("/")[0]) for line in others if line.startswith("round ")]
    assert rounds == list(range(resumed + 1, rounds[-1] + 1))


def test_logs_of_attempts_that_failed_are_kept(outcome: Outcome) -> None:
    """Snakemake's log shows them; the signal reached the training through two of its calls and a shell."""
    assert outcome.said.count("failed: train ") >= 2
    told = "".join(p.read_text() for p in sorted((outcome.project.root / ".snakemake" / "log").glob("*.snakemake.log")))
    for seed in (CANCELLED, TIMED_OUT):
        shown = told.split(f"Logfile results/logs/train/{run(outcome.project, seed)}.log:\n")[1]
        log = shown.splitlines()[1:]
        assert log[0].startswith("round 1/")
        assert "stopped; start again to go on from the last round" in log[: log.index(next(filter(is_rule, log)))]


def is_rule(line: str) -> bool:
    """Return whether a line is the rule that Snakemake draws below a log."""
    return set(line) == {"="}


def test_small_jobs_share_an_allocation(outcome: Outcome) -> None:
    kinds = Counter(re.sub("_wildcards_.*", "", job["Comment"]) for job in outcome.jobs)
    assert kinds == {
        "rule_prepare": 1,
        "rule_control": 1,
        "rule_train": 3 + 2,
        "rule_predict_predict": 1,
        "rule_report_report_score": 1,
    }
    (predicting,) = (job for job in outcome.jobs if job["Comment"] == "rule_predict_predict")
    assert predicting["TresPerJob"] == "gres:gpu:1", "one after the other on one GPU"
    assert predicting["TimeLimit"] == "01:30:00", "three times half an hour"
