"""Every study of the papers runs at mini scale: a third of them each day, all with STUDIES=all (make test-all).

The day's third trains for two rounds a run, which is all that the tests below need; `make test-all` trains for the
rounds of the miniatures.
"""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tiny_project import ROOT, Project

from fedshift import study

pytestmark = pytest.mark.slow

FOLDER = Path("config") / "studies"
PAPERS = [name for name in study.names(ROOT / FOLDER) if name.startswith(("fedbn-", "tsmobn-", "unifed-", "fedtan-"))]
THIRD = date.today().toordinal() % 3
ALL = os.environ.get("STUDIES") == "all"
CHOSEN = PAPERS if ALL else PAPERS[THIRD::3]
FEW = 2
"""Rounds of a run in the day's third."""


def shorten(path: Path) -> None:
    """Let no run of a miniature train for more than a few rounds, unless its statistics are exchanged for more."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "exchange_rounds" in path.read_text(encoding="utf-8"):
        return
    mini = content["scales"]["mini"]
    for settings in (mini, *mini.get("runs", [])):
        training = settings.get("training", {})
        if "rounds" in training:
            training["rounds"] = min(FEW, training["rounds"])
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the chosen studies ran, in one call: runs that studies share are trained once."""
    project = Project.create(tmp_path_factory.mktemp("studies"))
    shutil.rmtree(project.root / "config")
    shutil.copytree(ROOT / "config", project.root / "config")
    for name in () if ALL else CHOSEN:
        shorten(project.root / FOLDER / f"{name}.yaml")
    # with one thread, `prepare` is forked from a process that has its libraries loaded, as all other jobs are
    done = project.build(",".join(CHOSEN), "--keep-going", "--set-threads", "prepare=1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return project.root


@pytest.mark.parametrize("name", CHOSEN)
def test_a_study_ends_with_its_page(ran: Path, name: str) -> None:
    plan = study.load(ran / FOLDER / f"{name}.yaml", "mini")
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
