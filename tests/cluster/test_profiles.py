"""Resources that jobs ask for under each profile. A dry run shows them, so no cluster is needed."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tiny_project import Project


@pytest.fixture(scope="module")
def unbuilt_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project.create(tmp_path_factory.mktemp("profiles") / "a project")


def told(project: Project, profile: str, *words: str, **environment: str) -> str:
    """Return the output of a dry run."""
    names = ("ACCOUNT", "PARTITION", "GPU_PARTITION", "GPUS", "RUNS_PER_JOB", "GPU_SHARE", "GPU_MEMORY")
    unset = {f"FEDSHIFT_{name}": "" for name in names}
    call = ["--profile", f"profiles/{profile}", "--dry-run", *words, "--config", "study=tiny"]
    done = project.snakemake(*call, **unset | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def resources(said: str) -> dict[str, dict[str, str]]:
    """Return the resources of each rule, whose jobs must be alike."""
    found: dict[str, dict[str, str]] = {}
    for rule, listed in re.findall(r"^ *rule (\w+):\n(?: .*\n)*? +resources: (.*)$", said, re.MULTILINE):
        own = dict(item.partition("=")[::2] for item in listed.split(", "))
        own = {key: value for key, value in own.items() if not key.startswith(("disk", "tmpdir", "mem_mib"))}
        assert found.setdefault(rule, own) == own
    return found


def groups(said: str) -> Counter[str]:
    return Counter(re.findall(r"Group job (\w+) ", said))


def test_account_and_partitions_are_one_setting_each(unbuilt_project: Project) -> None:
    given = {"FEDSHIFT_ACCOUNT": "007", "FEDSHIFT_PARTITION": "all", "FEDSHIFT_GPU_PARTITION": "a100"}
    said = told(unbuilt_project, "slurm", **given)
    asked = resources(said)
    assert {of["slurm_account"] for of in asked.values()} == {"007"}
    assert {rule for rule, of in asked.items() if of["slurm_partition"] == "a100"} == {"train", "predict"}
    assert {of["slurm_partition"] for rule, of in asked.items() if rule not in ("train", "predict")} == {"all"}
    assert {rule for rule, of in asked.items() if of.get("gpu") == "1"} == {"train", "predict"}
    assert (asked["train"]["mem_mb"], asked["train"]["runtime"]) == ("16000", "480")
    assert groups(said) == {"predict": 1, "report": 1}, "and a job for each training"


def test_without_settings_the_cluster_has_its_defaults(unbuilt_project: Project) -> None:
    asked = resources(told(unbuilt_project, "slurm"))
    assert {of["slurm_account"] + of["slurm_partition"] for of in asked.values()} == {""}


def test_many_small_runs_share_an_allocation_and_its_time(unbuilt_project: Project) -> None:
    said = told(unbuilt_project, "slurm", FEDSHIFT_RUNS_PER_JOB="3", FEDSHIFT_GPUS="0", FEDSHIFT_PARTITION="cpu")
    assert groups(said) == {"train": 2, "predict": 1, "report": 1}, "four runs"
    train = resources(said)["train"]
    assert (train["runtime"], train["gpu"], train["slurm_partition"]) == ("160", "0", "cpu")


def test_on_a_workstation_jobs_take_one_gpu_each(unbuilt_project: Project) -> None:
    asked = resources(told(unbuilt_project, "gpu", "--resources", "gpu=2"))
    assert {rule for rule, of in asked.items() if of.get("gpu") == "1"} == {"train", "predict"}
    assert not [key for of in asked.values() for key in of if key.startswith("slurm")]


def test_small_runs_share_a_gpu_and_its_memory(unbuilt_project: Project) -> None:
    limits = ("--resources", "gpu_share=100", "gpu_memory=80000")
    said = told(unbuilt_project, "gpu", *limits, FEDSHIFT_GPU_SHARE="25", FEDSHIFT_GPU_MEMORY="12000")
    asked = resources(said)
    taken = {rule: (of.get("gpu_share"), of.get("gpu_memory")) for rule, of in asked.items() if "gpu" in of}
    assert taken == dict.fromkeys(("train", "predict"), ("25", "12000"))
