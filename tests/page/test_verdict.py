"""Verdicts on invented predictions, against figures worked out by hand.

The margin of the study is 5 points. Half of the labels are of either class, unless a test says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_study
import intervals
import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student
from scored_study import page_of, results_of

from fedshift.analysis.findings import Findings
from fedshift.analysis.verdict import Reason, Recovery, Verdict, Word, verdict
from fedshift.page.answer import answer
from fedshift.page.summary import overview
from fedshift.study.plan import Run

ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": []}
PATIENTS = 30
"""At each site; internal sites test 6 of them, external sites all."""


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", PATIENTS)


def judged(root: Path, share_right: fake_study.ShareRight, **changes: Any) -> tuple[Findings, Verdict, str]:
    """The verdict on the first condition, and the page's first sentence about it."""
    found = results_of(root, share_right, **ONE | changes).findings
    return found, verdict(found, found.conditions[0]), answer(found).lead


def rights(inside: float, source: float, tsmobn: float) -> fake_study.ShareRight:
    return lambda run, inference, site, role: (
        inside if role == "internal" else {"source": source}.get(inference, tsmobn)
    )


def instead(monkeypatch: pytest.MonkeyPatch, p1: Callable[[pd.DataFrame, Run], np.ndarray]) -> None:
    """Give the samples of a run these probabilities of class 1."""

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        table = table.assign(p1=p1(table, run))
        return table.assign(p0=1 - table["p1"])[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "predict", predict)


def test_a_constant_classifier_is_not_shown_to_work_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """70 % of the labels are 1: always giving 1 is right in 70 % everywhere, above a guess, and has no loss outside."""
    instead(monkeypatch, lambda table, run: np.full(len(table), 0.9))

    def mostly(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(label=(table.groupby("patient").cumcount() < 7).astype(int))

    found, said, lead = judged(tmp_path, rights(0, 0, 0), change=mostly)
    assert (said.word, said.reason) == (Word.CANNOT_TELL, Reason.HOME_IN_DOUBT)
    assert (said.home.mean, said.home.chance, said.home.majority) == pytest.approx((0.7, 0.5, 0.7))
    assert "cannot tell: it is not shown to work at home, where AUC is 0.500" in lead
    assert "hold" not in lead and "no loss" not in lead
    assert "Chance level: 50.0; always giving the commonest class: 70.0 at internal sites" in overview(found).caption


def test_chance_at_home_tells_nothing_of_outside(tmp_path: Path) -> None:
    """50 % at home, and 60 % outside: better outside, and still no verdict."""
    _, said, lead = judged(tmp_path, rights(0.5, 0.6, 0.6))
    assert (said.word, said.reason) == (Word.CANNOT_TELL, Reason.HOME_IN_DOUBT)
    assert said.loss.mean == pytest.approx(-0.1)
    assert "it is not shown to work at home, where AUC is 0.500" in lead
    assert "no loss" not in lead


def test_trainings_that_differ_leave_home_in_doubt(tmp_path: Path) -> None:
    """70, 50 and 90 % at home, a variance of 0.04 / 3 over trainings. The interval is cut at 100 %."""
    at_home = {0: 0.7, 1: 0.5, 2: 0.9}
    _, said, lead = judged(tmp_path, lambda run, *where: at_home[run.seed] if where[2] == "internal" else 0.7)
    low, high = intervals.alike(6, 10, 0.7, 0.5, 0.9).level((0.04 / 3, 2))
    assert high > 1
    assert (said.word, said.reason) == (Word.CANNOT_TELL, Reason.HOME_IN_DOUBT)
    assert (said.home.low, said.home.high) == pytest.approx((low, 1.0))
    assert said.needs == ("trainings",)
    assert "it is not shown to work at home" in lead and "More trainings would narrow the interval." in lead


def test_perfect_at_home_and_chance_outside_loses(tmp_path: Path) -> None:
    """At home all six patients of each of two sites are right, so that as many as Wilson's interval may be wrong."""
    _, said, lead = judged(tmp_path, rights(1.0, 0.5, 0.8))
    assert (said.word, said.open, said.recovery) == (Word.LOSES, False, Recovery.RECOVERS)
    down, up = intervals.alike(30, 10, 0.5).towards(False), intervals.alike(30, 10, 0.5).towards(True)
    at_home = ((1 - intervals.wilson(1.0, 6)[0]) / intervals.Z) ** 2 / 4, math.inf
    low, high = (
        0.5 - intervals.half(*intervals.welch(at_home, at_home, *up)),
        0.5 + intervals.half(*intervals.welch(*down)),
    )
    assert (said.loss.mean, said.loss.low, said.loss.high) == pytest.approx((0.5, low, high))
    assert lead.startswith(
        f"FedAvg, aggregated BN: loses 50.0 points at its 2 external sites (95% interval {100 * said.loss.low:.1f} to "
    )
    assert "and TsmoBN recovers 30.0 points. Accuracy" in lead
    assert "TsmoBN recovers 30.0 points of the external loss" in lead


@pytest.mark.parametrize(("tsmobn", "recovery"), [(0.4, Recovery.WORSENS), (0.5, Recovery.IN_DOUBT)])
def test_a_loss_may_stay_or_grow(tmp_path: Path, tsmobn: float, recovery: Recovery) -> None:
    _, said, lead = judged(tmp_path, rights(1.0, 0.5, tsmobn))
    assert (said.word, said.recovery) == (Word.LOSES, recovery)
    assert ("and TsmoBN loses another 10.0 points." in lead) == (recovery is Recovery.WORSENS)
    assert ("it is not shown that TsmoBN recovers any of it." in lead) == (recovery is Recovery.IN_DOUBT)


@pytest.mark.parametrize(
    ("margin", "outside", "word"),
    [(None, 0.9, Word.HOLDS), (None, 0.8, Word.LOSES), (0.2, 0.8, Word.HOLDS), (None, 1.0, Word.HOLDS)],
)
def test_what_holds_up_is_under_the_margin(tmp_path: Path, margin: float | None, outside: float, word: Word) -> None:
    """90 % at home. A loss of 10 points is under a margin of 20 that the study declares, and above the default of 5."""
    _, said, lead = judged(tmp_path, rights(0.9, outside, outside), margin=margin)
    assert said.word is word
    limit = f"under the margin of {100 * margin if margin else 5:.1f} points throughout."
    assert (limit in lead) == (word is Word.HOLDS)


def test_a_margin_changes_no_run(tmp_path: Path) -> None:
    one, other = (fake_study.plan(tmp_path, margin=margin) for margin in (None, 0.02))
    assert list(one.runs) == list(other.runs)
    assert one.view != other.view


SEEDS = (0.825, 0.808, 0.678)
PAIRS = [((right + 101) // 2, right - (right + 101) // 2) for right in (825, 808, 678)]
"""Right answers of 500 of a good and of a bad patient, for each seed: 463 and 362, 454 and 354, 389 and 289."""


def scattered(table: pd.DataFrame, run: Run) -> np.ndarray:
    """All right at home; outside ten good patients and ten bad ones."""
    outside = (table["role"] == "external").to_numpy()
    bad = table["patient"].str.rsplit("/", n=1).str[1].astype(int).to_numpy() % 2
    wrong = outside & (table.groupby("patient").cumcount().to_numpy() >= np.array(PAIRS[run.seed])[bad])
    return np.where((table["label"] == 1).to_numpy() != wrong, 0.8, 0.2)


def test_three_trainings_and_twenty_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval over patients alone says nothing of trainings that differ by 15 points."""
    monkeypatch.setattr(fake_study, "PATIENTS", 20)
    monkeypatch.setattr(fake_study, "PER_PATIENT", 500)
    instead(monkeypatch, scattered)
    parts = {"internal": fake_study.INTERNAL, "external": ["centre1"], "split": {"train": 0.5, "val": 0, "test": 0.5}}
    changes: dict[str, Any] = {"metrics": ["accuracy"], "inferences": ["source"]}
    changes["training"] = {"rounds": 4, "select": "last"}
    found, said, lead = judged(tmp_path, rights(1, 1, 1), partition=parts, **changes)
    level, seeds = found.effect("level", found.conditions[0], "source"), np.array(SEEDS)
    assert (level.mean, level.std) == pytest.approx((seeds.mean(), seeds.std(ddof=1)))
    halves = (np.array(PAIRS)[:, 0] - np.array(PAIRS)[:, 1]) / 1000  # of each training, from good to bad patients
    patients, trainings = halves.mean() ** 2 / 19, seeds.var(ddof=1) / 3
    residual = ((halves - halves.mean()) ** 2).sum() / 19 / 6
    assert patients + trainings - residual > max(patients, trainings)  # no component is negative
    ends = intervals.wilson(level.mean, level.mean * (1 - level.mean) / patients)
    alone = [level.mean - student.ppf(0.975, 19) / intervals.Z * (level.mean - end) for end in ends]
    assert (level.low_patients, level.high_patients) == pytest.approx(alone)
    wanted = []
    for end, sign in zip(ends, (-1, 1), strict=True):
        sided = ((level.mean - end) / intervals.Z) ** 2
        total, df = intervals.crossed((trainings, 2), (sided, 19), (residual, 38))
        wanted.append(level.mean + sign * student.ppf(0.975, df) * math.sqrt(total))
    assert (level.low, level.high) == pytest.approx(wanted)
    assert (said.word, said.open) == (Word.LOSES, True)  # 100 % at home: a loss of 23 points, most of it open
    assert said.loss.high == pytest.approx(1 - level.low) and said.loss.low < 1 - level.high
    assert "over 40 patients and 3 trainings" in lead


def test_one_training_says_so(tmp_path: Path) -> None:
    _, said, lead = judged(tmp_path, rights(0.9, 0.6, 0.8), seeds=[0])
    assert said.word is Word.LOSES
    assert "over 72 patients only: one training" in lead


def test_each_of_two_conditions_has_its_verdict(tmp_path: Path) -> None:
    def share_right(run: Run, inference: str, site: str, role: str) -> float:
        return 0.9 if role == "internal" or run.bn == "local" else 0.6

    found, *_ = judged(tmp_path, share_right, runs=[{"algorithm": "fedavg", "bn": ["aggregated", "local"]}])
    assert [verdict(found, one).word for one in found.conditions] == [Word.LOSES, Word.HOLDS]
    told = answer(found)
    assert told.opening == ""
    interval = intervals.percent(*intervals.alike(30, 10, 0.9).gain_over(intervals.alike(30, 10, 0.6)))
    assert told.compared == (
        "FedAvg, local BN is better than FedAvg, aggregated BN at 2 external sites by 30.0 points (95% interval "
        f"{interval} over 60 patients and 3 trainings, Holm p <\N{NO-BREAK SPACE}0.001)."
    )
    assert told.lead.startswith("FedAvg, aggregated BN: loses 30.0 points")
    assert told.others[0].startswith("FedAvg, local BN: holds up at its 2 external sites: the loss is 0.0 points")


def test_a_gain_is_no_loss(tmp_path: Path) -> None:
    """Nothing is lost where all of 10 answers are right outside and 8 at home: the loss has its sign."""
    _, found, lead = judged(tmp_path, lambda run, how, site, role: 0.8 if role == "internal" else 1.0)
    assert found.word is Word.HOLDS
    assert "holds up at its 2 external sites: the loss is −20.0 points (95% interval −" in lead


def test_many_conditions_are_counted_first(tmp_path: Path) -> None:
    """Losses of 30 points, of none, and a model at chance at home, twice; models of one site have none to lose."""

    def share_right(run: Run, inference: str, site: str, role: str) -> float:
        home = 0.5 if run.algorithm.name == "fedprox" else 0.9
        return home if role == "internal" or run.bn == "local" else 0.6

    runs = [{"algorithm": ["fedavg", "fedprox"], "bn": ["aggregated", "local"]}, {"algorithm": "local"}]
    found, *_ = judged(tmp_path, share_right, runs=runs, seeds=[0])
    told = answer(found)
    assert told.opening.startswith("Best of 4 conditions at 2 external sites: FedAvg, local BN (90.0")
    counted = "Of 4 conditions 1 holds up at external sites, 1 loses there and for 2 the data cannot tell."
    assert told.opening.endswith(counted)
    assert told.led == "FedAvg, aggregated BN, Source, first of 5 conditions"
    html = page_of(found.plan, fake_study.Paths(tmp_path))
    assert html.index("Best of 4 conditions") < html.index(counted) < html.index(told.lead)


def test_conditions_of_which_none_can_be_judged_are_one_sentence(tmp_path: Path) -> None:
    runs = [{"algorithm": ["fedavg", "fedprox"], "bn": ["aggregated", "local"]}]
    found, *_ = judged(tmp_path, lambda *_: 0.5, runs=runs, seeds=[0])
    assert answer(found).opening.endswith("The data cannot tell for any of the 4 conditions.")


def test_without_external_sites_nothing_is_said_of_them(tmp_path: Path) -> None:
    _, said, lead = judged(tmp_path, rights(0.9, 0, 0), partition={"internal": fake_study.INTERNAL})
    assert (said.word, said.reason) == (Word.CANNOT_TELL, Reason.NO_EXTERNAL_SITE)
    assert "so it cannot say how the model travels." in lead


def test_the_auc_of_a_site_has_an_interval_within_its_bounds(tmp_path: Path) -> None:
    """Nine in ten are right in every patient: an AUC of 0.82 to 0.9, alike in all patients but for rounding."""
    found, said, _ = judged(tmp_path, rights(0.9, 0.6, 0.8), headline="auc")
    value = found.value(found.conditions[0], "external", "centre1", "source")
    assert 0 < value.low <= value.mean <= value.high < 1
    assert (value.chance, value.majority) == (0.5, 0.5)
    assert said.word is Word.LOSES


def test_an_auc_of_one_is_not_certain(tmp_path: Path) -> None:
    """Six patients of either class at each site: of 36 pairs half a one is in the wrong order."""
    found, said, _ = judged(tmp_path, rights(1.0, 0.6, 0.8), headline="auc")
    value = found.value(found.conditions[0], "internal", "centre0", "source")
    wrong = 0.5 / 36
    half = student.ppf(0.975, 5) / math.sqrt(36 * wrong * (1 - wrong))
    low = 1 / (1 + math.exp(half) * wrong / (1 - wrong))
    assert (value.mean, value.low, value.high) == pytest.approx((1, low, 1))
    assert said.word is Word.LOSES and said.loss.low < said.loss.mean
