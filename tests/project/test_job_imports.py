"""A job imports the heavy libraries that it uses, and no others: each kind of job runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fedshift import study

SOURCES = Path(__file__).parents[2] / "src"
HEAVY = {
    *("torch", "torchvision", "monai", "wilds", "pandas", "scipy", "scipy.stats", "sklearn", "matplotlib"),
    *("pyarrow", "mlflow", "ignite", "snakemake", "jinja2", "torch._dynamo", "pydicom", "nibabel"),
}
"""Modules that take a tenth of a second and more to import; `torch._dynamo` is PyTorch's compiler."""
TABLES = {"pandas", "pyarrow"}
MAY_IMPORT = {
    "check": set(),
    "download": TABLES,
    "prepare": TABLES,
    "partition": TABLES,
    "control": {*TABLES, "sklearn", "scipy", "scipy.stats"},
    "train": {*TABLES, "torch"},
    "predict": {*TABLES, "torch"},
    "score": {*TABLES, "scipy"},  # the intervals of folds and of sums
    "ledger": {*TABLES, "torch"},
    "divergence": {*TABLES, "torch", "sklearn", "scipy", "scipy.stats"},
    "report": {*TABLES, "jinja2", "matplotlib", "scipy"},
    "index": {*TABLES, "jinja2", "scipy"},
}
"""The heavy libraries of each kind of job of a study, and of its check."""
STUDY = {
    "title": "Imports",
    "dataset": {"name": "camelyon17", "patches": 40, "patients": 10},
    "partition": {"internal": ["centre0", "centre3"], "external": ["centre1"]},
    "model": "densenet_small",
    "transforms": [{"name": "center_crop", "size": 48}, "scale_intensity", "flip", "rotate90"],
    "training": {"rounds": 1, "batch_size": 8, "lr": 0.01},
    "runs": [{"algorithm": "fedavg"}],
    "inferences": ["tsmobn"],
    "figures": ["convergence"],
}
JOB = """
import atexit, pathlib, runpy, sys
atexit.register(lambda: pathlib.Path("imported").write_text(" ".join(sys.modules)))
sys.argv[0] = "fedshift"
runpy.run_module("fedshift", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The heavy modules that each kind of job had imported at its end."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    plan = study.load(folder / "study.yaml", "mini")
    (run,) = plan.runs.values()
    (inference,) = plan.prediction_jobs.values()
    ids = {
        "download": [run.data.raw],
        "prepare": [run.data.id],
        "partition": [run.partition_id],
        "control": [run.partition_id],
        "train": [run.id],
        "predict": [run.id, inference],
        "ledger": ["--write"],
    }
    modules = {}
    for kind in MAY_IMPORT:
        words = [kind] if kind == "index" else [kind, "study.yaml", *ids.get(kind, [])]
        done = subprocess.run(
            [sys.executable, "-c", JOB, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        modules[kind] = HEAVY & {*(folder / "imported").read_text(encoding="utf-8").split()}
    return modules


@pytest.mark.parametrize("kind", MAY_IMPORT)
def test_a_job_imports_what_it_uses(imported: dict[str, set[str]], kind: str) -> None:
    assert imported[kind] <= MAY_IMPORT[kind]
