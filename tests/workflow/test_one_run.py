"""The command that repeats one run is one that Snakemake understands, and it does no more than that."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_project import Project

from fedshift import study
from fedshift.io import shipped
from fedshift.io.paths import Paths
from fedshift.study import calls

pytestmark = pytest.mark.slow


def test_the_command_of_a_run_trains_and_predicts_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.create(tmp_path / "a project", runs=[{"algorithm": "fedavg", "bn": ["aggregated", "local"]}])
    monkeypatch.chdir(project.root)  # the id of a table counts from the working folder
    env = os.environ | {"PYTHONPATH": str(project.root / "src")}
    plan = study.load(project.root / "config" / "studies" / "tiny.yaml", "mini")
    run = next(iter(plan.runs))
    printed = subprocess.run(
        [sys.executable, "-m", "fedshift", "repeat", "tiny", run],
        cwd=project.root, env=env, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    program, *words = shlex.split(printed)
    assert program == "snakemake"
    done = project.snakemake("--dry-run", *words)
    assert done.returncode == 0, done.stderr
    rules = re.findall(r"^(?:local)?rule (\w+):$", done.stdout + done.stderr, re.MULTILINE)
    assert sorted(rules) == ["download", "partition", "predict", "prepare", "train"]
    assert set(re.findall(r"run=([\w-]+)", done.stdout + done.stderr)) == {run}
    # This process has the package of another clone.
    monkeypatch.setattr(shipped, "SNAKEFILE", project.root / "Snakefile")
    (shown,) = calls.single_runs(plan, Paths(project.root))
    assert printed == shown.replace("RUN", run), "the page shows the same one"
