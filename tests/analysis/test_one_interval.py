"""One number has one interval: equal estimands have equal rows in all tables of a finished study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.analysis.calibration import NUMBERS
from fedshift.analysis.study_results import StudyResults
from fedshift.study.plan import Run

PLACE = ["condition_id", "inference_id", "role", "site"]
NUMBER = ["mean", "low", "high"]


def differs(run: Run, inference: str, site: str, role: str) -> float:
    """Trainings differ, so that an interval over patients and trainings is not that over patients."""
    return 0.9 - 0.1 * (run.seed % 2) - 0.2 * (role == "external") + 0.1 * (inference == "tsmobn")


@pytest.fixture(params=[(0, 1, 2), (0,)], ids=["three trainings", "one"])
def found(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyResults:
    monkeypatch.setattr(fake_study, "PATIENTS", 20)

    def uneven(table: pd.DataFrame) -> pd.DataFrame:
        """Patients of unlike sizes and shares of classes."""
        number = table["sample"].str.rsplit("/", n=1).str[1].astype(int)
        person = table["patient"].str.rsplit("/", n=1).str[1].astype(int)
        return table[number <= 3 + person % 7].assign(label=((number + person) % 3 == 0).astype(int))

    study: dict[str, Any] = {"seeds": list(request.param), "runs": [{"algorithm": "fedavg"}], "figures": []}
    split = {"train": 0.3, "val": 0.2, "test": 0.5}
    partition = {"internal": fake_study.INTERNAL, "external": fake_study.EXTERNAL[:1], "split": split}
    return study_results.load(*summarised(tmp_path, differs, change=uneven, partition=partition, **study))


def compared(left: pd.DataFrame, right: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Assert that both tables give the same numbers wherever both have a row, and return these rows."""
    both = left.merge(right, on=keys, suffixes=("", "_again"))
    for name in NUMBER:
        np.testing.assert_allclose(both[name], both[f"{name}_again"], rtol=1e-12, atol=1e-12)
    return both


def test_levels_of_sites(found: StudyResults) -> None:
    effects = found.table("effects")
    levels = effects[(effects["quantity"] == "level") & (effects["site"] != "*")]
    summary = found.table("summary")
    assert len(compared(levels, summary, [*PLACE, "metric"])) == len(summary)
    assert summary["low"].notna().sum() > 20


def test_a_mean_over_one_site_is_that_site(found: StudyResults) -> None:
    effects = found.table("effects").query("role == 'external'")
    for quantity in ("level", "gain"):
        rows = effects[effects["quantity"] == quantity]
        mean, site = rows[rows["site"] == "*"], rows[rows["site"] == "centre1"]
        keys = ["condition_id", "inference_id", "metric"]
        assert len(compared(mean, site, keys)) == len(mean) > 0


def test_a_gap_to_one_site_is_the_loss_there(found: StudyResults) -> None:
    effects = found.table("effects")
    gap, loss = (effects[effects["quantity"] == quantity] for quantity in ("gap", "loss"))
    assert len(compared(gap, loss, ["condition_id", "inference_id", "metric"])) == len(gap) > 0


@pytest.mark.parametrize("rate", ["sensitivity", "specificity"])
def test_rates_at_a_half_are_the_metrics_of_that_name(rate: str, found: StudyResults) -> None:
    points = found.table("operating_points")
    points = points[(points["run"] == "*") & (points["role"] != "validation")]
    points = points.rename(columns={rate: "mean", f"{rate}_low": "low", f"{rate}_high": "high"})[[*PLACE, *NUMBER]]
    summary = found.table("summary")
    assert len(compared(points, summary[summary["metric"] == rate], PLACE)) == len(points) > 0


def test_errors_of_calibration_are_not_called_like_a_metric(found: StudyResults) -> None:
    """They are of another probability and of other bins than the metric ECE."""
    assert not set(NUMBERS) & set(found.table("summary")["metric"])


def test_no_bound_leaves_what_a_score_can_be(found: StudyResults) -> None:
    summary = found.table("summary")
    for metric, rows in summary.groupby("metric"):
        low, high = found.findings.metrics[str(metric)].ends
        assert (rows["low"].dropna() >= low).all() and (rows["high"].dropna() <= high).all()
    brier = summary[summary["metric"] == "brier"]
    assert brier["low"].notna().all()
