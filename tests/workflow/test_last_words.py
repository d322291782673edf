"""What a call of the workflow says first and last."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_project import Project

pytestmark = pytest.mark.slow


def test_a_fault_stands_last_and_the_runs_can_be_followed(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "a project", seeds=[0], training={"rounds": 2, "batch_size": 400, "lr": 0.01})
    done = project.build("tiny", "--keep-going")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line]
    assert "To follow the runs, in another terminal: fedshift status tiny --watch" in lines
    assert lines[-1] == (
        "  client 'A': has 16 training images, fewer than one batch of 400; lower training.batch_size, or make the "
        "site external"
    )
    assert lines[-3].startswith("2 jobs failed. Finished work is kept:")
    assert lines[-2].endswith(".log, and 1 more with the same fault:")
    failed = [line for line in lines if line.startswith("failed: train ")]
    assert len(failed) == 2
    assert all("held out C, seed 0; see results/logs/train/" in line for line in failed)
    assert sum("16 training images" in line for line in lines) == 1, "the fault stands there once"
    (log,) = (project.root / ".snakemake" / "log").iterdir()
    told = log.read_text()
    assert told.count("Error in rule train:") >= 2
    assert told.count("16 training images") >= 2, "Snakemake's log holds what the jobs' logs say"
