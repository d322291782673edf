"""Net benefit against numbers worked out by hand, and the figure that shows it."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import fake_study
import numpy as np
import pytest
from invented import made
from scipy.stats import t as student
from scored_study import summarised

from fedshift.analysis import net_benefit, score, study_results
from fedshift.core import registry
from fedshift.io.tables import read_table
from fedshift.page import summary

POSITIVE = np.array([1, 1, 1] + [0] * 7) == 1
SCORE = np.array([0.9, 0.6, 0.2, 0.7, 0.3, 0.25, 0.15, 0.1, 0.05, 0.02])
AT = np.array([0.1, 0.2, 0.5])


def test_net_benefit() -> None:
    """At 0.1, 3 of 3 positives and 5 of 7 negatives are treated: 3 / 10 - 5 / 10 * 1 / 9 = 0.2444444."""
    model, everyone = (each.mean(0) for each in net_benefit.benefit(POSITIVE, SCORE, AT))
    assert model == pytest.approx([0.2444444, 0.225, 0.1], abs=1e-6)
    assert everyone == pytest.approx([0.2222222, 0.125, -0.4], abs=1e-6)


def test_the_interval_is_that_of_the_difference_to_the_better_default() -> None:
    """Five patients of two samples: a t interval of the mean difference, with 4 degrees of freedom.

    Treating all is the better default at 0.1 and 0.2, and treating none at 0.5.
    """
    patient = np.repeat(np.arange(5), 2)
    model, everyone = net_benefit.benefit(POSITIVE, SCORE, AT)
    for n, default in enumerate((everyone[:, 0], everyone[:, 1], np.zeros(10))):
        each = (model[:, n] - default).reshape(5, 2).mean(1)
        half = student.ppf(0.975, 4) * each.std(ddof=1) / math.sqrt(5)
        given = net_benefit.Benefit(model[:, n], everyone[:, n])
        found = net_benefit.difference(given, patient, ("data", "site")).interval_over_patients()
        assert found == pytest.approx((each.mean() - half, each.mean() + half))


def test_trainings_widen_the_interval() -> None:
    """Patients who nearly gain alike leave the t interval of three trainings, with 2 degrees of freedom."""
    gains = np.array([0.1, 0.2, 0.4])
    near = 1e-6 * np.tile([[-1.0], [1.0]], (3, 1))
    trainings = [net_benefit.Benefit(gain + near, np.full((6, 1), -1.0)) for gain in gains]
    found = net_benefit._bounds(trainings, 0, np.arange(6), ("data", "site"))
    half = student.ppf(0.975, 2) * gains.std(ddof=1) / math.sqrt(3)
    assert found == pytest.approx((gains.mean() - half, gains.mean() + half))


def test_a_study_that_asks_for_it_draws_it(tmp_path: Path) -> None:
    """60 % of the samples are right outside, in equal parts: 3 of 5 of either class at any threshold up to 0.5."""
    plan, paths = fake_study.build(
        tmp_path,
        runs=[{"algorithm": "fedavg"}],
        seeds=[0, 1],
        figures=["decision_curve"],
        decision_range=[0.25, 0.5],
    )
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    table = read_table(paths.study_files(plan.name).result("net_benefit"))
    assert len(table) == 2 * 4 * net_benefit.POINTS
    chosen = table[(table["site"] == "centre1") & (table["inference_id"] == "source")]
    odds = chosen["threshold"] / (1 - chosen["threshold"])
    assert chosen["threshold"].iloc[[0, -1]].tolist() == [0.25, 0.5]
    assert chosen["model"].to_numpy() == pytest.approx(0.3 - 0.2 * odds.to_numpy())
    assert chosen["all"].to_numpy() == pytest.approx(0.5 - 0.5 * odds.to_numpy())
    text = study_results.draw(study_results.load(plan, paths), "decision_curve").read_text(encoding="utf-8")
    said = ElementTree.fromstring(text)[0].text or ""
    assert "from 0.25 to 0.5, the range that the study declares" in said
    assert "Net benefit depends on prevalence, which is that of the test samples: centre1 50.0 %" in said
    assert "Treat all" in text and "Treat none" in text and "<script" not in text


def test_other_studies_have_an_empty_table_and_nothing_to_draw(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, runs=[{"algorithm": "fedavg"}], seeds=[0], figures=[])
    table = read_table(paths.study_files(plan.name).result("net_benefit"))
    assert list(table) == net_benefit.COLUMNS and table.empty
    text = registry.build("figure", "decision_curve").draw(made())
    assert "Nothing to draw" in text and "it needs two classes" in text
