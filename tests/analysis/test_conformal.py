"""Conformal prediction sets: formulas against numbers by hand, and the promise against simulated patients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
import sets_study
from fake_study import predictions_of
from sets_study import made

from fedshift.analysis import conformal as c
from fedshift.analysis.estimates import wilson
from fedshift.core import digest
from fedshift.core.errors import UserError
from fedshift.core.registry import validated
from fedshift.io.tables import read_table, write_table
from fedshift.study.declaration import Conformal, Study
from fedshift.study.plan import Plan, Run

close = pytest.approx
P = np.array(
    [
        *([0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.4, 0.5, 0.1]),
        *([0.3, 0.4, 0.3], [0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]),
    ]
)
Y = np.array([0, 0, 1, 2, 0, 2, 0, 1, 2])
PEOPLE = np.array([0, 0, 0, 1, 1, 2, 3, 3, 4])
NEW = np.array([[0.5, 0.3, 0.2], [0.45, 0.45, 0.1], [0.3, 0.4, 0.3], [0.34, 0.33, 0.33]])
ALONE = c.Units(Y, P, np.arange(9))


def holding(score: str, p: np.ndarray, threshold: float) -> list[set[int]]:
    """The classes in each set."""
    return [set(np.flatnonzero(row).tolist()) for row in c.sets(score, p, threshold)]


@pytest.mark.parametrize(
    ("scores", "alpha", "k", "expected"),
    [
        (np.arange(1, 10) / 10, 0.1, 9, 0.9),
        ([0.05, 0.1, 0.2, 0.2, 0.2, 0.35, 0.5, 0.9], 0.1, 9, math.inf),
        ([0.05, 0.1, 0.2, 0.2, 0.2, 0.35, 0.5, 0.9], 0.25, 7, 0.5),
        (np.arange(1, 20), 0.1, 18, 18.0),  # not the 19th, which numpy's method "higher" gives
        (np.arange(1, 8), 0.1, 8, math.inf),
        (np.arange(1, 10), 1.0, 0, -math.inf),
        ([], 0.1, 1, math.inf),
    ],
)
def test_the_quantile_is_an_order_statistic(scores: Any, alpha: float, k: int, expected: float) -> None:
    assert c.rank(len(scores), alpha) == k
    assert c.quantile(np.array(scores, dtype=float), alpha) == expected


@pytest.mark.parametrize(("alpha", "needed"), [(0.2, 4), (0.1, 9), (0.05, 19), (0.02, 49), (0.01, 99)])
def test_so_many_units_are_needed(alpha: float, needed: int) -> None:
    """From n = 1 / alpha - 1 on there is a promise, and the quantile is then the largest score."""
    scores = np.random.default_rng(0).normal(size=needed)
    assert c.quantile(scores, alpha) == scores.max()
    assert c.quantile(scores[1:], alpha) == math.inf


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2])
def test_the_rank_is_exact_in_whole_numbers(alpha: float) -> None:
    """The ceiling of (n + 1) (1 - alpha) in integers: alpha is so many hundredths."""
    kept = 100 - round(100 * alpha)
    assert [c.rank(n, alpha) for n in range(2000)] == [-(-(n + 1) * kept // 100) for n in range(2000)]


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(9, 0.717, 0.994), (20, 0.784, 0.982), (50, 0.826, 0.960), (100, 0.848, 0.945), (500, 0.877, 0.921)],
)
def test_the_coverage_of_one_calibration(n: int, low: float, high: float) -> None:
    assert c.likely(n, 0.1) == close((low, high), abs=6e-4)


def test_scores_of_one_row() -> None:
    """APS with another u takes (1 - u) p off, and RAPS adds 0.1 for each rank beyond the first."""
    p = np.array([[0.5, 0.3, 0.2]])
    assert c.lac(p)[0] == close([0.5, 0.7, 0.8])
    assert c.aps(p)[0] == close([0.5, 0.8, 1.0])
    assert (c.aps(p) - 0.5 * p)[0] == close([0.25, 0.65, 0.9])
    assert (c.aps(p) - 0.5 * p + 0.1 * np.arange(3))[0] == close([0.25, 0.75, 1.1])
    turned = p[:, [2, 0, 1]]
    assert c.aps(turned)[0] == close([1.0, 0.5, 0.8]), "classes keep their places"


def test_lac_of_nine_rows() -> None:
    scores = ALONE.score("lac")
    assert scores == close([0.3, 0.4, 0.3, 0.2, 0.6, 0.7, 0.5, 0.4, 0.4])
    threshold = c.quantile(scores, 0.2)
    assert threshold == close(0.6)
    assert holding("lac", NEW, threshold) == [{0}, {0, 1}, {1}, set()]
    assert holding("lac", 1 - np.array([[0.6 + 1e-13, 0.6 + 1e-9]]), 0.6) == [{0}], "rounding leaves no class out"


def test_aps_of_nine_rows() -> None:
    scores = ALONE.score("aps")
    assert scores == close([0.7, 0.6, 0.7, 0.8, 0.9, 1, 0.5, 0.6, 0.6])
    threshold = c.quantile(scores, 0.2)
    assert threshold == close(0.9)
    assert holding("aps", NEW[[0, 3, 1]], threshold) == [{0, 1}, {0, 1}, {0, 1}]


def test_a_rare_class_alone_has_no_promise() -> None:
    scores = ALONE.score("lac")
    of_class = [[c.quantile(scores[k == Y], alpha) for k in range(3)] for alpha in (0.2, 0.25)]
    assert of_class[0] == close([0.6, math.inf, math.inf])
    assert of_class[1] == close([0.6, math.inf, 0.7])


def test_patients_by_their_mean_or_by_one_image() -> None:
    """Five patients, so that alpha 0.2 takes the largest score: 0.7, that of patient 2, by every way."""
    own = ALONE.score("lac")
    mean, most, first = (
        [how(own[k == PEOPLE]) for k in range(5)] for how in (np.mean, np.max, lambda scores: scores[0])
    )
    assert mean == close([1 / 3, 0.4, 0.7, 0.45, 0.4])
    assert most == close([0.4, 0.6, 0.7, 0.5, 0.4])
    assert first == close([0.3, 0.2, 0.7, 0.5, 0.4])
    assert [c.quantile(np.array(scores), 0.2) for scores in (mean, most, first)] == close([0.7] * 3)
    assert c.quantile(np.array(mean), 0.1) == math.inf
    found = c.mean_of_images(c.Units(Y, P, PEOPLE))
    assert found.label.tolist() == [-1, -1, 2, -1, 2], "three patients have images of two classes"
    assert found.p[0] == close([0.5, 0.4, 0.1]) and found.p[2] == close([0.3, 0.4, 0.3])


def test_one_image_of_each_patient_is_drawn_by_the_key_alone() -> None:
    people = np.repeat(np.arange(200), 3)
    images = c.Units(np.tile([0, 1, 2], 200), np.tile(np.eye(3), (200, 1)), people)
    one, again, other = (c.one_image(images, *key) for key in (("a", "b"), ("a", "b"), ("a", "c")))
    assert one.patient.tolist() == list(range(200))
    assert (one.p.argmax(1) == one.label).all()
    assert (one.label == again.label).all() and (one.label != other.label).any()
    # each of three images has one chance of three, with a standard error of 0.033
    assert np.bincount(one.label) / 200 == close(np.full(3, 1 / 3), abs=0.1)


def test_repeated_images_and_another_order_change_nothing() -> None:
    rng = np.random.default_rng(1)
    people, p = np.repeat(np.arange(12), 3), rng.dirichlet(np.ones(3), 36)
    images = c.Units(people % 3, p, people)
    twice = c.Units(*(np.concatenate([part, part]) for part in images))
    rows = rng.permutation(36)
    mixed = c.Units(*(part[rows] for part in images))
    expected = c.mean_of_images(images).score("lac")
    for other in (twice, mixed):
        assert c.mean_of_images(other).score("lac") == close(expected, abs=1e-15)
    assert c.quantile(expected[::-1], 0.2) == c.quantile(expected, 0.2)


def test_a_monotone_scale_of_the_scores_gives_the_same_sets() -> None:
    """And of n calibration units k are in their sets, where no two scores agree."""
    p = np.random.default_rng(2).dirichlet(np.ones(4), 60)
    scores = 1 - p[:40, 0]
    threshold = c.quantile(scores, 0.1)
    cubed = c.quantile(scores**3, 0.1)
    assert (c.lac(p) <= threshold).tolist() == (c.lac(p) ** 3 <= cubed).tolist()
    assert c.sets("lac", p[:40], threshold)[:, 0].mean() == close(c.rank(40, 0.1) / 40)


def test_all_may_miss_and_none_may() -> None:
    assert holding("lac", NEW, c.quantile(ALONE.score("lac"), 1.0)) == [set()] * 4
    assert holding("lac", NEW, math.inf) == [{0, 1, 2}] * 4


def test_shares_of_sets() -> None:
    """Sizes 1, 2, 1, 3 and 0: mean 1.4, decided 0.4, several 0.4, none 0.2; the first three and the fourth cover."""
    p = np.array([[0.8, 0.1, 0.1], [0.5, 0.5, 0.0], [0.1, 0.8, 0.1], [0.6, 0.6, 0.6], [0.3, 0.3, 0.4]])
    found = c.Units(np.array([0, 1, 1, 2, 2]), p, np.arange(5)).measured(0.5, Conformal(alpha=0.1))
    assert dict(zip(c.MEASURES, found.measures.mean(0), strict=True)) == close(
        {"coverage": 0.8, "size": 1.4, "decided": 0.4, "several": 0.4, "none": 0.2}
    )
    assert found.of(2).measures[:, 0].tolist() == [1, 0] and found.of(2).patient.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("right", "n", "low", "high"), [(18, 20, 0.683, 0.988), (45, 50, 0.782, 0.967), (88, 100, 0.800, 0.936)]
)
def test_the_interval_is_that_of_other_shares_within_the_exact_one(right: int, n: int, low: float, high: float) -> None:
    """The exact binomial interval (Clopper and Pearson) is the wider one; ours is Wilson's, as for an accuracy."""
    covered = np.arange(n) < right
    sets_ = c.Sets(np.tile(covered[:, None], (1, 5)).astype(float), np.zeros(n, dtype=int), np.arange(n))
    found = c._over_trainings({0: sets_}, ("data", "site"))
    z = 1.959963984540054
    share = right / n
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    ends = [(share + z**2 / (2 * n) + sign * half) / (1 + z**2 / n) for sign in (-1, 1)]
    assert (found["low"], found["high"]) == close(ends, abs=1e-9)
    assert low < found["low"] and found["high"] < high
    assert found["patients"] == n and found["coverage"] == close(share)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.86, 0.99, "held"),
        (0.86, 0.89, "held"),
        (0.7, 0.89, "broken"),
        (0.7, 0.95, "cannot tell"),
        (math.nan, math.nan, "cannot tell"),
    ],
)
def test_the_verdict(low: float, high: float, expected: str) -> None:
    assert c.verdict(low, high, Conformal(alpha=0.1)) == expected


def test_the_promise_holds_over_calibrations_of_patients_alike() -> None:
    """2,000 draws of 19 patients and one more: 90 %, with a standard error of 0.7 points."""
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), (2000, 20))
    label = np.array([[rng.choice(3, p=row) for row in draw] for draw in p])
    own = np.take_along_axis(1 - p, label[..., None], 2)[..., 0]
    covered = [row[19] <= c.quantile(row[:19], 0.1) for row in own]
    assert np.mean(covered) == close(0.9, abs=0.02)


# ---- conformal.csv


def by_site(results: Any) -> dict[str, dict[str, Any]]:
    table = results.table("conformal")
    return {row["site"]: row for row in table[table["class"] == "*"].to_dict("records")}


def test_pooled_sets_at_home_and_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 validation patients a site score 0.2 and 0.4: rank ceil(25 x 0.9) = 23 of 24 is 0.4. Outside 10 of 40 miss."""
    results = made(tmp_path, monkeypatch)
    found = by_site(results)
    for site, patients, coverage in (("centre0", 8, 1.0), ("centre3", 8, 1.0), ("centre1", 40, 0.75)):
        row = found[site]
        assert (row["calibrated"], row["patients"], row["seeds"]) == (24, patients, 2)
        assert row["quantile"] == close(0.4) and row["coverage"] == close(coverage)
        assert (row["size"], row["decided"], row["several"], row["none"]) == close((1, 1, 0, 0))
        # both trainings say the same, so that the interval is that of patients
        assert (row["low"], row["high"]) == close(wilson(coverage, patients), abs=1e-9)
    # Wilson's upper end of 30 of 40 is 0.858, and the lower end of 8 of 8 is 0.676
    assert [found[site]["verdict"] for site in ("centre0", "centre1")] == ["cannot tell", "broken"]
    table = results.table("conformal")
    each = table[(table["site"] == "centre1") & (table["class"] != "*")]
    # the fourth of each four patients is ill: 10 of 20 ill ones miss, and no healthy one
    assert dict(zip(each["class"], each["coverage"], strict=True)) == {
        "healthy": 1.0,
        fake_study.Fake().classes[1]: 0.5,
    }
    assert each["patients"].tolist() == [20, 20] and set(each["verdict"]) == {""}


def test_each_site_with_its_own_quantile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_site(made(tmp_path, monkeypatch, conformal={"alpha": 0.1, "sites": "own"}))
    assert [found[site]["calibrated"] for site in ("centre0", "centre3", "centre1")] == [12, 12, 24]
    assert [found[site]["quantile"] for site in ("centre0", "centre3", "centre1")] == close([0.2, 0.4, 0.4])


@pytest.mark.parametrize(("score", "threshold"), [("aps", 0.9), ("lac", 0.7)])
def test_three_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, score: str, threshold: float) -> None:
    """The right class has 0.8 at one site, 0.3 behind 0.6 at the other, and outside 0.1 behind 0.6 and 0.3."""
    own = {"centre0": (0.8, 0.15, 0.05), "centre3": (0.3, 0.6, 0.1), "centre1": (0.1, 0.6, 0.3)}

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        shares = np.array([own[site] for site in table["site"]])
        ill = (table["label"] == 1).to_numpy()
        both = {"p0": np.where(ill, shares[:, 1], shares[:, 0]), "p1": np.where(ill, shares[:, 0], shares[:, 1])}
        return table.assign(**both, p2=shares[:, 2])[["sample", "site", "role", "label", "p0", "p1", "p2"]]

    monkeypatch.setattr(sets_study, "predict", predict)
    dataset = fake_study.Fake(classes=("a", "b", "c"))
    results = sets_study.made(
        tmp_path, monkeypatch, dataset=dataset, metrics=["accuracy"], conformal={"alpha": 0.1, "score": score}
    )
    found = by_site(results)
    # rank 23 of 24 is the score of the second site
    assert [row["quantile"] for row in found.values()] == close([threshold] * 3)
    measures = ("coverage", "size", "decided")
    assert {site: tuple(row[name] for name in measures) for site, row in found.items()} == {
        "centre0": (1, 1, 1),
        "centre3": (1, 2, 0),
        "centre1": (0, 2, 0),
    }
    assert found["centre1"]["verdict"] == "broken"
    assert set(results.table("conformal")["class"]) == {"*", "a", "b"}, "no patient is of the third class"


def test_too_few_patients_promise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 patients of 10 validate at each of two sites, and alpha 0.1 needs 9."""
    found = by_site(made(tmp_path, monkeypatch, patients=10))
    assert {row["calibrated"] for row in found.values()} == {6}
    assert {row["verdict"] for row in found.values()} == {c.TOO_FEW}
    assert all(math.isinf(row["quantile"]) and math.isnan(row["coverage"]) for row in found.values())


def test_patients_of_two_classes_have_sets_of_single_images_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = by_site(made(tmp_path / "patient", monkeypatch, change=None))
    assert {row["verdict"] for row in without.values()} == {c.SEVERAL}
    assert all(math.isnan(row["coverage"]) and math.isnan(row["quantile"]) for row in without.values())
    found = by_site(made(tmp_path / "one", monkeypatch, change=None, conformal={"alpha": 0.1, "unit": "one"}))
    assert [found[site]["coverage"] for site in ("centre0", "centre3", "centre1")] == close([1, 1, 0.75])
    assert found["centre1"]["patients"] == 40


def test_without_validation_images_there_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path, monkeypatch)
    file = predictions_of(results.plan, results.paths, next(iter(results.plan.runs)))
    table = read_table(file)
    write_table(file, table[table["split"] == "test"])
    found = by_site(results)
    assert {row["verdict"] for row in found.values()} == {c.UNPREDICTED}, "of one training is enough"
    assert all(math.isnan(row["coverage"]) for row in found.values())


def test_folds_test_each_patient_at_home_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 folds of 40 patients: each has 10 to test and 8 to validate, and outside all of them meet the same 40."""
    split = {"folds": 4, "val": 0.2}
    partition = {"internal": fake_study.INTERNAL, "external": ["centre1"], "split": split}
    found = by_site(made(tmp_path, monkeypatch, partition=partition))
    assert {site: row["patients"] for site, row in found.items()} == {"centre0": 40, "centre3": 40, "centre1": 40}
    assert {row["calibrated"] for row in found.values()} == {16}
    row = found["centre1"]
    assert row["coverage"] == close(0.75)
    assert (row["low"], row["high"]) == close(wilson(0.75, 40), abs=1e-9)


def test_nothing_changes_for_a_study_without_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = made(tmp_path, monkeypatch, conformal=None)
    assert results.table("conformal").empty
    declared = results.plan.study.model_dump(mode="json")
    assert declared.pop("conformal") is None
    assert results.plan.view == digest.of(declared), "the digest is that of studies from before there were sets"
    assert results.plan.view != Plan("fake", tmp_path / "fake.yaml", "mini", with_sets(results.plan.study)).view


def with_sets(study: Study) -> Study:
    return study.model_copy(update={"conformal": Conformal(alpha=0.1)})


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"alpha": 0}, "conformal.alpha: "),
        ({"alpha": 1}, "conformal.alpha: "),
        ({}, "conformal.alpha: "),
        ({"alpha": 0.1, "score": "raps"}, "conformal.score: "),
        ({"alpha": 0.1, "unit": "voxel"}, "conformal.unit: "),
        ({"alpha": 0.1, "beta": 1}, "conformal.beta: "),
        ({"alpha": 0.1, "score": "aps"}, "conformal.score: is aps, which is for three classes and more"),
    ],
)
def test_wrong_settings(declared: dict[str, Any], says: str) -> None:
    settings = {**fake_study.study().model_dump(mode="json"), "dataset": fake_study.Fake(), "conformal": declared}
    with pytest.raises(UserError, match=says):
        validated(Study, settings, "fake.yaml")


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"alpha": 0.1, "score": "aps"}, "conformal.score: is aps, which is for three classes and more"),
        ({"alpha": 0.1, "unit": "one"}, "conformal.unit: is one, and for masks the missed share is measured"),
    ],
)
def test_wrong_settings_of_masks(declared: dict[str, Any], says: str) -> None:
    settings = {**fake_study.study().model_dump(mode="json"), "dataset": fake_study.Fake(), "task": "segmentation"}
    settings |= {"metrics": ["dice"], "headline": "dice", "conformal": declared}
    with pytest.raises(UserError, match=says):
        validated(Study, settings, "fake.yaml")


# ---- before a study runs


@pytest.mark.parametrize(
    ("patients", "declared", "said"),
    [
        (40, {"alpha": 0.1}, ""),  # 12 of 40 validate at each of two sites: 24
        (40, {"alpha": 0.04}, ""),
        (
            *(40, {"alpha": 0.03}),
            "conformal.alpha: 0.03 needs 33 validation patients, and there are 24: nothing can be promised; "
            "give 0.04 or more, or val a larger share",
        ),
        (
            *(40, {"alpha": 0.07, "sites": "own"}),
            "conformal.alpha: 0.07 needs 14 validation patients at centre0, and there are 12: nothing can be promised; "
            "give 0.08 or more, or val a larger share",
        ),
    ],
)
def test_too_few_patients_are_told_before_a_study_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patients: int, declared: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", patients)
    partition = {"internal": fake_study.INTERNAL, "external": ["centre1"], "split": sets_study.SPLIT}
    plan = fake_study.plan(tmp_path, conformal=declared, partition=partition)
    (data,) = plan.data
    assert "".join(c.unpromised(plan, data, fake_study.samples(plan), "patients")) == said


@pytest.mark.parametrize(("alpha", "fewest"), [(0.2, 4), (0.1, 9), (0.05, 19), (0.02, 49), (0.01, 99)])
def test_the_fewest_patients(alpha: float, fewest: int) -> None:
    assert c.least(alpha) == fewest
    assert c.rank(fewest, alpha) == fewest and c.rank(fewest - 1, alpha) > fewest - 1
