"""Snakemake imports only light modules to build its graph."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

COMMON = Path(__file__).parents[2] / "workflow" / "rules" / "common.smk"


def head() -> str:
    """The imports of this package at the head of the workflow, and what it does with them."""
    lines = re.findall(r"^from fedshift.*", COMMON.read_text(encoding="utf-8"), re.MULTILINE)
    assert lines
    return "\n".join(lines)


@functools.cache
def loaded() -> set[str]:
    """Return the modules loaded once the workflow has read a study and asked for the digests of its jobs' code."""
    code = f"""
import sys
from pathlib import Path
import fedshift.study
{head()}
plan = study.load(Path("config/studies/demo.yaml"), "mini")
for run in plan.runs.values():
    study.code("jobs.train", *run.plugins)
for inference in plan.inferences.values():
    study.code("jobs.predict", inference)
for name in plan.study.metrics:
    study.code("analysis.score", registry.get("metric", name))
for name in plan.figures:
    study.code("analysis.study_results", registry.get("figure", name))
study.code("jobs.prepare", plan.study.dataset)
study.code("page.page")
print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=COMMON.parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return {name.partition(".")[0] for name in run.stdout.split()}


@pytest.mark.parametrize(
    "library", ["torch", "torchvision", "monai", "pandas", "scipy", "sklearn", "matplotlib", "pydicom", "nibabel"]
)
def test_the_workflow_is_built_without(library: str) -> None:
    assert library not in loaded()
