"""Verdicts at the edges, where few patients, one hospital or rare classes decide: from predictions to the words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from outline import Outline
from scipy.stats import norm, ttest_rel
from scored_study import results_of

from fedshift.analysis.study_results import StudyResults
from fedshift.analysis.verdict import Reason, Verdict, Word, verdict, worse_than_guessing
from fedshift.page import page
from fedshift.page.answer import answer
from fedshift.page.html import Screen
from fedshift.page.phrases import HOSPITALS
from fedshift.page.screens import screen
from fedshift.study.plan import Run

Right = Callable[[str, int, int], float]
"""The probability of class 1 from a site, the number of a patient there and the label."""


def study(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    patients: Mapping[str, int],
    probability: Callable[[str, int, int, int], float],
    images: int = 1,
    label: Callable[[int], int] = lambda patient: patient % 2,
    **changes: Any,
) -> StudyResults:
    """A study of hospitals h0, h1, ... at home and x0, x1, ... outside, with so many tested patients each.

    `probability` is that of class 1, from the site, the patient, its label and the seed. All samples of internal sites
    are tested, but for the same number again that train.
    """

    def samples(_: Any) -> pd.DataFrame:
        rows = []
        for site, number in patients.items():
            for patient in range(number * (2 if site.startswith("h") else 1)):
                one = {"site": site, "label": label(patient), "patient": f"{site}/{patient}"}
                rows += [{"sample": f"{site}/{patient}/{k}", **one} for k in range(images)]
        return pd.DataFrame(rows)

    def predict(table: pd.DataFrame, run: Run, *_: Any) -> pd.DataFrame:
        order = table.groupby("site")["patient"].transform(lambda names: pd.factorize(names)[0])
        given = zip(table["site"], order, table["label"], strict=True)
        table = table.assign(p1=[probability(site, patient, y, run.seed) for site, patient, y in given])
        return table.assign(p0=1 - table["p1"])[["sample", "site", "role", "label", "p0", "p1"]]

    monkeypatch.setattr(fake_study, "samples", samples)
    monkeypatch.setattr(fake_study, "predict", predict)
    inside, outside = ([site for site in patients if site.startswith(role)] for role in "hx")
    settings: dict[str, Any] = {
        "partition": {"internal": inside, "external": outside, "split": {"train": 0.5, "val": 0, "test": 0.5}},
        "training": {"rounds": 4, "select": "last"},
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
        "metrics": ["accuracy"],
        "figures": [],
    }
    return results_of(root, **settings | changes)


def share(of: Mapping[str, float], patients: Mapping[str, int]) -> Callable[[str, int, int, int], float]:
    """So many of the patients of a site are answered rightly: those whose number in a fixed order is small."""

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        order = np.random.default_rng(len(site) + int(site[1:])).permutation(patients[site])
        right = order[patient % patients[site]] < round(of[site] * patients[site])
        return 0.9 if right == (y == 1) else 0.1

    return probability


def judged(found: StudyResults) -> tuple[Verdict, Screen]:
    told = answer(found.findings)
    return told.judged, screen(found.findings, told.condition, told.judged, HOSPITALS)


def shown(found: StudyResults) -> str:
    """The text of the page."""
    return Outline(page.write(found).read_text(encoding="utf-8")).text


def test_all_right_is_not_certain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five patients outside, all right, as at home: 43 points may be lost (Wilson's interval of 5 of 5)."""
    patients = {"h0": 25, "h1": 25, "x0": 5}
    found = study(tmp_path, monkeypatch, patients, share(dict.fromkeys(patients, 1.0), patients))
    said, first = judged(found)
    z = norm.ppf(0.975)
    assert said.word is Word.CANNOT_TELL
    assert (said.loss.mean, said.loss.high) == pytest.approx((0, z**2 / (5 + z**2)))
    assert first.sentence.startswith("Outside it may be 43.4 points worse")


def test_a_failing_hospital_is_not_hidden_by_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hospitals as good as home, a fifth 20 points worse: the mean loss is 3 points, under a margin of 10."""
    patients = {"h0": 1000, "h1": 1000} | {f"x{k}": 400 for k in range(5)}
    of = dict.fromkeys(patients, 0.9) | {"x0": 0.7, "x1": 0.91, "x2": 0.91}
    found = study(tmp_path, monkeypatch, patients, share(of, patients), margin=0.1)
    said, first = judged(found)
    assert said.loss.high < 0.1
    assert (said.word, said.reason, said.worst) == (Word.CANNOT_TELL, Reason.SITE_FAILS, ("x0",))
    assert (first.word, first.tone) == ("Depends on the hospital", "bad")
    assert "At x0 it is 20.0 points worse than at home, surely more than the margin of 10.0 points" in first.sentence


def test_of_a_model_that_loses_the_worst_hospital_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patients = {"h0": 1000, "h1": 1000} | {f"x{k}": 400 for k in range(5)}
    of = dict.fromkeys(patients, 0.9) | {"x0": 0.69}
    found = study(tmp_path, monkeypatch, patients, share(of, patients))
    said, first = judged(found)
    assert (said.word, said.open, said.worst) == (Word.LOSES, True, ("x0",))
    assert first.word == "Loses, how much is open"
    assert "At x0 it is 21.0 points worse, surely more than at the others." in first.sentence


@pytest.mark.parametrize(
    ("lost", "patients", "word"),
    [(0.03, 1500, "Loses, how much is open"), (0.03, 6000, "Holds up"), (0.1, 6000, "Loses"), (0.0, 6000, "Holds up")],
)
def test_the_words_for_losses_do_not_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: float, patients: int, word: str
) -> None:
    """A loss of 3 points under a margin of 5: with more patients it is sure, and holds up."""
    tested = {"h0": patients, "h1": patients, "x0": patients}
    of = {"h0": 0.9, "h1": 0.9, "x0": 0.9 - lost}
    found = study(tmp_path, monkeypatch, tested, share(of, tested), seeds=[0])
    said, first = judged(found)
    assert first.word == word
    assert ("That something is lost is sure" in first.sentence) == (word == "Holds up" and lost > 0)
    assert said.open == (word == "Loses, how much is open")


def rare(patient: int) -> int:
    return int(patient % 25 == 0)


def test_a_screen_for_a_rare_disease_has_learnt_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 % are ill, and are all told apart from 93 % of the others: right less often than the answer `healthy`."""
    patients = {"h0": 400, "h1": 400, "x0": 400}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        return 0.95 if y else (0.6 if patient % 14 == 1 else 0.2)

    found = study(
        *(tmp_path, monkeypatch, patients, probability),
        label=rare,
        metrics=["accuracy", "balanced_accuracy"],
        seeds=[0],
    )
    said, _ = judged(found)
    assert said.home.mean < said.home.majority == pytest.approx(0.96)
    assert found.findings.gate.name == "balanced_accuracy"
    assert said.above.mean == pytest.approx(0.5 * (1 + 1 - 0.0725) - 0.5, abs=0.01)
    assert said.reason is None and said.word is Word.HOLDS


def test_accuracy_alone_says_nothing_of_what_was_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same screen, judged by its accuracy: the difference from the commonest class is paired by patients."""
    patients = {"h0": 400, "h1": 400, "x0": 400}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        return 0.95 if y else (0.6 if patient % 14 == 1 else 0.2)

    found = study(tmp_path, monkeypatch, patients, probability, label=rare, seeds=[0])
    said, first = judged(found)
    assert said.reason is Reason.HOME_FAILS
    assert "`metrics: [auc]` would" in first.sentence and "learnt nothing" not in first.sentence
    assert "always giving the commonest class has 96.0" in first.sentence
    # by hand: of each site, right minus whether the patient is healthy, with the t quantile of both
    (run,) = found.plan.runs.values()
    table = found.predictions.read(run, found.findings.keys[0])
    variance, mean = 0.0, []
    for _, rows in table[table["role"] == "internal"].groupby("site"):
        right = ((rows["p1"] > 0.5) == (rows["label"] == 1)).to_numpy(dtype=float)
        difference = right - (rows["label"] == 0).to_numpy(dtype=float)
        mean.append(difference.mean())
        variance += ttest_rel(right, 1.0 * (rows["label"] == 0)).statistic ** -2 * difference.mean() ** 2 / 4
    assert said.above.mean == pytest.approx(np.mean(mean))
    half = said.above.high - said.above.mean
    assert half == pytest.approx(norm.ppf(0.975) * variance**0.5, rel=0.01)


def test_a_model_that_is_hardly_better_than_a_guess_does_not_hold_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """53 % at home, surely above 50, and 53 % outside: a loss under the margin, of a model of little use."""
    patients = {"h0": 6000, "x0": 6000}
    found = study(tmp_path, monkeypatch, patients, share(dict.fromkeys(patients, 0.53), patients), seeds=[0])
    said, first = judged(found)
    assert said.loss.high < 0.05 and said.above.low > 0
    assert (said.word, said.reason) == (Word.CANNOT_TELL, Reason.WEAK_AT_HOME)
    assert first.word == "Weak at home, and as weak outside"


def test_patients_and_those_of_the_rarer_class_are_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patients = {"h0": 200, "x0": 150}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        return float(np.clip(0.35 * y + 0.3 + 0.4 * np.random.default_rng([patient, seed]).random(), 0, 1))

    found = study(tmp_path, monkeypatch, patients, probability, label=rare, metrics=["auc"], headline="auc")
    value = found.findings.value(found.findings.conditions[0], "external", "x0", found.findings.keys[0])
    assert (value.patients, value.rarer) == (150, 6)
    assert "150 patients" in answer(found.findings).tiles[1].note
    assert "6 of the rarer class" in answer(found.findings).tiles[1].note


def test_a_site_of_few_patients_takes_no_interval_from_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hospitals of 100 patients and one of 4: the mean over both, and beside it that over all three."""
    patients = {"h0": 200, "x0": 100, "x1": 100, "x2": 4}
    of = {"h0": 0.9, "x0": 0.8, "x1": 0.7, "x2": 0.25}
    found = study(tmp_path, monkeypatch, patients, share(of, patients), seeds=[0])
    findings, (condition,) = found.findings, found.findings.conditions
    key = findings.keys[0]
    level, whole = (findings.effect(what, condition, key) for what in ("level", "level_of_all"))
    assert (level.mean, level.patients) == (pytest.approx(0.75), 200)
    assert level.low < 0.75 < level.high
    assert (whole.mean, whole.patients) == (pytest.approx((0.8 + 0.7 + 0.25) / 3), 204)
    assert np.isnan(whole.low)
    assert judged(found)[0].word is Word.LOSES
    text = shown(found)
    assert (
        "With fewer than 5 test patients at x2, the mean over external sites leaves out these: it is 75.0 % for "
        "FedAvg, aggregated BN, and 58.3 % with them." in text.replace("\N{NO-BREAK SPACE}", " ")
    )


def test_worse_than_guessing_is_adjusted_for_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of six sites is below chance with p of about 0.02: sure by itself, and not among six of two measures each."""
    patients = {"h0": 60} | {f"x{k}": 60 for k in range(5)}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        rank = np.random.default_rng([patient, int(site[1:]), 7]).random()
        return float(np.clip(rank + {"h0": 0.9, "x0": -0.2}.get(site, 0.3) * (y - 0.5), 0.01, 0.99))

    found = study(tmp_path, monkeypatch, patients, probability, metrics=["auc"], headline="auc", seeds=[0])
    findings, (condition,) = found.findings, found.findings.conditions
    p = findings.value(condition, "external", "x0", findings.keys[0], "auc").p
    assert 0.003 < p < 0.025
    assert worse_than_guessing(findings, condition, findings.keys[0]) == ()
    assert verdict(findings, condition).reason is not Reason.BELOW_CHANCE


def test_probabilities_that_are_too_high_are_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are told apart everywhere; outside, 100 are ill where 0.5 (0.95 + 0.45) 200 = 140 are expected: 71 of 100."""
    patients = {"h0": 200, "x0": 200}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        jitter = 0.02 * np.random.default_rng([patient, seed]).random()
        return (0.94 + jitter if y else 0.44 + jitter) if site == "x0" else (0.8 + jitter if y else 0.2 - jitter)

    found = study(tmp_path, monkeypatch, patients, probability)
    text = shown(found)
    assert "probabilities are surely too high at x0: 71 where 100 are expected (" in text
    assert "suspect Threshold and probabilities probabilities at x0 are too high: 71 where 100 are expected" in text


def test_a_network_that_answers_one_class_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three trainings call everybody ill, with scores that still rank."""
    patients = {"h0": 100, "x0": 100}

    def probability(site: str, patient: int, y: int, seed: int) -> float:
        score = 0.1 * y + 0.2 * np.random.default_rng([patient, seed]).random()
        return score + (0.6 if seed else 0.35)

    found = study(tmp_path, monkeypatch, patients, probability)
    text = shown(found)
    assert "problem Answers one class 2 of 3 trainings answer with one class for at least 98 % of the images" in text
    assert "`class_weights: balanced`" in text


def test_the_leading_condition_is_never_chosen_by_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is about the first federated condition, though another validates better at home."""
    patients = {"h0": 60, "x0": 60}
    right = share({"h0": 0.9, "x0": 0.8}, patients)
    methods = ["pooled", "fedavg", "fedprox", "scaffold", "feddyn"]

    def manifest(run: Run) -> dict[str, Any]:
        return told(run) | {"best_value": 0.9 if run.algorithm.name == "scaffold" else 0.8}

    told = fake_study.manifest
    monkeypatch.setattr(fake_study, "manifest", manifest)
    found = study(tmp_path, monkeypatch, patients, right, runs=[{"algorithm": methods}])
    text = shown(found)
    assert "FedAvg, aggregated BN, first of 5 conditions." in text
