"""A study of 500 runs: Snakemake plans it without loading what only the jobs need."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tiny_project import Project

pytestmark = pytest.mark.slow

SEEDS = 250
HEAVY = ("torch", "pandas", "matplotlib", "sklearn", "monai", "wilds")
PROBE = f"""
import atexit, json, os, sys

def tell():
    # Snakemake itself looks for pandas' types in parameters
    with open(os.environ["PROBE"], "w") as file:
        json.dump([m for m in {HEAVY!r} if m in sys.modules], file)

atexit.register(tell)
"""


@pytest.fixture(scope="module")
def large_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("scale")
    (root / "probe").mkdir()
    (root / "probe" / "sitecustomize.py").write_text(PROBE, encoding="utf-8")
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    made = Project.create(root / "a project", runs=runs, seeds=[0])
    made.jobs()  # writes the bytecode, for which two runs suffice
    made.study(runs=runs, seeds=list(range(SEEDS)))
    return made


def test_a_large_study_is_planned_without_torch(large_project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    probe = large_project.root.parent / "probe"
    words = ["--dry-run", "--config", "study=tiny"]
    start = time.perf_counter()
    done = large_project.cold_snakemake(*words, PYTHONPATH=str(probe), PROBE=str(probe / "modules.json"))
    seconds = time.perf_counter() - start
    with capsys.disabled():
        print(f"\ndry run of {2 * SEEDS} runs with two inferences: {seconds:.1f} s")
    assert done.returncode == 0, done.stderr
    counts = dict(re.findall(r"^(\w+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE))
    assert counts["train"] == str(2 * SEEDS)
    assert counts["predict"] == str(2 * SEEDS)
    assert counts["total"] == str(4 * SEEDS + 4 + 2 + 2), "data, control; score, report; index, all"
    loaded = json.loads(Path(probe / "modules.json").read_text(encoding="utf-8"))
    assert set(loaded) <= {"pandas"}
