"""Searches under Snakemake: what is trained, what counts, and what a further value of the list makes it do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_project import Project

from fedshift import study
from fedshift.io.text import read_json

pytestmark = pytest.mark.slow

TRAINING = {"rounds": 1, "batch_size": 4}
ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0], "figures": []}


def test_a_search_by_validation_and_one_by_an_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project.create(tmp_path / "p", **ONE, training={**TRAINING, "lr": [0.1, 0.001]})
    monkeypatch.chdir(project.root)  # the id of a table counts from the working folder
    project.study("seen", **ONE, training={**TRAINING, "lr": [0.1, 0.001]}, search="oracle")
    done = project.build("tiny,seen", "--verbose")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = project.root / "config" / "studies"
    plans = study.select("tiny,seen", "mini", folder)
    specs, manifests = project.runs(), project.root / "results" / "runs"
    assert len(specs) == 4  # two trainings, which the searches share, and two choices
    for plan in plans.values():
        (run,) = plan.runs
        record = read_json(manifests / run / "manifest.json")["search"]
        scores = {one["run"]: one["score"] for one in record["candidates"]}
        assert scores[record["chosen"]] == max(scores.values())
        assert specs[run] == specs[record["chosen"]]
        assert "Search of settings" in (project.root / "reports" / f"{plan.name}.html").read_text()
    assert project.jobs("tiny,seen") == set()

    project.study(**ONE, training={**TRAINING, "lr": [0.1, 0.001, 0.01]})
    jobs = project.jobs()
    (new,) = (key for key in study.select("tiny", "mini", folder)["tiny"].trainings if key not in specs)
    assert {job["run"] for job in jobs if job.rule == "train"} == {new}
    assert {"choose", "predict", "report"} <= {job.rule for job in jobs}
