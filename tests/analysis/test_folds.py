"""Scores over folds against algebra and the plain definitions in NumPy; the coverage of their intervals."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import intervals
import numpy as np
import pytest
from compared import compared, predict
from scipy.stats import t as student
from sklearn.metrics import average_precision_score

from fedshift.analysis import estimates, score
from fedshift.core.rng import stream
from fedshift.metrics import Metric
from fedshift.metrics._classes import ECE, Accuracy, BalancedAccuracy, Brier, Sensitivity
from fedshift.metrics.ap import AP
from fedshift.metrics.auc import AUC
from fedshift.study.plan import Run

RNG = np.random.default_rng(5)
Y = RNG.integers(0, 2, 60)
S = RNG.random(60).round(2)
FOLD = np.repeat([0, 1, 2], [10, 20, 30])
HERE = ("data", "site")


def both(score: np.ndarray) -> np.ndarray:
    return np.stack([1 - score, score], 1)


@pytest.mark.parametrize("metric", [Accuracy(), Brier(), BalancedAccuracy(), Sensitivity()])
def test_a_mean_over_samples_is_that_of_all_samples_together(metric: Metric) -> None:
    value, influence = metric.over_folds(Y, both(S), FOLD)
    assert value == metric.value(Y, both(S))
    np.testing.assert_array_equal(influence, metric.influence(Y, both(S)))


def pairs(weight: np.ndarray) -> float:
    """The share of pairs of one fold that are ranked rightly, by the definition; a tie counts one half."""
    right = total = 0.0
    for i in np.flatnonzero(Y == 1):
        for j in np.flatnonzero((Y == 0) & (FOLD[i] == FOLD)):
            total += weight[i] * weight[j]
            right += weight[i] * weight[j] * ((S[i] > S[j]) + (S[i] == S[j]) / 2)
    return right / total


def precision(weight: np.ndarray) -> float:
    """The mean of the folds' average precisions, weighted by their samples."""
    parts = []
    for k in range(3):
        rows = k == FOLD
        parts.append(weight[rows].sum() * average_precision_score(Y[rows], S[rows], sample_weight=weight[rows]))
    return sum(parts) / weight.sum()


@pytest.mark.parametrize(("metric", "plainly"), [(AUC(), pairs), (AP(), precision)])
def test_a_ranking_compares_samples_of_one_fold_alone(metric: Metric, plainly: Any) -> None:
    """And its influence is the derivative by the weight of each sample."""
    value, influence = metric.over_folds(Y, both(S), FOLD)
    assert value == pytest.approx(plainly(np.ones(60)), abs=1e-12)
    assert influence is not None
    step = 1e-5
    slope = []
    for i in range(60):
        up, down = np.ones(60), np.ones(60)
        up[i] += step
        down[i] -= step
        slope.append((plainly(up) - plainly(down)) / (2 * step))
    np.testing.assert_allclose(np.nansum(influence, 1), slope, atol=1e-8)


def test_scores_of_two_models_are_not_ranked_together() -> None:
    """Both folds are ranked perfectly, on scales that do not overlap."""
    label = np.array([0, 1, 0, 1])
    score = both(np.array([0.1, 0.2, 0.8, 0.9]))
    assert AUC().over_folds(label, score, np.array([0, 0, 1, 1]))[0] == 1
    assert AUC().value(label, score) == 0.75


@pytest.mark.parametrize("metric", [AUC(), AP()])
def test_one_fold_is_the_score_itself(metric: Metric) -> None:
    value, influence = metric.over_folds(Y, both(S), np.zeros(60))
    assert value == pytest.approx(metric.value(Y, both(S)))
    np.testing.assert_allclose(influence, metric.influence(Y, both(S)), atol=1e-12)


def test_a_metric_without_influence_is_a_mean_weighted_by_samples() -> None:
    value, influence = ECE().over_folds(Y, both(S), FOLD)
    parts = [ECE().value(Y[k == FOLD], both(S)[k == FOLD]) for k in range(3)]
    assert value == pytest.approx(np.dot(parts, [10, 20, 30]) / 60)
    assert influence is None


def right(run: Run, site: str, patient: int) -> int:
    """Right answers of 20 that depend on patient, seed, fold and method: at home each patient has the one fold."""
    better = run.algorithm.name == "fedprox"
    return 8 + (patient * 3 + run.seed * 2 + (run.partition.split.fold or 0)) % 7 + better * (patient % 3)


def study(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    predict(monkeypatch, right, 12, 20)
    partition = {"internal": ["a"], "external": ["x"], "split": {"folds": 3, "val": 0.2}}
    return compared(root, partition=partition, seeds=[0, 1, 2], metrics=["accuracy", "auc"], headline="accuracy")


def by_hand(found: Any, algorithm: str, role: str) -> np.ndarray:
    """The share right of each seed and patient (3, 12), from what `right` counts and who is tested in which fold."""
    (condition,) = [one for one in found.names.conditions.values() if one.algorithm == algorithm]
    site = {"internal": "a", "external": "x"}[role]
    table = np.zeros((3, 12))
    tested = np.zeros((3, 12))
    for run in condition.runs.values():
        assigned = found.predictions.partition(run.partition_id)
        rows = assigned[(assigned["split"] == "test") & (assigned["site"] == site)]
        for patient in {int(name.split("/")[1]) for name in rows["sample"]}:
            table[run.seed, patient] += right(run, site, patient) / 20
            tested[run.seed, patient] += 1
    assert (tested == {"internal": 1, "external": 3}[role]).all()
    return table / tested


def anova(table: np.ndarray, share: bool = False) -> tuple[float, list[float]]:
    """Mean and interval of the two-way analysis of variance of seeds and patients (docs/verdicts.md)."""
    s, k = table.shape
    mean = table.mean()
    patients = ((table.mean(0) - mean) ** 2).sum() / (k * (k - 1))
    seeds = table.mean(1).var(ddof=1) / s
    rest = table - table.mean(1, keepdims=True)
    residual = ((rest - rest.mean(0)) ** 2).sum() / (s * (s - 1) * k * (k - 1))
    ends = []
    for sign, end in zip((-1, 1), intervals.wilson(mean, mean * (1 - mean) / patients), strict=True):
        sided = ((mean - end) / intervals.Z) ** 2 if share else patients
        variance, df = intervals.crossed((seeds, s - 1), (sided, k - 1), (residual, (s - 1) * (k - 1)))
        ends.append(mean + sign * student.ppf(0.975, df) * math.sqrt(variance))
    return float(mean), ends


def test_a_study_in_folds_has_the_mean_and_the_variance_over_all_patients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study(tmp_path, monkeypatch)
    assert not found.findings.several
    for condition in found.findings.conditions:
        assert (condition.folded, len(condition.runs), condition.seeds) == (True, 9, (0, 1, 2))
        assert condition.held_out == "x"
        for role, site in (("internal", "a"), ("external", "x")):
            mean, ends = anova(by_hand(found, condition.algorithm, role), share=True)
            for value in (
                found.findings.effect("level", condition, "source", role),
                found.findings.effect("level", condition, "source", role, site),
            ):
                assert value.mean == pytest.approx(mean)
                assert (value.low, value.high) == pytest.approx(ends)
                assert (value.seeds, value.patients) == (3, 12)
            summary = found.findings.value(condition, role, site, "source")
            assert (summary.mean, summary.seeds) == (pytest.approx(mean), 3)
    rows = found.table("summary")
    assert set(rows[rows["metric"] == "accuracy"]["n"]) == {12 * 20}


def test_differences_are_paired_by_patients_and_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch)
    (row,) = found.table("comparisons").query("site == '*'").to_dict("records")
    sides = [by_hand(found, name, "external") for name in ("fedavg", "fedprox")]
    mean, (low, high) = anova(sides[0] - sides[1])
    sign = {"FedAvg, aggregated BN": 1, "FedProx, aggregated BN": -1}[row["condition"]]
    assert row["mean"] == pytest.approx(sign * mean)
    assert row["high"] - row["low"] == pytest.approx(high - low)


def test_a_seed_that_a_fold_lacks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study(tmp_path, monkeypatch)
    condition = found.findings.conditions[0]
    name = next(name for name, run in condition.runs.items() if run.seed == 1)
    kept = {key: run for key, run in condition.runs.items() if key != name}
    partial = dataclasses.replace(condition, runs=kept)
    assert {whole.seed for whole in score.wholes([partial], found.predictions)} == {0, 2}


def test_intervals_of_an_area_over_folds_cover() -> None:
    """400 draws of 30 patients of six samples, with a level of their own, in five folds whose models differ in scale.

    The area of the folds' pairs has an expectation that no scale changes; it is taken as the mean of all draws.
    """
    rng = stream(3, "coverage of folds")
    found = []
    for _ in range(400):
        people = np.repeat(np.arange(30), 6)
        label = (rng.random(180) < 0.3).astype(int)
        fold = people % 5
        score = label + rng.normal(0, 1, 30)[people] + rng.normal(0, 1, 180) + 10 * fold
        value, influence = AUC().over_folds(label, np.stack([-score, score], 1), fold)
        found.append(estimates.single(value, influence, people, HERE, 0, "logit"))
    truth = np.mean([estimate.mean for estimate in found])
    ends = [estimate.interval() for estimate in found]
    covered = np.mean([low <= truth <= high for low, high in ends])
    assert 0.92 <= covered <= 0.98
