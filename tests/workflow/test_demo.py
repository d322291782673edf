"""The demo study as a new user gets it: the effect is there, and the page says that its data are synthetic."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tiny_project import ROOT, Project

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project.create(tmp_path_factory.mktemp("demo") / "a demo")
    shutil.copy(ROOT / "config" / "studies" / "demo.yaml", project.root / "config" / "studies")
    done = project.cold_snakemake("--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "leaked" not in done.stdout + done.stderr, "a process has taken libraries apart on the terminal"
    return project.root


@pytest.fixture(scope="module")
def accuracy(demo: Path) -> pd.DataFrame:
    """Mean over sites and seeds, by BN policy, role and inference; from the raw scores alone."""
    scores = pd.read_csv(demo / "results" / "studies" / "demo" / "scores.csv")
    assert scores["seed"].nunique() == 3
    return scores[scores["metric"] == "accuracy"].groupby(["bn", "role", "inference"])["value"].mean().unstack()


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_external_hospitals_lose_and_tsmobn_wins_back(accuracy: pd.DataFrame, bn: str) -> None:
    inside, outside = accuracy.loc[bn, "internal"], accuracy.loc[bn, "external"]
    gap = inside["source"] - outside["source"]
    assert gap >= 0.08
    assert outside["tsmobn"] - outside["source"] >= gap / 2
    stale = inside["tsmobn"] - inside["source"]
    assert abs(stale) < 0.05, "the gain must not come of running statistics that lag behind the weights"


def test_the_demo_answers_its_own_question(demo: Path) -> None:
    """README and the picture there say so, and processors that add in another order must not say otherwise."""
    study = demo / "results" / "studies" / "demo"
    headline = json.loads((study / "headline.json").read_text(encoding="utf-8"))
    assert re.match(r"FedAvg, aggregated BN: loses [\d.]+ points at its 2 external sites", headline["lead"])
    assert "TsmoBN recovers" in headline["lead"]
    assert headline["problems"] == []
    effects = pd.read_csv(study / "effects.csv")
    aggregated = effects[(effects["metric"] == "accuracy") & (effects["bn"] == "aggregated")]
    loss = aggregated[(aggregated["quantity"] == "gap") & (aggregated["inference"] == "source")]
    assert loss["low"].item() > 0.05, "the interval is a margin away from zero, where the verdict changes"


def test_the_page_is_one_small_file_that_says_what_it_is(demo: Path) -> None:
    page = (demo / "reports" / "demo.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 2_000_000
    assert page.count("Synthetic: not a result") >= 2
    assert "<script" not in page
    assert "default-src 'none'" in page, "it may load nothing"
