"""Average precision against numbers worked out by hand, and its resamples against the plain definition."""

from __future__ import annotations

import math
from pathlib import Path

import fake_study
import numpy as np
import pytest

from fedshift.analysis import score, study_tables
from fedshift.analysis.clusters import clusters
from fedshift.analysis.estimates import of_means
from fedshift.analysis.predictions import Predictions
from fedshift.analysis.results import load
from fedshift.analysis.statistics import DRAWS, resamples
from fedshift.core.rng import stream
from fedshift.io.tables import read_table, write_table
from fedshift.metrics.ap import AP
from fedshift.report import page, summary

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
    weight = np.array([[2.0, 0, 0, 0, 1, 1, 1, 0, 0]])
    assert AP().resampler(Y, constant)(weight) == pytest.approx([2 / 5])


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_has_none(label: int) -> None:
    y = np.full(9, label)
    assert math.isnan(AP().value(y, both(S)))
    assert np.isnan(AP().per_sample(y, both(S))).all()


def test_resamples_without_a_class_have_no_value() -> None:
    weights = np.array([[1.0] * 4 + [0.0] * 5, [0.0] * 4 + [1.0] * 5, [1.0] * 9])
    found = AP().resampler(Y, both(S))(weights)
    assert np.isnan(found[:2]).all()
    assert found[2] == pytest.approx(0.8303571429)


def test_resamples_are_scored_by_the_definition() -> None:
    """Also with ties, and with scores that no sample of a resample has."""
    rng = np.random.default_rng(0)
    y, s = rng.integers(0, 2, 40), rng.integers(0, 9, 40) / 10
    weights = rng.multinomial(40, np.full(40, 1 / 40), size=50).astype(float)
    wanted = [defined(y, s, weight) for weight in weights]
    assert AP().resampler(y, both(s))(weights) == pytest.approx(wanted, nan_ok=True)


def test_contributions_change_as_the_score_does() -> None:
    """The influence of each sample is the derivative of the score by its weight, here a difference of two values."""
    step = 1e-6
    moved = []
    for j in range(len(Y)):
        up, down = np.ones(9), np.ones(9)
        up[j], down[j] = 1 + step, 1 - step
        moved.append((defined(Y, S, up) - defined(Y, S, down)) / (2 * step))
    one = of_means(AP().per_sample(Y, both(S)), np.arange(9))
    assert one.mean == pytest.approx(0.8303571429)
    assert one.influence.to_numpy() / math.sqrt(9 / 8) == pytest.approx(moved, abs=1e-6)
    assert sum(moved) == pytest.approx(0, abs=1e-6)


def test_resamples_are_the_same_in_parts_of_any_size() -> None:
    whole = [weight for _, weight in resamples(5, np.random.default_rng(0), 100)]
    parts = [weight for _, weight in resamples(5, np.random.default_rng(0), 100, samples=5_000)]
    assert (len(whole), len(parts)) == (1, 3)
    assert np.array_equal(np.concatenate(whole), np.concatenate(parts))


def test_the_interval_at_a_site_has_the_percentiles_of_resampled_patients(tmp_path: Path) -> None:
    """The mean over trainings of the scores in resamples of whole patients, drawn here by NumPy alone."""
    plan, paths = fake_study.build(tmp_path, headline="ap", metrics=["ap"], figures=[], seeds=[0, 1])
    for n, run in enumerate(plan.runs):
        for job in plan.prediction_jobs[run]:
            table = read_table(paths.predictions(run, job))
            table["p1"] = np.random.default_rng(n).normal(table["label"], 1.5).clip(-3, 4) / 8 + 0.4
            table["p0"] = 1 - table["p1"]
            write_table(paths.predictions(run, job), table)
    score.score(plan, paths)
    found = study_tables.read_table(summary.summarise(plan, paths))
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
    data = next(iter(plan.data))
    names, patient = np.unique(
        clusters(results.samples, data).of(tables[0].set_index("sample").index), return_inverse=True
    )
    n = len(names)
    weights = stream("bootstrap", data, "centre1").multinomial(n, np.full(n, 1 / n), size=DRAWS)[:, patient]
    arrays = [(rows["label"].to_numpy(), rows["p1"].to_numpy()) for rows in tables]
    values = np.mean([[defined(y, s, weight) for weight in weights[:100]] for y, s in arrays], axis=0)
    exact = np.mean([AP().resampler(y, both(s))(weights.astype(float)) for y, s in arrays], axis=0)
    assert exact[:100] == pytest.approx(values, nan_ok=True)
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.quantile(exact, [0.025, 0.975])))
    assert row["se"] == pytest.approx(math.sqrt(exact.var() * n / (n - 1)))
    assert row["chance"] == row["majority"] == 0.5
    compared = results.comparisons[results.comparisons["site"] == "centre1"].iloc[0]
    assert compared["low"] < compared["mean"] < compared["high"]
    assert page.context(results)["overview"].caption.startswith(
        "Average precision: mean ± standard deviation over seeds, mean over sites. Chance level: 0.500. Gap"
    )
    text = page.write(plan, paths).read_text(encoding="utf-8")
    assert AP.caveat in text
    assert "percentiles of its own values in the resamples" in text
