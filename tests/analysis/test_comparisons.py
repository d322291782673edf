"""Differences between conditions, against worked examples and the same formulas in NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import intervals
import numpy as np
import pytest
from compared import METHODS, compared, predict
from scipy.stats import t as student

from fedshift.analysis import comparisons, conditions, verdict
from fedshift.analysis.verdict import Outcome
from fedshift.core.errors import UserError
from fedshift.study.plan import Run

D = np.array(
    [
        [0.10, 0.00, 0.20, -0.10, 0.05, 0.15],
        [0.00, 0.05, 0.10, -0.05, 0.00, 0.20],
        [0.20, 0.10, 0.15, 0.00, 0.10, 0.05],
        [0.05, -0.10, 0.05, 0.00, 0.10, 0.20],
    ]
)
"""By how much FedProx is better than FedAvg: four trainings that score the same six patients."""


def of_table(run: Run, site: str, patient: int) -> int:
    """10 of 20 right with FedAvg, and with FedProx as many more as in D."""
    return 10 + (round(20 * D[run.seed, patient % 6]) if run.algorithm.name == "fedprox" else 0)


def test_a_difference_holds_patients_and_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked example: the component of seeds is negative, so that the variance over patients is left.

    The degrees of freedom are 0.0196667^2 / (0.0196667^2 / 5 + 0.005^2 / 15) = 4.894.
    """
    predict(monkeypatch, of_table, 6, 20)
    found = compared(tmp_path, seeds=[0, 1, 2, 3])
    whole, site = (found.table("comparisons")[found.table("comparisons")["site"] == at].iloc[0] for at in ("*", "x"))
    se = math.sqrt(0.0008194444)
    df = 0.0196666667**2 / (0.0196666667**2 / 5 + 0.005**2 / 15)
    half = student.ppf(0.975, df) * se
    for row in (whole, site):  # there is one site; FedAvg minus FedProx
        assert row["mean"] == pytest.approx(-0.0666666667)
        assert (row["low"], row["high"]) == pytest.approx((-0.0666666667 - half, -0.0666666667 + half), abs=1e-7)
        assert (row["seeds"], row["patients"], row["same_sign"]) == (4, 6, 4)
        seeds = student.ppf(0.975, 3) * 0.0117851130
        assert (row["low_trainings"], row["high_trainings"]) == pytest.approx(
            (-0.0666666667 - seeds, -0.0666666667 + seeds), abs=1e-7
        )
        alone = student.ppf(0.975, 5) * se
        assert row["high_patients"] - row["mean"] == pytest.approx(alone, abs=1e-6)
    assert whole["p"] == pytest.approx(2 * student.sf(0.0666666667 / se, df), abs=1e-6)
    assert (whole["p_holm"], whole["family"]) == (whole["p"], 1)
    assert (whole["sign_flip_seeds"], whole["smallest_seeds"]) == (0.125, 0.125)
    assert math.isnan(site["p"])
    (standing,) = verdict.standings(found.findings)
    assert standing.best.condition.algorithm == "fedprox"
    assert standing.others[0].value.mean == pytest.approx(0.0666666667)
    assert standing.others[0].outcome is Outcome.ALIKE


def test_sites_share_trainings_and_not_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of two sites, by the analysis of variance of each of them."""
    seed, patient, noise = np.array([[0], [2], [5]]), np.array([0, 1, 2, 4, -1, -3, 1, 3]), np.eye(3, 8, dtype=int)
    tables = {"x": seed + patient + noise, "y": seed - patient[::-1] // 2 - noise}

    def right(run: Run, site: str, patient: int) -> int:
        more = tables[site][run.seed, patient] if site in tables and run.algorithm.name == "fedavg" else 0
        return 10 + int(more)

    predict(monkeypatch, right, 8, 20)
    found = compared(tmp_path, external=("x", "y"))
    row = found.table("comparisons")[found.table("comparisons")["site"] == "*"].iloc[0]
    seeds, patients, rest = np.zeros(3), [], []
    for table in (values / 20 for values in tables.values()):
        by_seed, by_patient, mean = table.mean(1, keepdims=True), table.mean(0, keepdims=True), table.mean()
        seeds += table.mean(1) / 2
        patients.append(3 * ((by_patient - mean) ** 2).sum() / 7 / 24 / 4)
        rest.append(((table - by_seed - by_patient + mean) ** 2).sum() / 14 / 24 / 4)
    of_patients, of_rest = (
        (sum(each), sum(each) ** 2 / sum(one**2 / k for one in each)) for each, k in ((patients, 7), (rest, 14))
    )
    total, df = intervals.crossed((seeds.var(ddof=1) / 3, 2), of_patients, of_rest)
    assert total > max(seeds.var(ddof=1) / 3, sum(patients))  # nothing is truncated
    assert row["mean"] == pytest.approx(seeds.mean())
    assert row["high"] - row["mean"] == pytest.approx(student.ppf(0.975, df) * math.sqrt(total))
    assert row["p"] == pytest.approx(2 * student.sf(seeds.mean() / math.sqrt(total), df))
    assert row["patients"] == 16
    assert (row["sites"], row["smallest_sites"]) == (2, 0.5)


def outcome(found: object) -> Outcome:
    (standing,) = verdict.standings(found.findings)  # type: ignore[attr-defined]
    return standing.others[0].outcome


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([8, 8, 8], Outcome.DIFFERS),
        ([8, 8], Outcome.FEW_TRAININGS),
        ([8], Outcome.FEW_TRAININGS),
        ([8, 8, -2], Outcome.TRAININGS_DISAGREE),
        ([1, 9, 5], Outcome.TRAININGS_DISAGREE),
    ],
)
def test_a_difference_between_few_trainings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gains: list[int], expected: Outcome
) -> None:
    """So many more of 20 are right in every patient. 1, 9 and 5: 5 ± 4.303 * 4 / sqrt(3) includes zero."""
    predict(monkeypatch, lambda run, *_: 10 + gains[run.seed] * (run.algorithm.name == "fedprox"), 6, 20)
    assert outcome(compared(tmp_path, seeds=list(range(len(gains))))) is expected


def test_few_patients_give_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda run, *_: 10 + 5 * (run.algorithm.name == "fedprox"), 4, 20)
    found = compared(tmp_path)
    assert outcome(found) is Outcome.FEW_PATIENTS
    assert found.table("comparisons")[["low", "high", "p", "p_holm", "family"]].isna().all(axis=None)


def test_sites_of_opposite_sign_have_no_mean_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedProx is better by 40 points at one site and worse by 10 at the other: better by 15 in the mean.

    Patients gain 7 or 9 of 20, or lose 1 or 3.
    """
    more = {"a": 0, "x": 8, "y": -2}

    def right(run: Run, site: str, patient: int) -> int:
        return 10 + (more[site] + (-1) ** patient) * (run.algorithm.name == "fedprox")

    predict(monkeypatch, right, 6, 20)
    assert outcome(compared(tmp_path, external=("x", "y"))) is Outcome.SITES_DISAGREE


def test_a_difference_may_be_too_small_to_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 20 more is right in four patients, none in one and two in one: 5 points +- 2.571 sqrt(2 / 5 / 6) / 20."""
    more = (0, 1, 1, 1, 1, 2)
    predict(monkeypatch, lambda run, site, p: 10 + more[p] * (run.algorithm.name == "fedprox"), 6, 20)
    declared = {"condition": {"algorithm": "fedprox"}, "against": {"algorithm": "fedavg"}}
    for smallest, expected in ((0.04, Outcome.DIFFERS), (0.06, Outcome.TOO_SMALL)):
        found = compared(tmp_path / str(smallest), primary=declared | {"smallest": smallest})
        assert outcome(found) is expected


NOISE = np.random.default_rng(1).integers(-3, 4, (9, 3, 12))


def noisy(run: Run, site: str, patient: int) -> int:
    method = METHODS.index(run.algorithm.name)
    return 14 - 2 * method + int(NOISE[method, run.seed, patient])


def test_without_a_declared_comparison_the_family_is_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, noisy, 12, 20)
    rows = compared(tmp_path, METHODS[:4]).table("comparisons")
    whole = rows[rows["site"] == "*"]
    assert (whole["family"] == 6).all() and len(whole) == 6
    p = np.sort(whole["p"])
    holm = np.minimum(1, np.maximum.accumulate(p * np.arange(6, 0, -1)))
    assert np.sort(whole["p_holm"]) == pytest.approx(holm)
    assert set(whole["condition"]) | set(whole["than_condition"]) == {
        f"{name}, aggregated BN" for name in ("FedAvg", "FedProx", "SCAFFOLD", "FedDyn")
    }


def test_a_declared_comparison_is_the_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two conditions against each other: the other five pairs are exploratory, and a family of their own."""
    predict(monkeypatch, noisy, 12, 20)
    declared = {"condition": {"algorithm": "scaffold"}, "against": {"algorithm": "feddyn"}}
    found = compared(tmp_path, METHODS[:4], primary=declared)
    rows = found.table("comparisons")
    tested = rows[rows["tested"]]
    assert tested[["condition", "than_condition"]].values.tolist() == [
        ["SCAFFOLD, aggregated BN", "FedDyn, aggregated BN"]
    ]
    assert (tested["family"] == 1).all() and (tested["p"] == tested["p_holm"]).all()
    others = rows[~rows["tested"] & (rows["site"] == "*")]
    p = np.sort(others["p"])
    holm = np.minimum(1, np.maximum.accumulate(p * np.arange(5, 0, -1)))
    assert (others["family"] == 5).all() and np.sort(others["p_holm"]) == pytest.approx(holm)
    assert rows.loc[rows["site"] != "*", ["p", "p_holm"]].isna().all(axis=None)
    (one,) = verdict.declared(found.findings)
    assert (one.first.condition.algorithm, one.second.condition.algorithm) == ("scaffold", "feddyn")
    assert one.value.mean == pytest.approx(0.1 + (NOISE[2] - NOISE[3]).mean() / 20)


def test_a_declared_comparison_may_name_inferences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda *_: 10, 6, 20)
    declared = {"condition": {"inference": "tsmobn"}, "against": {"inference": "source"}}
    found = compared(tmp_path, METHODS[:1], inferences=["source", "tsmobn"], primary=declared)
    (row,) = found.table("comparisons")[found.table("comparisons")["tested"]].itertuples()
    assert (row.inference_id, row.than_inference_id, row.mean) == ("tsmobn", "source", 0.0)


def test_a_comparison_that_matches_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda *_: 10, 6, 20)
    declared = {"condition": {"algorithm": "moon"}, "against": {"algorithm": "fedavg"}}
    plan = compared(tmp_path, primary=declared).plan
    plan.scale = "paper"
    with pytest.raises(UserError, match=r"primary\.condition: matches no condition of the study"):
        conditions.primary_pairs(plan)


def test_a_control_is_never_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda run, *_: 10 + 5 * (run.algorithm.name == "pooled"), 6, 20)
    found = compared(tmp_path, ("fedavg", "pooled"))
    (standing,) = verdict.standings(found.findings)
    assert standing.best.condition.algorithm == "fedavg"
    assert standing.others[0].value.mean == pytest.approx(-0.25)
    assert standing.others[0].outcome is Outcome.DIFFERS


def test_conditions_of_other_sites_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One condition is tested at x, the other at y: no patient is shared."""
    predict(monkeypatch, lambda *_: 10, 6, 20)
    split = {"train": 0.4, "val": 0.1, "test": 0.5}
    parts = [
        {"internal": ["a"], "external": ["x"], "split": split},
        {"internal": ["a"], "external": ["y"], "split": split},
    ]
    found = compared(tmp_path, METHODS[:1], partition=parts)
    assert found.table("comparisons").empty
    assert list(found.table("comparisons").columns) == comparisons.COLUMNS


def test_means_over_partitions_are_compared_by_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one site out: each external site counts once, with its own patients."""
    more = {"x": 2, "y": 6}
    predict(monkeypatch, lambda run, site, _: 8 + more.get(site, 0) * (run.algorithm.name == "fedprox"), 10, 20)
    split = {"train": 0.4, "val": 0.1, "test": 0.5}
    parts = [
        {"internal": ["a", "y"], "external": ["x"], "split": split},
        {"internal": ["a", "x"], "external": ["y"], "split": split},
    ]
    found = compared(tmp_path, partition=parts)
    whole = found.table("comparisons")[found.table("comparisons")["site"] == "*"]
    assert len(whole) == 1
    assert whole["mean"].iloc[0] == pytest.approx(-(0.1 + 0.3) / 2)
    assert whole["patients"].iloc[0] == 20
    (standing,) = verdict.standings(found.findings)
    assert {site: value.mean for site, value in standing.others[0].sites.items()} == pytest.approx({"x": 0.1, "y": 0.3})


def test_images_prepared_in_two_ways_show_the_same_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference between them is paired: it is 0.1 or 0.2 for each patient, whose levels differ by far more."""

    def right(run: Run, site: str, patient: int) -> int:
        return 4 + patient + (2 + patient % 2 * 2) * bool(run.data.prepare)

    predict(monkeypatch, right, 10, 20)
    prepared = {"algorithm": "fedavg", "transforms": ["macenko", "scale_intensity"]}
    found = compared(tmp_path, seeds=[0, 1, 2], runs=[{"algorithm": "fedavg"}, prepared])
    assert [one.title for one in found.findings.conditions] == [
        "FedAvg [prepare=none, transforms=none], aggregated BN",
        "FedAvg [prepare=macenko, transforms=scale_intensity], aggregated BN",
    ]
    row = found.table("comparisons").query("site == '*'").iloc[0]
    half = student.ppf(0.975, 9) * math.sqrt(10 * 0.05**2 / 90)
    assert abs(row["mean"]) == pytest.approx(0.15)
    assert (row["high"] - row["low"]) / 2 == pytest.approx(half)
    assert row["patients"] == 10
