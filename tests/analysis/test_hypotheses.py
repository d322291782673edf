"""Hypotheses that a study registers: their answers by algebra, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from compared import compared, predict
from scipy.stats import t as student

from fedshift.analysis import hypotheses
from fedshift.core.errors import UserError, UserErrors
from fedshift.core.registry import validated
from fedshift.page.html import Fold
from fedshift.page.registered import asked, hypotheses_section
from fedshift.study.declaration import Hypothesis
from fedshift.study.plan import Run

AVG, PROX = {"algorithm": "fedavg"}, {"algorithm": "fedprox"}


def declared(**changes: Any) -> Hypothesis:
    settings = {"claim": "It is so.", "condition": PROX, "against": AVG}
    return validated(Hypothesis, settings | changes, "hypothesis")


@pytest.mark.parametrize(
    ("direction", "margin", "low", "high", "answer"),
    [
        ("above", 0.02, 0.03, 0.05, "yes"),
        ("above", 0.02, -0.05, 0.01, "no"),
        ("above", 0.02, 0.01, 0.05, "cannot tell"),
        ("below", 0.02, -0.01, 0.01, "yes"),
        ("below", 0.02, 0.03, 0.05, "no"),
        ("below", 0.02, 0.01, 0.03, "cannot tell"),
        ("within", 0.02, -0.01, 0.01, "yes"),
        ("within", 0.02, 0.03, 0.05, "no"),
        ("within", 0.02, -0.05, -0.03, "no"),
        ("within", 0.02, -0.03, 0.01, "cannot tell"),
        ("above", 0.02, math.nan, math.nan, "cannot tell"),
    ],
)
def test_the_whole_interval_decides(direction: str, margin: float, low: float, high: float, answer: str) -> None:
    hypothesis = declared(direction=direction, margin=margin)
    assert hypotheses.judged(hypothesis, low, high, 3)[0] == answer
    assert hypotheses.judged(hypothesis, low, high, 2) == ("cannot tell", "fewer than 3 trainings")


def right(run: Run, site: str, patient: int) -> int:
    """Of 20 answers: FedProx is right in 2 or 4 more than FedAvg, and both lose 6 outside."""
    better = run.algorithm.name == "fedprox"
    return 14 + (2 + patient % 2 * 2) * better - 6 * (site == "x") - (run.seed + patient) % 3 + run.seed % 2


def half_of(table: np.ndarray, weight: float = 1.0) -> float:
    """Half of the interval of a mean over seeds and patients (rows, columns), if seeds change nothing."""
    k = table.shape[1]
    se = math.sqrt(((table.mean(0) - table.mean()) ** 2).sum() / (k * (k - 1)))
    return float(weight * student.ppf(0.975, k - 1) * se)


def test_a_difference_between_conditions_and_one_between_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedProx is right in 2, 4, 2, 4, ... more of 20 answers: by 0.15, and in all seeds alike."""
    predict(monkeypatch, right, 10, 20)
    registered = [
        {"claim": "FedProx is better.", "condition": PROX, "against": AVG, "margin": 0.02},
        {"claim": "FedAvg is no better.", "condition": AVG, "against": PROX, "direction": "below"},
        {"claim": "Nothing is lost outside.", "condition": AVG, "at": "internal", "against_at": ["x"], "margin": 0.2},
        {"claim": "They are alike.", "condition": PROX, "against": AVG, "direction": "within", "margin": 0.14},
    ]
    found = compared(tmp_path, seeds=[0, 1, 2], hypotheses=registered)
    rows = found.table("hypotheses").to_dict("records")
    assert [row["answer"] for row in rows] == ["yes", "yes", "yes", "cannot tell"]
    gain = np.tile([0.1, 0.2], 5)[None].repeat(3, 0)
    for row, sign in ((rows[0], 1), (rows[1], -1)):
        assert row["mean"] == pytest.approx(0.15 * sign)
        assert (row["high"] - row["low"]) / 2 == pytest.approx(half_of(gain))
        assert (row["seeds"], row["patients"], row["at"]) == (3, 10, "x")
    effects = found.findings.effect("loss", found.findings.conditions[0], "source", site="x")
    assert rows[2]["mean"] == pytest.approx(effects.mean)
    assert (rows[2]["low"], rows[2]["high"]) == pytest.approx((effects.low, effects.high))
    assert (rows[2]["at"], rows[2]["than_at"]) == ("a", "x")
    section = hypotheses_section(found, "patients")
    assert section is not None
    assert section.lines[0] == "Registered: 4. Yes: 3, cannot tell: 1."
    assert [row[-1].text for row in section.tables[0].rows] == ["yes", "yes", "yes", "cannot tell"]
    of_what = [row[1].text for row in section.tables[0].rows]
    assert (
        of_what[0] == "FedProx, aggregated BN against FedAvg, aggregated BN" and of_what[2] == "FedAvg, aggregated BN"
    )
    assert section.tables[0].rows[0][3].text == "+15.0"
    first, *_, last = asked(found)
    assert (first.claim, first.answer, first.tone, last.answer, last.tone) == (
        *("FedProx is better.", "yes", "better"),
        *("cannot tell", ""),
    )
    low, high = (f"{100 * (0.15 + side * half_of(gain)):+.1f}" for side in (-1, 1))
    assert first.found == f"{of_what[0]}: claimed more than 2.0, found +15.0 (95% interval {low} to {high})"


def test_a_claim_is_about_the_mean_over_sites_that_are_left_out_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By seed and patient FedProx has 1 or 3 of 20 answers more; the sites left out have different patients."""
    predict(monkeypatch, lambda run, site, p: 10 + (1 + 2 * (p % 2)) * (run.algorithm.name == "fedprox"), 10, 20)
    whole = {"internal": ["a", "b", "c"], "leave_one_out": True, "split": {"train": 0.4, "val": 0.1, "test": 0.5}}
    registered = [
        {"claim": "FedProx is better there.", "condition": PROX, "against": AVG},
        {
            "claim": "Nothing is lost there.",
            "condition": AVG,
            "at": "internal",
            "against_at": "external",
            "margin": 0.1,
        },
        {
            "claim": "FedProx is better without b.",
            "condition": PROX | {"held_out": "b"},
            "against": AVG | {"held_out": "b"},
        },
    ]
    registered[1]["direction"] = "within"
    found = compared(tmp_path, seeds=[0, 1, 2], hypotheses=registered, partition=whole)
    first, second, third = found.table("hypotheses").to_dict("records")
    assert (first["at"], first["mean"], first["answer"]) == ("a b c", pytest.approx(0.1), "yes")
    assert (second["mean"], second["answer"]) == (pytest.approx(0, abs=1e-12), "yes")
    assert (third["at"], third["mean"]) == ("b", pytest.approx(0.1))
    gain = np.tile([0.05, 0.15], 5)[None]
    k = gain.shape[1]
    se = math.sqrt(((gain - gain.mean()) ** 2).sum() / (k * (k - 1)) / 3)
    assert (first["high"] - first["low"]) / 2 == pytest.approx(student.ppf(0.975, 3 * (k - 1)) * se)
    assert first["condition_id"] in {condition.family for condition in found.findings.conditions}
    assert hypotheses_section(found, "patients") is not None


def test_a_site_that_trains_in_some_partitions_only_is_no_side(tmp_path: Path) -> None:
    whole = {"internal": ["a", "b", "c"], "leave_one_out": True, "split": {"train": 0.4, "val": 0.1, "test": 0.5}}
    registered = {"claim": "It is so.", "condition": AVG, "at": "internal", "against_at": ["b"]}
    runs = [{"algorithm": "fedavg", "bn": "aggregated"}]
    plan = fake_study.plan(tmp_path, runs=runs, hypotheses=[registered], inferences=["source"], partition=whole)
    with pytest.raises(UserError, match="trains with 'b' in some partitions, and without it in others"):
        hypotheses.require(plan)


def test_a_lower_metric_that_is_better_turns_the_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, right, 10, 20)
    registered = [{"claim": "FedProx is better.", "condition": PROX, "against": AVG}]
    found = compared(tmp_path, seeds=[0, 1, 2], hypotheses=registered, metrics=["brier"], headline="brier")
    (row,) = found.table("hypotheses").to_dict("records")
    # Probabilities are 0.8 and 0.2: a right answer costs 0.04 and a wrong one 0.64.
    assert row["mean"] == pytest.approx(0.15 * 0.6)
    assert row["answer"] == "yes"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"against": None}, "nothing is compared"),
        ({"direction": "within"}, "nothing is within it"),
        ({"direction": "equal"}, "direction"),
        ({"claim": ""}, "claim"),
    ],
)
def test_a_claim_about_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserErrors, match=message):
        declared(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"condition": {"bn": "aggregated"}}, r"hypotheses.0.condition: matches 2 conditions, FedAvg"),
        ({"against": {"algorithm": "scaffold"}}, r"hypotheses.0.against: matches 0 conditions"),
        ({"at": ["nowhere"]}, r"hypotheses.0.condition: is not tested at 'nowhere'"),
    ],
)
def test_a_side_that_the_study_does_not_have_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    registered = {"claim": "It is so.", "condition": PROX, "against": AVG} | changes
    runs = [{"algorithm": ["fedavg", "fedprox"], "bn": "aggregated"}]
    plan = fake_study.plan(tmp_path, runs=runs, hypotheses=[registered], inferences=["source"])
    plan.scale = "paper"
    with pytest.raises(UserError, match=message):
        hypotheses.require(plan)


def test_a_second_answer_leaves_the_largest_patients_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patients 8 and 9, for whom FedProx is better by far, have most samples: without them it is better by 1 / 7."""
    predict(monkeypatch, lambda run, site, p: 8 + (2 + 8 * (p > 7)) * (run.algorithm.name == "fedprox"), 10, 20)
    registered = [{"claim": "FedProx is better.", "condition": PROX, "against": AVG, "margin": 0.3}]

    def fewer(table: pd.DataFrame) -> pd.DataFrame:
        parts = table["sample"].str.split("/", expand=True)
        return table[(parts[1].astype(int) > 7) | (parts[2].astype(int) < 14)]

    found = compared(tmp_path, seeds=[0, 1, 2], hypotheses=registered, without_largest=2, change=fewer)
    first, second = found.table("hypotheses").to_dict("records")
    assert (first["without"], second["without"]) == (0, 2)
    assert (first["answer"], second["answer"]) == ("cannot tell", "no")
    # Of 14 samples of each of eight patients, 8 or 10 are right; of 20 of the others, 8 or 18.
    assert first["mean"] == pytest.approx((8 * 2 + 2 * 10) / (8 * 14 + 2 * 20))
    assert second["mean"] == pytest.approx(2 / 14)
    # The score of all weighs patients by their samples: the linearised standard error of a ratio.
    wins, counts = np.repeat([2, 10], [8, 2]), np.repeat([14, 20], [8, 2])
    moved = (wins - counts * first["mean"]) / counts.sum()
    half = student.ppf(0.975, 9) * math.sqrt((moved**2).sum() * 10 / 9)
    assert (first["high"] - first["low"]) / 2 == pytest.approx(half)
    assert second["patients"] == 8
    # Each of these eight has 8 or 10 of 14 right: they count as 112 samples.
    half = intervals.half(intervals.of_alike(112, 8 / 14) + intervals.of_alike(112, 10 / 14), 7)
    assert (second["low"], second["high"]) == pytest.approx((2 / 14 - half, 2 / 14 + half))
    section = hypotheses_section(found, "patients")
    assert section is not None
    (fold,) = [block for block in section.blocks if isinstance(block, Fold)]
    assert [block for block in fold.blocks if isinstance(block, str)] == [
        "Whether a few patients decide: 0 of 1 answers are the same without them. The difference that moves furthest "
        "goes from +23.7 to +14.3: FedProx is better."
    ]
