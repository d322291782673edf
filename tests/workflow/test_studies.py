"""Every study of the papers runs at mini scale: by `make test` a sixteenth of them each day.

The day's studies train for a round a run, which is all that the tests below need. Its steps are called in this process,
and a dry run shows that Snakemake would call the same. `make test-all` trains for the rounds of the miniatures, under
Snakemake.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml
from all_steps import carry_out
from rotation import ALL, of_day
from tiny_project import ROOT, Project

from fedshift import cli, study
from fedshift.data import looks
from fedshift.models import alexnet_bn

pytestmark = pytest.mark.slow

FOLDER = Path("config") / "studies"
PAPERS = [name for name in study.names(ROOT / FOLDER) if name.startswith(("fedbn-", "tsmobn-", "unifed-", "fedtan-"))]
CHOSEN = of_day(PAPERS, 16)


def shorten(path: Path) -> None:
    """Let no run of a miniature train for more than a round, unless its statistics are exchanged for more."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "exchange_rounds" in path.read_text(encoding="utf-8"):
        return
    mini = content["scales"]["mini"]
    for settings in (mini, *mini.get("runs", [])):
        training = settings.get("training", {})
        if "rounds" in training:
            training["rounds"] = 1
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the chosen studies ran: runs that studies share are trained once."""
    project = Project.create(tmp_path_factory.mktemp("studies"))
    shutil.rmtree(project.root / "config")
    shutil.copytree(ROOT / "config", project.root / "config")
    if ALL:
        # with one thread, `prepare` is forked from a process that has its libraries loaded, as all other jobs are
        done = project.build(",".join(CHOSEN), "--keep-going", "--set-threads", "prepare=1")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return project.root
    for name in CHOSEN:
        shorten(project.root / FOLDER / f"{name}.yaml")
    planned = Counter(job.rule for job in project.jobs(",".join(CHOSEN)))
    called: Counter[str] = Counter(index=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alexnet_bn, "HIDDEN", 64)  # AlexNet has 57 million parameters, which each client keeps on disk
        patch.setattr(looks, "MOST", 100)  # pairs of like images that a page compares: ten thousand take a minute
        patch.chdir(project.root)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            patch.setenv(name, "1")  # put back afterwards what commands set
        for name in CHOSEN:
            carry_out(FOLDER / f"{name}.yaml", "mini", called)
        assert cli.main(["index", "--studies", str(FOLDER)]) == 0
    assert called == planned
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
    for figure in plan.figures:
        assert (folder / "figures" / f"{figure}.svg").stat().st_size > 0
    verdicts = pd.read_csv(folder / "comparison.csv")["verdict"] if plan.published else pd.Series(dtype=str)
    assert set(verdicts) <= {"not comparable", "not run"}, "nothing at mini scale counts beside what was published"
