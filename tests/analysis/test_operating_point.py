"""Thresholds, the rates at them, and their intervals, against numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from fake_study import predictions_of
from scipy.special import ndtri, stdtrit

from fedshift.analysis import operating_point as op
from fedshift.analysis import score
from fedshift.analysis.estimates import wilson
from fedshift.analysis.predictions import Predictions
from fedshift.analysis.study_results import load
from fedshift.core.errors import UserError
from fedshift.core.registry import validated
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.page import summary
from fedshift.study.declaration import Study, Threshold
from fedshift.study.plan import Plan

AT_HOME = np.array([0] * 10 + [1] * 5) == 1
HOME = np.array([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.45, 0.55, 0.7, 0.4, 0.5, 0.6, 0.8, 0.9])
OUTSIDE = np.array([0] * 5 + [1] * 5) == 1
AWAY = np.array([0.2, 0.4, 0.6, 0.72, 0.5, 0.3, 0.6, 0.75, 0.8, 0.95])


def rate(positive: np.ndarray, score: np.ndarray, threshold: float) -> dict[str, float]:
    return dict(zip(op.RATES, op.rates(op.counted(positive, score, threshold).sum(0)), strict=True))


@pytest.mark.parametrize(
    ("rule", "threshold", "sensitivity", "specificity"),
    [
        ({"specificity": 0.9}, 0.6, 0.6, 0.9),
        ({"sensitivity": 0.95}, 0.4, 1.0, 0.7),
        ({"youden": True}, 0.4, 1.0, 0.7),
        ({"value": 0.5}, 0.5, 0.8, 0.8),
    ],
)
def test_rules_on_validation_samples(
    rule: dict[str, Any], threshold: float, sensitivity: float, specificity: float
) -> None:
    assert op.choose(Threshold(**rule), AT_HOME, HOME) == threshold
    found = rate(AT_HOME, HOME, threshold)
    assert (found["sensitivity"], found["specificity"]) == pytest.approx((sensitivity, specificity), abs=1e-6)


def test_a_carried_threshold_at_another_site() -> None:
    """The threshold 0.6 gives 4 true and 2 false positives, 1 false and 3 true negatives."""
    assert op.counted(OUTSIDE, AWAY, 0.6).sum(0).tolist() == [4, 2, 1, 3]
    expected = {"sensitivity": 0.8, "specificity": 0.6, "ppv": 2 / 3, "npv": 0.75, "prevalence": 0.5, "flag_rate": 0.6}
    assert rate(OUTSIDE, AWAY, 0.6) == pytest.approx(expected, abs=1e-6)
    found = rate(OUTSIDE, AWAY, 0.4)
    assert (found["sensitivity"], found["specificity"]) == pytest.approx((0.8, 0.2), abs=1e-6)


def test_no_score_may_have_the_specificity() -> None:
    """The largest score is that of a negative sample, so that only an infinite threshold has specificity 1."""
    positive, score = np.array([True, False, False]), np.array([0.3, 0.2, 0.9])
    assert op.choose(Threshold(specificity=1), positive, score) == math.inf
    assert op.counted(positive, score, math.inf).sum(0).tolist() == [0, 0, 1, 2]


def test_of_thresholds_with_the_same_youden_index_the_smallest_counts() -> None:
    """At 0.2 all positives and one of two negatives are flagged, at 0.8 one of two positives and no negative."""
    positive, score = np.array([False, False, True, True]), np.array([0.1, 0.3, 0.2, 0.8])
    assert op.choose(Threshold(youden=True), positive, score) == 0.2


@pytest.mark.parametrize("rule", [{"specificity": 0.9}, {"sensitivity": 0.9}, {"youden": True}])
@pytest.mark.parametrize("positive", [[], [True, True], [False]])
def test_without_both_classes_no_threshold_is_chosen(rule: dict[str, Any], positive: list[bool]) -> None:
    threshold = op.choose(Threshold(**rule), np.array(positive, dtype=bool), np.zeros(len(positive)))
    assert math.isnan(threshold)
    assert np.isnan(op.rates(op.counted(OUTSIDE, AWAY, threshold).sum(0))).all()


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(3, 5, 0.2307242813, 0.8823792258), (9, 10, 0.5958499732, 0.9821237869), (0, 10, 0.0, 0.2775327999)],
)
def test_wilson(right: int, n: int, low: float, high: float) -> None:
    assert wilson(np.array(right / n), np.array(n)) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.parametrize(("prevalence", "ppv"), [(0.5, 0.9), (0.1, 0.5), (0.01, 0.0833333)])
def test_predictive_values_at_another_prevalence(prevalence: float, ppv: float) -> None:
    """With a sensitivity and specificity of 0.9 each; NPV is PPV at the prevalence of the other class."""
    rates = dict.fromkeys(op.RATES, op.Value(0.9, low=0.8, high=1.0))
    point = op.Point((0.5,), 10, 10, {}, rates, {})
    values, others = op.predictive_values(point, prevalence), op.predictive_values(point, 1 - prevalence)
    assert values[0].mean == pytest.approx(ppv, abs=1e-6)
    assert values[1].mean == pytest.approx(others[0].mean)
    low = 0.8 * prevalence / (0.8 * prevalence + 0.2 * (1 - prevalence))
    assert (values[0].low, values[0].high) == pytest.approx((low, 1.0))


def test_predictive_values_need_both_rates() -> None:
    rates = dict.fromkeys(op.RATES, op.Value(0.9)) | {"specificity": op.Value()}
    values = op.predictive_values(op.Point((0.5,), 10, 10, {}, rates, {}), 0.1)
    assert not any(value.known for value in values)


def test_one_sample_a_patient_has_the_interval_of_wilson() -> None:
    """Of 5 positives 3 are found, and of 10 negatives 9 are left alone."""
    cells = np.repeat(np.eye(4), [3, 1, 2, 9], axis=0)
    low, high = op.bounds(cells[None], np.arange(15))
    assert (low[0], high[0]) == pytest.approx((0.2307242813, 0.8823792258), abs=1e-6)
    assert (low[1], high[1]) == pytest.approx((0.5958499732, 0.9821237869), abs=1e-6)
    assert np.isnan((low[2], high[2])).all()  # 4 patients are flagged, fewer than 5


def test_patients_count_as_a_whole() -> None:
    """Five patients of unlike sizes: Wilson's interval for the variance of a ratio of sums, 4 degrees of freedom."""
    right, all_ = np.array([8, 3, 10, 1, 5]), np.array([10, 4, 10, 6, 5])
    # A true positive for each that is right, and a false negative for each other sample.
    found = np.concatenate([np.repeat([0, 2], [k, n - k]) for k, n in zip(right, all_, strict=True)])
    counts = np.eye(4)[found]
    rate = right.sum() / all_.sum()
    se = math.sqrt(5 / 4 * ((right - rate * all_) ** 2).sum()) / all_.sum()
    low, high = op.bounds(counts[None], np.repeat(np.arange(5), all_))
    assert (low[0], high[0]) == pytest.approx(intervals.of_share(rate, se**2, 4))


def test_a_rate_of_zero_is_not_certain() -> None:
    """None of 50 positives of 10 patients is found: Wilson's interval of 0 of 10."""
    counts = np.tile(np.eye(4)[[2] * 5 + [3] * 5], (1, 10, 1))
    low, high = op.bounds(counts, np.repeat(np.arange(10), 10))
    assert (low[0], high[0]) == pytest.approx((0.0, 0.2775327999), abs=1e-6)


def test_other_validation_patients_would_choose_another_threshold() -> None:
    """Without one of ten patients at a time, the threshold for a specificity of 0.9 is 0.8, but twice another.

    Of nine negative samples none may be flagged. Without the positive 0.8 it is 0.9, and without the negative 0.7 it is
    0.6. The sensitivities outside are 0.4 (eight times), 0.2 and 0.8, whose squares about their mean are 0.196 in all.
    """
    rule = Threshold(specificity=0.9)
    without = op.chosen_without(rule, AT_HOME, HOME, np.arange(15))
    assert without.tolist() == [0.8, 0.8, 0.8, 0.9, 0.8, 0.8, 0.8, 0.8, 0.8, 0.6]
    changes = op.choice(OUTSIDE, AWAY, without)
    variance = 9 / 10 * 0.196
    assert (changes[:, 0] ** 2).sum() == pytest.approx(variance)
    counts = op.counted(OUTSIDE, AWAY, 0.6)[None]
    fixed, moved = (op.bounds(counts, np.arange(10), choices=one)[:, 0] for one in (None, changes[None]))
    assert fixed == pytest.approx(wilson(np.array(0.8), np.array(5)))
    below = ((0.8 - fixed[0]) / ndtri(0.975)) ** 2 + variance
    assert moved[0] == pytest.approx(max(0.8 - stdtrit(below**2 / (variance**2 / 9), 0.975) * math.sqrt(below), 0.0))
    assert moved[1] == 1.0


def test_few_patients_are_left_out_one_by_one() -> None:
    """All positive samples must be found: without the one at 0.3 the threshold is 0.5. Two samples are of one patient.

    The sensitivity outside is 0.8 at 0.5 and 1 at 0.3, four times: its variance is 4 / 5 of 0.032.
    """
    positive, people = np.array([0, 0, 0, 1, 1, 1]) == 1, np.array([4, 4, 0, 1, 2, 3])
    without = op.chosen_without(Threshold(sensitivity=0.9), positive, np.array([0.1, 0.2, 0.6, 0.3, 0.5, 0.9]), people)
    assert without.tolist() == [0.3, 0.3, 0.5, 0.3, 0.3]
    assert (op.choice(OUTSIDE, AWAY, without)[:, 0] ** 2).sum() == pytest.approx(4 / 5 * 0.032)


def test_a_fixed_threshold_is_not_chosen_by_patients() -> None:
    without = op.chosen_without(Threshold(value=0.5), AT_HOME, HOME, np.arange(15))
    assert len(without) == 0 and op.choice(OUTSIDE, AWAY, without).shape == (0, 6)


def test_a_threshold_that_one_patient_decides_gives_no_interval() -> None:
    """Without the one positive validation patient there is no threshold, and thus no interval of a rate."""
    positive = np.arange(15) == 14
    changes = op.choice(OUTSIDE, AWAY, op.chosen_without(Threshold(specificity=0.9), positive, HOME, np.arange(15)))
    assert np.isnan(op.bounds(op.counted(OUTSIDE, AWAY, 0.6)[None], np.arange(10), choices=changes[None])).all()


# ---- the study


def made(root: Path, **changes: Any) -> tuple[Plan, Paths, pd.DataFrame]:
    settings: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0, 1], "figures": []}
    plan, paths = fake_study.build(root, **settings | changes)
    shift_scores(plan, paths)
    score.score(plan, paths)
    summary.summarise(load(plan, paths))
    return plan, paths, read_table(paths.study_files(plan.name).result("operating_points"))


def shift_scores(plan: Plan, paths: Paths) -> None:
    """Give every sample another score: right ones 0.80 to 0.89, wrong ones 0.20 to 0.29, or the other way round."""
    for run, seed in zip(plan.runs, itertools.count(), strict=False):
        file = predictions_of(plan, paths, run)
        table = read_table(file)
        for rows in table.groupby("inference").indices.values():
            table.loc[rows, "p1"] += np.arange(len(rows)) % 10 / 100 + 0.001 * seed
        table["p0"] = 1 - table["p1"]
        write_table(file, table)


@pytest.mark.parametrize("threshold", ["youden", {"specificity": 0.9}, {"sensitivity": 0.8}, {"value": 0.3}])
@pytest.mark.parametrize("positive", [None, "healthy"])
def test_each_training_carries_the_threshold_of_its_validation_samples(
    tmp_path: Path, threshold: Any, positive: str | None
) -> None:
    plan, paths, table = made(tmp_path, threshold=threshold, positive=positive)
    k = 0 if positive else 1
    for (run, key), rows in table[table["run"] != "*"].groupby(["run", "inference_id"]):
        predicted = read_table(predictions_of(plan, paths, run))
        predicted = predicted[predicted["inference"] == key]
        val = predicted[predicted["split"] == "val"]
        expected = op.choose(plan.study.threshold, (val["label"] == k).to_numpy(), val[f"p{k}"].to_numpy())
        assert set(rows["threshold"]) == {expected}
        for _, row in rows.iterrows():
            here = predicted[predicted["split"] == ("val" if row["role"] == "validation" else "test")]
            here = here if row["role"] == "validation" else here[here["site"] == row["site"]]
            flagged, is_one = here[f"p{k}"] >= expected, here["label"] == k
            cells = [flagged & is_one, flagged & ~is_one, ~flagged & is_one, ~flagged & ~is_one]
            assert row[[*op.COUNTS]].tolist() == [int(cell.sum()) for cell in cells]
            assert row["samples"] == len(here)
    assert set(table["positive"]) == {positive or plan.study.dataset.classes[1]}


def test_the_row_of_all_trainings_is_their_mean(tmp_path: Path) -> None:
    plan, _, table = made(tmp_path)
    place = ["inference_id", "role", "site"]
    numbers = ["threshold", *op.COUNTS, *op.RATES, *(f"{name}_drift" for name in op.DRIFTS)]
    whole = table[table["run"] == "*"].set_index(place)[numbers].sort_index()
    means = table[table["run"] != "*"].groupby(place)[numbers].mean().sort_index()
    pd.testing.assert_frame_equal(whole, means, check_dtype=False)
    assert len(whole) == 2 * (1 + 4)
    assert set(table["run"]) == {"*", *plan.runs}
    drift = whole.loc["source", "sensitivity"] - whole.loc[("source", "validation", "*"), "sensitivity"]
    outside = whole.loc["source"].drop("validation")["sensitivity_drift"]
    assert outside.tolist() == pytest.approx(drift.drop("validation").tolist())


def test_sites_with_one_class_have_one_rate(tmp_path: Path) -> None:
    def all_ill(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(label=table["label"].where(table["site"] != "centre1", 1))

    _, _, table = made(tmp_path, change=all_ill)
    row = table[(table["site"] == "centre1") & (table["run"] == "*") & (table["inference_id"] == "source")].iloc[0]
    assert row["sensitivity"] == pytest.approx(0.6) and row["prevalence"] == 1 and row["ppv"] == 1
    assert row["npv"] == 0 and math.isnan(row["specificity"])


def test_test_samples_are_read_by_default_and_validation_samples_on_request(tmp_path: Path) -> None:
    plan, paths, _ = made(tmp_path)
    run = next(iter(plan.runs.values()))
    partition = read_table(paths.partition(run.partition_id))
    for split, found in (("test", Predictions(plan, paths).read(run, "source")), ("val", None)):
        found = Predictions(plan, paths).read(run, "source", "val") if found is None else found
        assert set(found["sample"]) == set(partition.loc[partition["split"] == split, "sample"])
        assert len(found) == found["sample"].nunique()


def test_files_without_validation_samples_score_as_before(tmp_path: Path) -> None:
    plan, paths, _ = made(tmp_path, threshold="youden")
    before = paths.study_files(plan.name).scores.read_bytes()
    for run in plan.runs:
        file = predictions_of(plan, paths, run)
        table = read_table(file)
        write_table(file, table[table["split"] == "test"].drop(columns="split"))
    score.score(plan, paths)
    summary.summarise(load(plan, paths))
    assert paths.study_files(plan.name).scores.read_bytes() == before
    table = read_table(paths.study_files(plan.name).result("operating_points"))
    assert table["threshold"].isna().all() and table["sensitivity"].isna().all()
    with pytest.raises(UserError, match="holds no predictions of the split val"):
        Predictions(plan, paths).read(next(iter(plan.runs.values())), "source", "val")


def test_validation_samples_that_are_lost_are_noticed(tmp_path: Path) -> None:
    plan, paths, _ = made(tmp_path)
    run = next(iter(plan.runs))
    path = predictions_of(plan, paths, run)
    table = read_table(path)
    lost = table.index[(table["split"] == "val") & (table["inference"] == "source")][0]
    write_table(path, table.drop(index=lost))
    with pytest.raises(UserError, match="partial: 1 of 20 val samples are not predicted"):
        Predictions(plan, paths).read(plan.runs[run], "source", "val")


def test_more_than_two_classes_have_no_operating_point(tmp_path: Path) -> None:
    _, _, table = made(tmp_path, dataset=fake_study.Fake(classes=("a", "b", "c")))
    assert list(table) == op.COLUMNS and table.empty


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positive": "tumor"}, "positive: unknown class 'tumor'"),
        ({"positive": "a", "dataset": fake_study.Fake(classes=("a", "b", "c"))}, "positive: is for two classes"),
        ({"threshold": {"value": 0.5, "specificity": 0.9}}, "threshold: has 2 rules, and needs one"),
        ({"threshold": {}}, "threshold: has 0 rules, and needs one"),
        ({"decision_range": [0.5, 0.1]}, "decision_range: its first threshold is not below its second"),
    ],
)
def test_wrong_declarations_are_named(changes: dict[str, Any], message: str) -> None:
    settings = dict(fake_study.study()) | {"inferences": ["source"]}
    with pytest.raises(UserError, match=message):
        validated(Study, settings | changes, "study")
