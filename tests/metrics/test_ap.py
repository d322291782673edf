"""Average precision against numbers worked out by hand, and its influences against the plain definition."""

from __future__ import annotations

import math
from pathlib import Path

import fake_study
import numpy as np
import pandas as pd
import pytest
from fake_study import predictions_of
from scipy.special import expit, logit
from scipy.stats import t as student

from fedshift.analysis import score
from fedshift.analysis.predictions import Predictions
from fedshift.analysis.study_results import load
from fedshift.io.tables import read_table, write_table
from fedshift.metrics.ap import AP
from fedshift.page import page, summary
from fedshift.page.summary import overview

Y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0])
S = np.array([0.9, 0.8, 0.6, 0.4, 0.7, 0.5, 0.4, 0.3, 0.1])
PATIENTS = np.array([1, 1, 2, 3, 1, 2, 3, 3, 4])


def both(score: np.ndarray) -> np.ndarray:
    return np.stack([1 - score, score], 1)


def defined(y: np.ndarray, s: np.ndarray, weight: np.ndarray) -> float:
    """The sum of (R_k - R_(k-1)) P_k over distinct scores, the highest first; samples count `weight` times."""
    if not 0 < weight[y == 1].sum() < weight.sum():
        return math.nan
    total, before = 0.0, 0.0
    for threshold in np.unique(s)[::-1]:
        found, flagged = (weight * (y == 1))[s >= threshold].sum(), weight[s >= threshold].sum()
        recall = found / weight[y == 1].sum()
        total += (recall - before) * (found / flagged if flagged else 0.0)
        before = recall
    return float(total)


def test_average_precision_by_hand() -> None:
    """Recall grows by a quarter at 0.9, 0.8, 0.6 and 0.4, where 1 of 1, 2 of 2, 3 of 4 and 4 of 7 are positive."""
    assert AP().value(Y, both(S)) == pytest.approx((1 + 1 + 3 / 4 + 4 / 7) / 4)
    assert AP().value(Y, both(S)) == pytest.approx(0.8303571429)


def test_with_three_classes_it_is_the_mean_of_each_against_the_rest() -> None:
    """Of the classes: the first is ranked first; the second ties with another first; the third is second."""
    p = np.array([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.5, 0.2]])
    assert AP().value(np.arange(3), p) == pytest.approx((1 + 1 / 2 + 1 / 2) / 3)
    assert AP().chance(np.array([0.2, 0.3, 0.5])) == pytest.approx(1 / 3)


def test_a_constant_score_has_the_share_of_the_class() -> None:
    constant = both(np.full(9, 0.5))
    assert AP().value(Y, constant) == pytest.approx(4 / 9) == AP().chance(np.array([5 / 9, 4 / 9]))


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_none(label: int) -> None:
    y = np.full(9, label)
    assert math.isnan(AP().value(y, both(S)))
    assert np.isnan(AP().influence(y, both(S))).all()


def moved(y: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The derivative of the score by the weight of each sample: a difference of two values of the definition."""
    step, out = 1e-6, []
    for j in range(len(y)):
        up, down = np.ones(len(y)), np.ones(len(y))
        up[j], down[j] = 1 + step, 1 - step
        out.append((defined(y, s, up) - defined(y, s, down)) / (2 * step))
    return np.array(out)


@pytest.mark.parametrize("ties", [False, True])
def test_influences_are_derivatives_of_the_score(ties: bool) -> None:
    rng = np.random.default_rng(0)
    y, s = (rng.integers(0, 2, 40), rng.integers(0, 9, 40) / 10) if ties else (Y, S)
    found = AP().influence(y, both(s))
    assert np.isnan(found[y == 1, 1]).all() and np.isnan(found[y == 0, 0]).all()
    assert np.nansum(found, axis=1) == pytest.approx(moved(y, s), abs=1e-6)


def test_the_interval_at_a_site_is_made_of_the_influence_of_patients(tmp_path: Path) -> None:
    """On the logit scale, from derivatives of the definition by the weights of samples, as means over trainings."""
    plan, paths = fake_study.build(tmp_path, headline="ap", metrics=["ap"], figures=[], seeds=[0, 1])
    for n, run in enumerate(plan.runs):
        file = predictions_of(plan, paths, run)
        table = read_table(file)
        table["p1"] = np.random.default_rng(n).normal(table["label"], 1.5).clip(-3, 4) / 8 + 0.4
        table["p0"] = 1 - table["p1"]
        write_table(file, table)
    score.score(plan, paths)
    found = score.read_table(summary.summarise(load(plan, paths)))
    here = (found["site"] == "centre1") & (found["inference"] == "source") & (found["bn"] == "aggregated")
    row = found[here].iloc[0]
    results = load(plan, paths)
    tables = [
        rows
        for _, rows in Predictions(plan, paths).readable(
            next(iter(results.names.conditions.values())).runs.values(), "source"
        )
    ]
    tables = [rows[rows["site"] == "centre1"] for rows in tables]
    patient = tables[0]["sample"].str.rpartition("/")[0].to_numpy()
    each = np.mean([moved(rows["label"].to_numpy(), rows["p1"].to_numpy()) for rows in tables], axis=0)
    by_patient = pd.Series(each).groupby(patient).sum()
    k, mean = len(by_patient), row["mean"]
    se = math.sqrt(k / (k - 1) * (by_patient**2).sum())
    assert row["se"] == pytest.approx(se, abs=1e-6)
    half = student.ppf(0.975, k - 1) * se / (mean * (1 - mean))
    effects = results.table("effects").query("quantity == 'level' and bn == 'aggregated' and inference == 'source'")
    alone = effects[effects["site"] == "centre1"].iloc[0]
    expected = tuple(expit(logit(mean) + np.array([-half, half])))
    assert (alone["low_patients"], alone["high_patients"]) == pytest.approx(expected, abs=1e-6)
    assert (row["low"], row["high"]) == (alone["low"], alone["high"]), "over patients and trainings"
    assert row["chance"] == row["majority"] == 0.5
    compared = results.table("comparisons")[results.table("comparisons")["site"] == "centre1"].iloc[0]
    assert compared["low"] < compared["mean"] < compared["high"]
    assert overview(results.findings).caption.startswith(
        "Average precision: mean ± standard deviation over seeds, mean over sites. Chance level: 0.500. Gap"
    )
    text = page.write(load(plan, paths)).read_text(encoding="utf-8")
    assert AP.caveat in text
    assert AP.interval_note in text
