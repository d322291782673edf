"""Every study of the papers runs at mini scale: a third of them each day, all with STUDIES=all (make test-all)."""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from tiny_project import ROOT, Project

from fedshift import study

pytestmark = pytest.mark.slow

FOLDER = ROOT / "config" / "studies"
PAPERS = [name for name in study.names(FOLDER) if name.startswith(("fedbn-", "tsmobn-", "unifed-", "fedtan-"))]
THIRD = date.today().toordinal() % 3
CHOSEN = PAPERS if os.environ.get("STUDIES") == "all" else PAPERS[THIRD::3]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the chosen studies ran, in one call: runs that studies share are trained once."""
    project = Project.create(tmp_path_factory.mktemp("studies"))
    shutil.rmtree(project.root / "config")
    shutil.copytree(ROOT / "config", project.root / "config")
    done = project.build(",".join(CHOSEN), "--keep-going")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project.root


@pytest.mark.parametrize("name", CHOSEN)
def test_a_study_ends_with_its_page(ran: Path, name: str) -> None:
    plan = study.load(FOLDER / f"{name}.yaml", "mini")
    page = (ran / "reports" / f"{name}.html").read_text(encoding="utf-8")
    assert "<script" not in page
    synthetic = any(data.synthetic for data in plan.data.values())
    assert ("Synthetic: not a result" in page) == synthetic
    folder = ran / "results" / "studies" / name
    assert json.loads((folder / "missing.json").read_text(encoding="utf-8")) == []
    scores = pd.read_csv(folder / "scores.csv")
    assert set(scores["run"]) == set(plan.runs)
    assert scores.loc[scores["metric"] == "accuracy", "value"].between(0, 1).all()
    for figure in plan.study.figures:
        assert (folder / "figures" / f"{figure}.svg").stat().st_size > 0
    verdicts = pd.read_csv(folder / "comparison.csv")["verdict"] if plan.published else pd.Series(dtype=str)
    assert set(verdicts) <= {"not comparable", "not run"}, "nothing at mini scale counts beside what was published"
