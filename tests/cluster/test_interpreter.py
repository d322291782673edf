"""A Python whose path a shell would split, under an executor that does not quote it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_project import Project

from fedshift.core.errors import UserError
from fedshift.study import calls


@pytest.mark.parametrize("folder", ["my project", "it's", "a;b", "$HOME"])
def test_it_is_refused_with_the_reason(folder: str) -> None:
    python = f"/opt/me/{folder}/.venv/bin/python"
    with pytest.raises(UserError, match="has a path with a space or a special character, which Snakemake") as caught:
        calls.require_plain(python)
    assert caught.value.where == python


def test_any_other_is_taken() -> None:
    calls.require_plain("/opt/me/project-1.0_b/.venv/bin/python3.11")


@pytest.mark.slow
def test_snakemake_submits_nothing_and_unlocks_the_folder(tmp_path: Path) -> None:
    project = Project.create(tmp_path / "project")
    environment = tmp_path / "an environment"
    environment.symlink_to(sys.prefix)
    python = environment / "bin" / Path(sys.executable).name
    words = ["-m", "snakemake", "--executor", "slurm", "--jobs", "1", "--config", "study=tiny"]
    for _ in range(2):
        done = subprocess.run([python, *words], cwd=project.root, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"{python}: has a path with a space")
    assert not (project.root / "results" / "logs" / "slurm").exists()
