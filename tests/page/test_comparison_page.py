"""Pages of several conditions: what is said of them, with expected numbers from NumPy and SciPy."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import intervals
import numpy as np
import pytest
from compared import METHODS, compared, predict
from outline import Outline
from scipy.stats import rankdata, studentized_range
from scipy.stats import t as student

from fedshift.analysis import study_results
from fedshift.analysis.verdict import Reason, Word, verdict
from fedshift.page import page, summary
from fedshift.page.answer import answer
from fedshift.study.plan import Run

SITES = tuple(f"h{n}" for n in range(6))
TABLE = np.random.default_rng(3).integers(-3, 4, (3, 12))
"""So many of 20 more are right with FedProx: a row for each training, a column for each patient."""


def spread(table: np.ndarray) -> tuple[float, float]:
    """The variance of the mean of (seeds, patients), and its degrees of freedom; negative components count as zero."""
    seeds, patients = table.shape
    by_seed, by_patient = table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    rest = ((table - by_seed - by_patient + table.mean()) ** 2).sum() / (seeds - 1) / (patients - 1) / table.size
    apart = by_seed.var(ddof=1) / seeds, by_patient.var(ddof=1) / patients
    return intervals.crossed((apart[0], seeds - 1), (apart[1], patients - 1), (rest, (seeds - 1) * (patients - 1)))


def said(root: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> tuple[str, str, float, float, float]:
    """The sentence and the text of a page of two conditions, with the mean, half width and p that it must show."""
    predict(
        monkeypatch,
        lambda run, site, patient: 10 + (more + int(TABLE[run.seed, patient])) * (run.algorithm.name == "fedprox"),
        12,
        20,
    )
    found = compared(root)
    values = (more + TABLE) / 20
    variance, df = spread(values)
    half, p = student.ppf(0.975, df) * math.sqrt(variance), 2 * student.sf(abs(values.mean()) / math.sqrt(variance), df)
    text = Outline(page.write(found).read_text()).text
    return answer(found.findings).compared, text, 100 * values.mean(), 100 * half, p


def test_a_difference_within_its_noise_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence, text, mean, half, p = said(tmp_path, monkeypatch, 0)
    assert abs(mean) < half
    names = re.findall("Fed(?:Avg|Prox), aggregated BN", sentence)
    assert names == [f"Fed{name}, aggregated BN" for name in (("Prox", "Avg") if mean > 0 else ("Avg", "Prox"))]
    low, high = (f"{abs(mean) + side * half:+.1f}".replace("-", "−") for side in (-1, 1))
    assert sentence.endswith(
        "are not distinguishable at the single external site: the difference is "
        f"{abs(mean):.1f} points (95% interval {low} to {high} over 12 patients and 3 trainings, Holm p {p:.3f})."
    )
    assert sentence in text
    assert "not distinguishable from the best" in text
    assert "– – – – best mean" in text
    assert "worse than the best" not in text


def test_a_clear_difference_is_told_with_its_p(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence, text, mean, half, p = said(tmp_path, monkeypatch, 6)
    assert p < 0.05
    shown = "<\N{NO-BREAK SPACE}0.001" if p < 0.001 else f"{p:.3f}"
    assert sentence == (
        f"FedProx, aggregated BN is better than FedAvg, aggregated BN at the single external site by {mean:.1f} points "
        f"(95% interval {mean - half:.1f} to {mean + half:.1f} over 12 patients and 3 trainings, Holm p {shown})."
    )
    assert sentence.replace("\N{NO-BREAK SPACE}", " ") in text.replace("\N{NO-BREAK SPACE}", " ")
    assert "worse than the best" in text
    assert "– – – – best " in text and "best mean" not in text
    assert "Sign flips of 3 trainings cannot give a p below 0.25" in text
    assert "adjusted for 1 pair of conditions" in text


def test_two_trainings_are_too_few_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda run, *_: 10 + 6 * (run.algorithm.name == "fedprox"), 12, 20)
    found = compared(tmp_path, seeds=[0, 1])
    text = Outline(page.write(found).read_text()).text
    assert (
        "Too few to tell FedProx, aggregated BN from FedAvg, aggregated BN at the single external site: 2 train" in text
    )
    assert "too few to tell: fewer than 3 trainings" in text
    assert "Holm p: adjusted" not in text


def test_trainings_that_disagree_tell_no_two_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All patients gain 20, 20 and -5 points over trainings, a variance of 0.0625 / 9."""
    predict(monkeypatch, lambda run, *_: 10 + (4, 4, -1)[run.seed] * (run.algorithm.name == "fedprox"), 12, 20)
    told = answer(compared(tmp_path).findings).compared
    one, other = (intervals.alike(12, 20, *shares, sites=1) for shares in ((0.7, 0.7, 0.45), (0.5,)))
    interval = intervals.percent(*one.gain_over(other, (0.0625 / 9, 2)), sign="+")
    variance, df = intervals.welch((0.0625 / 9, 2), (one.variance + other.variance, 11))
    p = 2 * student.sf(0.35 / 3 / math.sqrt(variance), df)
    assert told.startswith(
        "FedProx, aggregated BN and FedAvg, aggregated BN are not distinguishable at the single external site: the "
        f"difference of 11.7 points (95% interval {interval} over 12 patients and 3 trainings, Holm p {p:.3f}) depends"
    )


def test_a_declared_comparison_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, lambda run, *_: 10 + 6 * (run.algorithm.name == "fedprox"), 12, 20)
    declared = {"condition": {"algorithm": "fedavg"}, "against": {"algorithm": "fedprox"}}
    found = compared(tmp_path / "declared", METHODS[:4], primary=declared)
    told = answer(found.findings).opening
    assert answer(found.findings).condition.run.algorithm.name == "fedavg", "the first, not the best"
    assert answer(found.findings).led.startswith("FedAvg, aggregated BN, named first by the declared comparison")
    one, other = (intervals.alike(12, 20, share, sites=1) for share in (0.8, 0.5))
    interval = intervals.percent(*one.gain_over(other))
    assert told.startswith(
        "Primary comparison: FedProx, aggregated BN is better than FedAvg, aggregated BN at the single external site "
        f"by 30.0 points (95% interval {interval} over 12 patients and 3 trainings, Holm p < 0.001). "
        "Best of 4 conditions"
    )
    assert (
        "Worse: FedAvg, aggregated BN (by 30.0 points, Holm p < 0.001), SCAFFOLD, aggregated BN (by 30.0 points, "
        "exploratory, Holm p < 0.001)" in told
    )


def nine(run: Run, site: str, patient: int) -> int:
    """Of 40, 2 fewer from method to method, but the second is as good as the first; noise of -1, 0 and 1."""
    method = max(METHODS.index(run.algorithm.name), 1)
    noise = np.random.default_rng([METHODS.index(run.algorithm.name), run.seed, patient, *site.encode()]).integers(
        -1, 2
    )
    return 38 - 2 * method + int(noise)


@pytest.mark.painted
def test_nine_methods_at_six_sites_lead_with_their_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, nine, 8, 40)
    found = compared(tmp_path, METHODS, SITES, figures=["critical_difference"])
    svg = study_results.draw(found, "critical_difference").read_text()
    html = page.write(found).read_text()
    told, text = answer(found.findings), Outline(html).text
    runs = {name: run for run in found.plan.runs.values() for name in [run.algorithm.name] if run.seed == 0}
    shares = np.array(
        [
            [
                np.mean([nine(_Seeded(runs[name], seed), site, p) for seed in range(3) for p in range(8)]) / 40  # type: ignore[arg-type]
                for name in METHODS
            ]
            for site in SITES
        ]
    )
    best, second = (("FedAvg", "FedProx"), ("FedProx", "FedAvg"))[int(shares.mean(0).argmax())]
    percent = "\N{NO-BREAK SPACE}%"
    assert told.opening.startswith(
        f"Best of 9 conditions at 6 external sites: {best}, aggregated BN ({100 * shares.mean(0).max():.1f}{percent}, "
    )
    assert f"Not distinguishable from it: {second}, aggregated BN. Worse: SCAFFOLD, aggregated BN (by " in told.opening
    assert told.opening.endswith(" The data cannot tell for any of the 9 conditions.")
    assert told.lead.startswith(f"{best}, aggregated BN: ")
    assert html.index("Best of 9 conditions") < html.index(told.lead)
    assert "adjusted for 36 pairs of conditions" in text
    assert "those of 6 external sites none below 0.031" in text
    ranks = rankdata(-shares, axis=1).mean(0)
    critical = studentized_range.ppf(0.95, 9, np.inf) / math.sqrt(2) * math.sqrt(9 * 10 / (6 * 6))
    assert f"differ by less than {critical:.2f}, the critical difference" in svg
    for title, rank in zip(("FedAvg", "FedProx", "SCAFFOLD", "FedDyn"), ranks, strict=False):
        assert f"{title}, aggregated BN ({rank:.2f})" in svg
    assert "The test takes the sites as independent of each other." in text


class _Seeded:
    """A run with another seed, as `nine` needs it."""

    def __init__(self, run: Run, seed: int) -> None:
        self.algorithm, self.seed = run.algorithm, seed


@pytest.mark.parametrize(
    ("methods", "sites", "why"),
    [
        (3, 4, "it needs 5 external sites, and the study has 4"),
        (2, 5, "it needs 3 conditions that are tested at the same sites"),
        (3, 5, "all conditions have the same scores"),
    ],
)
def test_ranks_of_too_few_are_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: int, sites: int, why: str
) -> None:
    predict(monkeypatch, lambda *_: 10, 5, 20)
    found = compared(tmp_path, METHODS[:methods], SITES[:sites], figures=["critical_difference"])
    svg = study_results.draw(found, "critical_difference").read_text()
    assert f"This figure is not drawn: {why}." in svg
    assert "Nothing to draw." in svg


def by_site(right: dict[str, int], home: int = 16):  # type: ignore[no-untyped-def]
    """So many are right in every patient at home; elsewhere one more in a third of them, and one less in another."""

    def at(run: Run, site: str, patient: int) -> int:
        return right[site] + (patient % 3 == 0) - (patient % 3 == 1) if site in right else home

    return at


def test_sites_of_opposite_sign_do_not_hold_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 % at home, 95 at one site and 63 at another: a mean loss of one point, under the margin of five."""
    predict(monkeypatch, by_site({"x": 190, "y": 126}, 160), 30, 200)
    found = compared(tmp_path, METHODS[:1], ("x", "y")).findings
    judged = verdict(found, found.conditions[0])
    assert judged.loss.mean == pytest.approx(0.01)
    assert judged.loss.high < 0.05
    assert (judged.word, judged.reason) == (Word.CANNOT_TELL, Reason.SITES_DISAGREE)
    assert judged.opposite(0.05) == ("y", "x")
    lead = answer(found).lead
    assert lead.startswith("FedAvg, aggregated BN: cannot tell from the mean: it loses 17.0 points at y (95% interval ")
    assert "and gains 15.0 points at x (95% interval " in lead
    ends = re.search(r"gains 15.0 points at x \(95% interval ([\d.]+) to ([\d.]+) ", lead)
    assert ends is not None and float(ends[1]) < 15 < float(ends[2]), "a gain has the interval of a gain"
    assert "The mean loss of 1.0 point says nothing of either." in lead
    assert "holds up" not in lead


@pytest.mark.parametrize(("y", "word"), [(146, Word.HOLDS), (126, Word.CANNOT_TELL)])
def test_a_small_loss_that_is_certain_is_not_of_opposite_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, y: int, word: Word
) -> None:
    """A certain loss of 7 points under a margin of 20 is none; of 17 points it may be more than the margin of 5."""
    margin = 0.2 if word is Word.HOLDS else 0.05
    predict(monkeypatch, by_site({"x": 190, "y": y}, 160), 30, 200)
    found = compared(tmp_path, METHODS[:1], ("x", "y"), margin=margin).findings
    assert verdict(found, found.conditions[0]).word is word


@pytest.mark.parametrize(("count", "words"), [(1, "One external site says"), (2, "2 external sites say"), (3, None)])
def test_a_verdict_on_few_sites_is_about_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, words: str | None
) -> None:
    predict(monkeypatch, by_site({}, 19), 30, 20)
    lead = answer(compared(tmp_path, METHODS[:1], SITES[:count]).findings).lead
    assert "holds up at its" in lead
    assert lead.endswith(f"{words} nothing about other hospitals." if words else "training statistics.")


def test_every_table_of_sites_counts_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predict(monkeypatch, by_site({}, 16), 30, 20)
    found = compared(tmp_path, METHODS[:1], SITES[:2])
    summary.summarise(found)
    tables = found.files
    rows = csv.DictReader(tables.table("sites", "csv").read_text().splitlines())
    assert [row["Patients"] for row in rows] == ["15", "30", "30"]
    overview = tables.table("overview", "csv").read_text().splitlines()
    assert "15 + 60" in overview[1]
    assert found.table("effects").set_index(["quantity", "role", "site"])["patients"].to_dict() == {
        ("level", "internal", "*"): 15,
        ("above_guess", "internal", "*"): 15,
        ("level", "external", "*"): 60,
        ("level", "internal", "a"): 15,
        ("level", "external", "h0"): 30,
        ("level", "external", "h1"): 30,
        ("gap", "internal", "*"): 75,
        ("loss", "external", "h0"): 45,
        ("loss", "external", "h1"): 45,
    }
