"""The first screen: the verdict in a word and a sentence, what would settle it, and the picture, on invented scores."""

from __future__ import annotations

import contextlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_study
import intervals
import matplotlib
import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scored_study import results_of

from fedshift.analysis.controls import OF_CONTROL, Controls
from fedshift.analysis.findings import Findings
from fedshift.analysis.numbers import Key
from fedshift.analysis.study_results import StudyResults
from fedshift.analysis.values import Value
from fedshift.analysis.verdict import Reason, Verdict, Word, worse_than_guessing
from fedshift.datasets.discs import Discs
from fedshift.datasets.gaussians import Gaussians
from fedshift.figures._canvas import _STYLE
from fedshift.page import forest, page, summary
from fedshift.page.answer import answer, beaten, shortcut
from fedshift.page.forest import pooled
from fedshift.page.history import breaks_down, still_rises, training_light
from fedshift.page.page import lights
from fedshift.page.phrases import HOSPITALS
from fedshift.page.screens import screen
from fedshift.page.study_report import StudyReport
from fedshift.page.summary import sites_on_page
from fedshift.page.verdict_texts import TEXTS, Told, next_step


class Vectors(fake_study.Fake):
    """A dataset whose samples are no images."""

    name = "vectors"
    sample_noun = "window"
    shape = (192,)


ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "figures": []}


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 30)


def loaded(root: Path, inside: float, outside: float, tsmobn: float = 0.9, **changes: Any) -> StudyResults:
    def right(run: object, inference: str, site: str, role: str) -> float:
        return inside if role == "internal" else {"source": outside}.get(inference, tsmobn)

    return results_of(root, right, **ONE | changes)


def put(findings: Findings, value: Value, *about: str, **more: str) -> None:
    """Set the number with a key."""
    key = Key(*about, **more)
    findings.numbers._known.setdefault(key.quantity, {})[key] = value


def judged(found: StudyResults, **changes: Any) -> Any:
    told = answer(found.findings)
    return screen(found.findings, told.condition, told.judged, HOSPITALS)


def test_a_loss_is_a_word_and_three_numbers(tmp_path: Path) -> None:
    said = judged(loaded(tmp_path, 0.9, 0.6))
    assert (said.word, said.tone) == ("Loses", "bad")
    assert said.size == "6.0 times the margin"
    least = f"{100 * intervals.alike(6, 10, 0.9).minus(intervals.alike(30, 10, 0.6))[0]:.1f}"
    assert said.sentence == f"Outside it is 30.0 points worse than at home (at least {least}), {said.size}."
    assert len(re.findall(r"[\d.]*\d", said.sentence)) == 3
    assert "TsmoBN" not in said.sentence and "FedAvg" not in said.sentence
    assert said.whom.startswith("2 hospitals outside: centre1 and ") and said.whom.endswith(
        "Other hospitals may differ"
    )
    assert said.settle == ""


@pytest.mark.parametrize(
    ("mean", "end"),
    [
        (0.25, "25.0 points worse than at home (at least 24.0), 5.0 times the margin."),
        (0.07, "7.0 points worse than at home (at least 6.0), 1.4 times the margin."),
        (0.045, "4.5 points worse than at home (at least 3.5), 0.9 times the margin."),
    ],
)
def test_a_loss_is_measured_against_the_margin(mean: float, end: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, 0.9, 0.8).findings
    loss = Value(mean=mean, low=mean - 0.01, high=mean + 0.01)
    judged_ = Verdict(Word.LOSES, Value(mean=0.9, chance=0.5, majority=0.5), loss)
    said = screen(found, found.conditions[0], judged_, HOSPITALS)
    assert said.sentence == f"Outside it is {end}"
    assert len(re.findall(r"[\d.]*\d", said.sentence)) <= 3


def test_without_a_margin_a_loss_is_measured_against_a_guess(tmp_path: Path) -> None:
    """Of the 0.4 between an AUC of 0.9 and a guess, 0.06 are 15 %."""
    found = loaded(tmp_path, 0.9, 0.8, headline="auc").findings
    judged_ = Verdict(Word.LOSES, Value(mean=0.9, chance=0.5, majority=0.5), Value(mean=0.06, low=0.05, high=0.07))
    said = screen(found, found.conditions[0], judged_, HOSPITALS)
    assert said.sentence == (
        "Outside its AUC is 0.060 worse than at home (at least 0.050), 15 % of its lead over a guess. "
        "There is no margin: any sure loss counts."
    )


def test_without_an_interval_a_gain_outside_is_no_loss(tmp_path: Path) -> None:
    found = loaded(tmp_path, 0.9, 0.8).findings
    level = Value(mean=0.7, chance=0.5, majority=0.5)
    judged_ = Verdict(Word.CANNOT_TELL, level, Value(mean=-0.027), Reason.WITHOUT_INTERVAL)
    told = Told(found, found.conditions[0], judged_)
    assert "the loss outside is −2.7 points, but no interval can be given" in told.said("detail")
    assert told.said("sentence").startswith("No interval can be given: too few test patients")


def test_one_site_outside_is_not_called_the_worst(tmp_path: Path) -> None:
    parts = [{"internal": ["centre0", "centre3"], "external": sites} for sites in (["centre1"], ["centre1", "centre2"])]
    marks = []
    for n, part in enumerate(parts):
        found = results_of(tmp_path / str(n), partition=part, **ONE)
        table = sites_on_page(found.findings, found.findings.conditions[0], "patients", found.controls)
        marks.append({cell.mark for row in table.rows for cell in row})
    assert ["worst" in found for found in marks] == [False, True]


def test_what_holds_up_names_the_margin(tmp_path: Path) -> None:
    said = judged(loaded(tmp_path, 0.9, 0.8, margin=0.2))
    assert (said.word, said.tone) == ("Holds up", "good")
    assert said.sentence.endswith("the margin is 20.0 points. That something is lost is sure.")
    said = judged(loaded(tmp_path / "none", 0.8, 1.0, margin=0.1))
    assert said.sentence == "Outside it is surely no worse than at home."


def wide(std: float, patients: float, mean: float = 0.02) -> Verdict:
    """A loss of 3 trainings and 100 patients, with these standard errors."""
    half = 1.96 * math.hypot(std, patients)
    loss = Value(mean=mean, std=std * math.sqrt(3), seeds=3, low=mean - half, high=mean + half, patients=100)
    loss = loss._replace(low_patients=mean - 1.96 * patients, high_patients=mean + 1.96 * patients)
    return Verdict(Word.CANNOT_TELL, Value(mean=0.9), loss, Reason.TOO_WIDE)


@pytest.mark.parametrize(
    ("std", "patients", "words"),
    [
        # Room up to the margin of 5: 3 points, a standard error of 3 / 1.96 = 1.5306.
        (0.04, 0.0, "About 21 trainings in all would settle it"),  # 3 * (4 / 1.5306)^2 = 20.5
        (0.0, 0.03, "About 385 patients in all would settle it"),  # 100 * (3 / 1.5306)^2 = 384.2
        # One source alone leaves too much: both by (4^2 + 3^2) / 1.5306^2 = 10.67 times.
        (0.04, 0.03, "About 1,068 patients and 33 trainings in all would settle it"),
        (0.01, 0.02, "About 298 patients in all would settle it"),  # 100 * 2^2 / (1.5306^2 - 1^2) = 297.8
        (0.3, 0.3, "Far more patients and trainings would be needed to settle it."),
    ],
)
def test_what_would_settle_it(std: float, patients: float, words: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, 0.9, 0.8).findings
    said = screen(found, found.conditions[0], wide(std, patients), HOSPITALS)
    assert said.word == "Cannot tell"
    assert words in said.settle
    seen = 100 * 1.96 * math.hypot(std, patients)
    assert said.settle.endswith(f"A loss under {seen:.1f} points could not have been seen.")
    first = "first correct the data."
    said = screen(found, found.conditions[0], wide(std, patients), HOSPITALS, first)
    assert (said.settle, said.step) == ("", first)


def test_where_few_trainings_alone_leave_it_open_no_smaller_number_is_named(tmp_path: Path) -> None:
    """Errors of 2 and 2 points fit under 12 / 1.96 = 6.1 points, but three trainings have a wide t interval."""
    found = loaded(tmp_path, 0.9, 0.8).findings
    loss = wide(0.02, 0.02, mean=0.12).loss._replace(low=-0.01, high=0.25)
    judged_ = Verdict(Word.CANNOT_TELL, Value(mean=0.9), loss, Reason.TOO_WIDE)
    said = screen(found, found.conditions[0], judged_, HOSPITALS)
    assert said.settle == (
        "A few more trainings would settle it, if the loss stays where it is: 3 trainings hardly tell how they differ. "
        "A loss under 13.0 points could not have been seen."
    )


def test_labels_that_are_turned_round_outside_are_asked_for(tmp_path: Path) -> None:
    """10 % right outside: the balanced accuracy is surely below a half."""
    found = loaded(tmp_path, 0.9, 0.1)
    told = answer(found.findings)
    assert told.judged.reason is Reason.BELOW_CHANCE
    assert "worse than guessing at centre1 and" in told.lead
    assert "Are the labels coded the other way round there?" in told.lead
    assert "loses" not in told.lead
    said = judged(found)
    assert (said.word, said.tone) == ("Worse than guessing", "bad")
    lamp = next(light for light in lights([], told.judged.below, ()) if light.name == "Coding of labels")
    assert lamp.status == "problem" and "centre1" in lamp.detail


def test_a_slope_below_zero_alone_asks_for_the_labels(tmp_path: Path) -> None:
    """20 % right outside with a probability of 0.8: logit P(y) = -logit p. The study has accuracy alone."""
    found = loaded(tmp_path, 0.9, 0.2, metrics=["accuracy"]).findings
    condition = found.conditions[0]
    slope = found.slope(condition, "external", "centre1", condition.level_inference)
    assert list(found.metrics) == ["accuracy"]
    assert slope.mean == pytest.approx(-1) and slope.high < 0
    told = answer(found)
    assert (told.judged.reason, told.judged.below) == (Reason.BELOW_CHANCE, found.plan.partitions[0].external)
    assert "Are the labels coded the other way round there?" in told.lead


def test_with_more_than_two_classes_a_slope_tells_nothing_of_labels(tmp_path: Path) -> None:
    """Its slope is that of the most probable class, here with whether it is right."""

    class Three(fake_study.Fake):
        classes: tuple[str, ...] = ("a", "b", "c")

    found = loaded(tmp_path, 0.9, 0.2, metrics=["accuracy"], dataset=Three()).findings
    condition = found.conditions[0]
    for slope in found.numbers.of("slope"):
        put(found, Value(mean=-1.0, low=-2.0, high=-0.5), *slope)
    assert found.slope(condition, "external", "centre1", condition.level_inference).high < 0
    assert worse_than_guessing(found, condition, condition.level_inference) == ()


def test_a_site_of_one_class_counts_in_no_verdict(tmp_path: Path) -> None:
    """centre1 has one class, and a share right of 20 %: the loss is that of the other site alone."""

    def right(run: object, inference: str, site: str, role: str) -> float:
        return 0.2 if site == "centre1" else 0.8 if role == "internal" else 0.6

    def one(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(label=table["label"].where(table["site"] != "centre1", 1))

    found = results_of(tmp_path, right, change=one, **ONE)
    told = answer(found.findings)
    assert told.judged.loss.mean == pytest.approx(0.2)
    assert list(told.judged.sites) == [site for site in found.plan.partitions[0].external if site != "centre1"]


@pytest.mark.painted
def test_the_picture_shows_every_site_and_stands_alone(tmp_path: Path) -> None:
    found = loaded(tmp_path, 0.9, 0.7)
    first = page.first_screen(StudyReport(found))
    said = first.screen
    wide_, narrow = page._forests(first.report, first)
    for svg in (wide_, narrow):
        root = ElementTree.fromstring(svg)
        title = root[0].text or ""
        for site in (*found.plan.partitions[0].internal, *found.plan.partitions[0].external):
            assert site in title
        assert said.word in title and "Loss outside: 20.0" in title
        shown = "".join(root.itertext())
        assert f"{said.word}. Accuracy (%) at each hospital" in shown
        assert found.plan.name in shown and found.plan.view[:7] in shown
        assert "margin: largest loss accepted by default" in " ".join(shown.split()) and "guess" in shown
        assert "4.0 times the margin" in " ".join(shown.split())
        assert "adapted with the hospital's own unlabelled images (TsmoBN)" in " ".join(shown.split())
    assert wide_ == page._forests(first.report, first)[0], "the same bytes each time"
    first.screen = replace(said, word="Not shown to work at home")
    shown = "".join(ElementTree.fromstring(page._forests(first.report, first)[1]).itertext())
    assert "Not shown to work at home. Accuracy (%) at each hospital" not in shown, "one line would be cut"
    assert "Not shown to work at home. Accuracy (%) at" in shown and "each hospital" in shown


@pytest.mark.painted
def test_long_names_of_hospitals_leave_room_for_all_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded(tmp_path, 1.0, 0.8)
    rows = forest._rows

    def long_names(*args: Any) -> list[forest.Row]:
        return [replace(row, site=f"University Hospital {row.site}, North") for row in rows(*args)]

    monkeypatch.setattr(forest, "_rows", long_names)
    for width in forest.WIDTHS.values():
        report = StudyReport(found)
        picture = page._picture(report, page.first_screen(report), width)
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=picture.size, layout="constrained")
            FigureCanvasAgg(figure)
            picture.paint(figure)
            figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert box.x0 >= 0 and box.x1 <= width
        assert "University Hospi" in picture.svg("a")


def test_each_row_marks_its_own_commonest_class(tmp_path: Path) -> None:
    """At centre1 seven of eight images have class 1, so that always giving it reaches more there than at home."""

    def mostly_one(table: pd.DataFrame) -> pd.DataFrame:
        at = table["site"] == "centre1"
        return table.assign(label=table["label"].where(~at | (np.arange(len(table)) % 8 == 0), 1))

    found = results_of(tmp_path, lambda *_: 0.9, change=mostly_one, **ONE)
    told = answer(found.findings)
    assert told.condition
    rows = forest._rows(found.findings, found.controls, told.condition, "patients")
    expected = {}
    for row in rows:
        value = found.findings.value(told.condition, row.role, row.site, "source")
        expected[row.site] = {round(100 * value.chance, 6), round(100 * value.majority, 6)}
    assert max(expected["centre1"]) > max(expected["centre0"]) + 20
    figure = Figure()
    axes = figure.subplots()
    forest._levels(axes, rows, found.findings, {})
    marks: dict[int, set[float]] = {}
    for line in axes.get_lines():
        if line.get_linestyle() == ":":
            (x, _), (low, high) = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
            assert high - low < 1, "within its row"
            marks.setdefault(round((low + high) / 2), set()).add(round(float(x), 6))
    assert marks == {y: expected[row.site] for y, row in enumerate(rows)}


@pytest.mark.painted
def test_a_declared_margin_was_accepted_beforehand(tmp_path: Path) -> None:
    found = loaded(tmp_path, 1.0, 0.8, margin=0.1)
    report = StudyReport(found)
    for svg in page._forests(report, page.first_screen(report)):
        assert "margin: largest loss accepted beforehand" in "".join(ElementTree.fromstring(svg).itertext())


def test_a_narrower_interval_of_the_mean_is_explained(tmp_path: Path) -> None:
    found = loaded(tmp_path, 1.0, 0.8).findings
    condition = found.conditions[0]
    key, sites = condition.level_inference, found.plan.partitions[0].external
    place = ("level", "accuracy", condition.id, key, "external")
    for site, half in zip(sites, (0.1, 0.2), strict=True):
        put(found, Value(mean=0.8, low=0.8 - half, high=0.8 + half), *place, site)
    for half, words in ((0.09, "its interval is narrower than theirs"), (0.15, ""), (math.nan, "")):
        put(found, Value(mean=0.8, low=0.8 - half, high=0.8 + half), *place, "*")
        assert words in pooled(found, condition, HOSPITALS) and bool(words) == bool(pooled(found, condition, HOSPITALS))


def test_the_gain_has_its_interval_beside_the_level(tmp_path: Path) -> None:
    """70 to 90 % outside."""
    tile = answer(loaded(tmp_path, 1.0, 0.7).findings).tiles[-1]
    assert (tile.label, tile.value) == ("Outside, adapted (TsmoBN)", "90.0\xa0%")
    assert "; gain +20.0 points (" in tile.note


@pytest.mark.parametrize(
    ("synthetic", "words"), [(True, "1,200 invented images"), (False, "1,200 images given as real")]
)
def test_the_facts_say_whether_images_are_invented(synthetic: bool, words: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, 1.0, 0.7, synthetic=synthetic)
    assert f" · {words} · " in page.context(StudyReport(found))["about"]
    assert Discs().card().source == Gaussians().card().source == page.DRAWN


@pytest.mark.painted
@pytest.mark.parametrize(("width", "points"), [("85mm", 240.94), ("174mm", 493.23)])
def test_the_picture_is_a_file_for_a_paper(tmp_path: Path, width: str, points: float) -> None:
    """85 and 174 mm in points of 1/72 inch, as SVG and as PDF of one page."""
    found = loaded(tmp_path, 1.0, 0.8)
    summary.summarise(found)
    with contextlib.chdir(tmp_path):
        svg, pdf = page.write_answer(found.plan, found.paths, width)
    size = re.search(r'viewBox="0 0 ([\d.]+) ', svg.read_text(encoding="utf-8"))
    assert size is not None and float(size[1]) == pytest.approx(points, abs=0.01)
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", content)
    assert box is not None and float(box[1]) == pytest.approx(points, abs=0.01)


def put_of_control(controls: Controls, value: Value, quantity: str, role: str = "internal", key: str = "") -> None:
    """Set a number of the control beside the first condition; of a difference, under the inference `key`."""
    condition = controls.findings.conditions[0]
    place = "accuracy", condition.id if key else "", key, role, "*"
    put(controls.findings, value, f"{OF_CONTROL}{quantity}", *place, partition=condition.run.partition_id)


def test_a_control_that_falls_is_a_shortcut(tmp_path: Path) -> None:
    """100 % at home and 60 % outside, surely; and at home no worse than the network."""
    found = loaded(tmp_path, 0.9, 0.8)
    controls, condition = found.controls, found.findings.conditions[0]
    key = condition.level_inference
    for role, mean in (("internal", 1.0), ("external", 0.6)):
        put_of_control(controls, Value(mean=mean), "level", role)
    put_of_control(controls, Value(mean=0.4, low=0.3, high=0.5), "gap")
    put_of_control(controls, Value(mean=-0.1, low=-0.2, high=0.0), "difference", "internal", key)
    said = shortcut(controls, condition, key)
    assert "tell the classes apart at home (100.0\xa0%) and much less outside (60.0\xa0%)" in said
    assert said.endswith("At home the network is not shown to see more than colour and texture alone.")
    put_of_control(controls, Value(mean=0.4, low=-0.1, high=0.9), "gap")
    for sure_or_unknown in (Value(mean=0.1, low=0.05, high=0.2), Value(mean=-0.1)):
        put_of_control(controls, sure_or_unknown, "difference", "internal", key)
        assert shortcut(controls, condition, key) == ""


def test_the_network_of_another_client_is_no_adaptation(tmp_path: Path) -> None:
    own = {"algorithm": "fedbn", "inferences": ["source", {"name": "source", "client": ["centre0", "centre3"]}]}
    found = loaded(tmp_path, 0.9, 0.8, runs=[own])
    assert len(found.findings.conditions[0].inferences) == 3
    assert found.findings.conditions[0].compared_inference is None


def test_a_network_that_holds_up_below_the_control_is_not_shown_as_good(tmp_path: Path) -> None:
    found = loaded(tmp_path, 0.9, 0.9)
    controls, condition = found.controls, found.findings.conditions[0]
    key = condition.level_inference
    told = answer(found.findings)
    assert told.judged.word is Word.HOLDS
    for role in ("internal", "external"):
        put_of_control(controls, Value(mean=0.95), "level", role)
    # equal, perhaps better, and unknown
    for unsure in (Value(mean=0.0, low=0.0, high=0.0), Value(mean=-0.1, low=-0.2, high=0.01), Value(mean=-0.1)):
        for role in ("internal", "external"):
            put_of_control(controls, unsure, "difference", role, key)
        assert beaten(controls, condition, key) == ""
    put_of_control(controls, Value(mean=-0.05, low=-0.1, high=-0.01), "difference", "internal", key)
    at_home = beaten(controls, condition, key)
    assert "do better at home, by 1.0 to 10.0 points." in at_home
    put_of_control(controls, Value(mean=-0.05, low=-0.1, high=-0.01), "difference", "external", key)
    outside = beaten(controls, condition, key)
    assert outside == "Colour and texture alone, without a network, do better outside, by 1.0 to 10.0 points."
    lost = {-0.01: "surely loses nothing", 0.0: "surely loses nothing", 0.02: "loses at most 2.0 points"}
    for most, words in lost.items():
        judged = replace(told.judged, loss=Value(mean=-0.05, low=-0.1, high=most))
        said = screen(found.findings, condition, judged, HOSPITALS, beaten=outside)
        assert (said.word, said.tone) == ("A simple classifier is better", "plain")
        assert said.sentence == f"{outside} From home to outside the network {words}; the margin is 5.0 points."
        assert said.step.endswith("until the network is better, the classifier is the better choice here.")
    unlimited = loaded(tmp_path / "auc", 0.9, 0.9, headline="auc").findings
    said_without = screen(unlimited, unlimited.conditions[0], judged, HOSPITALS, beaten=outside)
    assert said_without.sentence == f"{outside} From home to outside the network loses at most 0.020."
    assert screen(found.findings, condition, judged, HOSPITALS, beaten=outside, late=True).step == (
        "`training: { rounds: 8 }`"
    )
    first = page.first_screen(StudyReport(found))
    assert first.screen.word == said.word
    assert first.in_words[1].startswith("A simple classifier without a network did better; from home to outside")
    assert "you may not conclude that a network is of use" in first.in_words[-1]


def test_intervals_end_where_the_metric_does(tmp_path: Path) -> None:
    effects = loaded(tmp_path, 1.0, 0.02, 0.99).table("effects")
    percent = effects[effects["metric"].isin(["accuracy", "balanced_accuracy", "auc"])]
    levels = percent[percent["quantity"] == "level"]
    assert levels[["low", "high"]].stack().dropna().between(0, 1).all()
    assert percent[["low", "high", "low_patients", "high_patients"]].stack().dropna().between(-1, 1).all()
    assert {"*", "centre1"} <= set(levels["site"])


@pytest.mark.parametrize(
    ("curve", "rises"),
    [
        (np.linspace(0.5, 0.9, 20), True),
        (1 - 0.5 ** np.arange(1, 21), False),
        (0.8 + 0.05 * np.array([(-1) ** k for k in range(20)]), False),
        (np.linspace(0.5, 0.9, 6), False),
    ],
    ids=["rising", "flat", "noise", "few rounds"],
)
def test_validation_that_still_rises(curve: np.ndarray, rises: bool) -> None:
    rounds = pd.DataFrame({"round": np.arange(len(curve)), "split": "val", "accuracy": curve})
    assert still_rises(rounds) is rises


@pytest.mark.parametrize(
    ("loss", "broken"),
    [
        ([0.8, *np.linspace(0.7, 0.4, 10), 1.0, 0.7], True),
        ([0.8, *np.linspace(0.7, 0.4, 10), 0.87, 0.7], False),
        ([0.8, 0.9, *np.linspace(0.7, 0.4, 10)], False),
        ([0.7, 0.69, 0.71, 0.7, 0.7, 0.69, 0.72, 0.7, 0.71, 0.7], False),
        ([0.7, 0.5, 2.0, 8.0], False),
    ],
    ids=["broken", "under a tenth above", "before its lowest", "never fell", "few rounds"],
)
def test_training_loss_that_rises_above_its_beginning(loss: list[float], broken: bool) -> None:
    assert breaks_down(np.array(loss)) is broken


def steps(found: StudyResults, reason: Reason, late: bool = False, **changes: Any) -> str:
    """What to do next where the answer is open for a reason; at a site that fails, that is centre1."""
    condition = found.findings.conditions[0]
    home = changes.pop("home", Value(mean=0.9, patients=30))
    loss = Value(mean=0.1, low=0.08, high=0.12)
    open_ = Verdict(Word.CANNOT_TELL, home, loss, reason, sites={"centre1": loss}, worst=("centre1",))
    return next_step(Told(found.findings, condition, open_), late)


def test_an_open_answer_names_the_setting_that_may_settle_it(tmp_path: Path) -> None:
    """The study has 30 patients a site, two of them inside, and trains for 4 rounds with 3 seeds."""
    found = loaded(tmp_path, 0.9, 0.8)
    assert steps(found, Reason.TOO_WIDE) == "`partition: { split: { folds: 5 } }`"
    many = Value(mean=0.9, patients=1000)
    no_folds = steps(found, Reason.TOO_WIDE, home=many)
    assert no_folds == "more patients; until then, neither rely on it nor reject it.", "folds test none outside"
    no_setting = steps(found, Reason.HOME_FAILS)
    assert no_setting.startswith("check labels, learning rate and rounds"), "it has converged, with equal classes"
    assert steps(found, Reason.HOME_FAILS, late=True) == "`training: { rounds: 8 }`"
    no_third = steps(found, Reason.NO_EXTERNAL_SITE)
    assert no_third == "test it in a hospital that took no part.", "of two hospitals none can be kept out"
    assert steps(found, Reason.HOME_UNTESTED) == "`partition: { split: { train: 0.6, val: 0.2, test: 0.2 } }`"
    one = loaded(tmp_path / "one", 0.9, 0.8, seeds=[0])
    assert steps(one, Reason.TOO_WIDE) == "`seeds: [0, 1, 2]`"


@pytest.mark.parametrize("reason", [*Reason])
def test_a_named_setting_is_one_of_a_study(reason: Reason, tmp_path: Path) -> None:
    """What the page advises can be read: the study with it is a study."""
    inside = {"internal": ["centre0", "centre2", "centre3"], "external": []}
    found = loaded(tmp_path, 0.9, 0.8, seeds=[0], partition=inside)
    step = steps(found, reason, late=True)
    assert step.startswith("`") == bool(TEXTS[reason.name].steps)
    changes = yaml.safe_load(step.strip("`")) if step.startswith("`") else {}
    if "partition" in changes:
        changes["partition"] = inside | changes["partition"]
    assert fake_study.study(**changes)


@pytest.mark.parametrize("row", [*TEXTS.values()], ids=[*TEXTS])
def test_every_verdict_ends_in_one_sentence_of_what_to_do(row: Any) -> None:
    """It follows "Next:", so that it begins small, and it is one."""
    assert row.then[0].islower() or row.then[0] == "{"
    assert row.then.endswith(".") and row.then.count(". ") == 0


def test_what_holds_up_is_to_be_tested_elsewhere(tmp_path: Path) -> None:
    """`fedshift apply` reads images: a network of vectors is not sent there."""
    said = judged(loaded(tmp_path / "images", 0.9, 0.9))
    assert said.word == "Holds up"
    elsewhere = "before it is used in another hospital, test it there"
    assert said.step == f"{elsewhere} on labelled images, with `fedshift apply`."
    vectors = loaded(tmp_path / "vectors", 0.9, 0.9, dataset=Vectors())
    assert judged(vectors).step == f"{elsewhere}."
    text = page.write(loaded(tmp_path / "page", 0.9, 0.9)).read_text(encoding="utf-8")
    assert "<b>Next:</b> before it is used" in text and "<code>fedshift apply</code>" in text


@pytest.mark.parametrize("adapted", [0.8, 0.6, 0.5], ids=["gains", "gains nothing", "loses"])
def test_after_a_loss_an_adaptation_is_named_only_where_it_surely_gains(tmp_path: Path, adapted: float) -> None:
    """60 % right outside, and with TsmoBN so many."""
    said = judged(loaded(tmp_path, 0.9, 0.6, adapted))
    assert said.word == "Loses"
    if adapted > 0.6:
        assert said.step == (
            "adapted with TsmoBN, it did 20.0 points better outside: see whether it does in other hospitals."
        )
    else:
        assert said.step == "train with such a hospital as well, and test in another one."


def test_faults_of_the_data_come_before_any_other_step(tmp_path: Path) -> None:
    """A patient of centre0 is at centre1, too."""

    def shared(table: pd.DataFrame) -> pd.DataFrame:
        first = (table["site"] == "centre1") & (table["patient"] == "centre1/0")
        return table.assign(patient=table["patient"].mask(first, "centre0/0"))

    for outside in (0.9, 0.6):
        said = page.first_screen(StudyReport(loaded(tmp_path / str(outside), 0.9, outside, change=shared))).screen
        assert said.word in ("Holds up", "Loses")
        assert said.step == "first correct the data: see the problems above."


def test_more_patients_are_asked_for_only_where_they_would_settle_it(tmp_path: Path) -> None:
    """Six patients a site at home are few; that hospitals differ is sure all the same, and what is open is not."""

    def differ(run: object, inference: str, site: str, role: str) -> float:
        return 0.8 if role == "internal" else 0.6 if site == "centre1" else 0.9

    said = page.first_screen(StudyReport(results_of(tmp_path / "differ", differ, **ONE))).screen
    assert said.word == "Depends on the hospital"
    assert said.step == "look at what differs between these hospitals, such as the device or who is tested there."

    def by_training(run: Any, inference: str, site: str, role: str) -> float:
        return 0.9 if role == "internal" else (0.9, 0.7, 0.9)[run.seed]

    said = page.first_screen(StudyReport(results_of(tmp_path / "open", by_training, **ONE))).screen
    assert said.word == "Cannot tell"
    assert said.step == "first test 10 patients of each class at every site."


def test_three_claims_are_shown_and_the_further_ones_are_counted_by_kind(tmp_path: Path) -> None:
    """Four hypotheses and a declared comparison: this one, and two of the four."""
    sides: dict[str, Any] = {"condition": {"bn": "local"}, "against": {"bn": "aggregated"}}
    claims = [{"claim": f"Claim {k}.", "margin": 0.01, **sides} for k in range(4)]
    both: dict[str, Any] = {"runs": [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}], "hypotheses": claims}
    report = StudyReport(loaded(tmp_path / "both", 0.9, 0.8, primary=sides, **both))
    first = page.first_screen(report)
    comparison, hypotheses = page._asked(report, first)
    assert [claim.answer for claim in comparison.claims] == ["primary"]
    assert [claim.claim for claim in hypotheses.claims] == ["Claim 0.", "Claim 1."]
    assert (comparison.further, hypotheses.further) == ("", "2 further hypotheses")
    text = page.write(report.results).read_text(encoding="utf-8")
    assert '<a href="#hypotheses">2 further hypotheses</a>' in text
    alone = StudyReport(loaded(tmp_path / "alone", 0.9, 0.8, **both))
    (hypotheses,) = page._asked(alone, page.first_screen(alone))
    assert (len(hypotheses.claims), hypotheses.further) == (3, "1 further hypothesis")


@pytest.mark.parametrize(
    ("home", "above", "words"),
    [
        # from a guess at 0.5 the middle to a perfect 1 is 0.75
        (0.65, 0.15, "its AUC is 0.650, nearer to the 0.500 of guessing than to a perfect score."),
        (0.74, 0.24, "its AUC is 0.740, nearer to the 0.500 of guessing than to a perfect score."),
        (0.76, 0.26, ""),
        (0.65, math.nan, ""),
    ],
)
def test_a_level_that_holds_up_near_a_guess_is_called_low(
    home: float, above: float, words: str, tmp_path: Path
) -> None:
    found = loaded(tmp_path, 0.9, 0.9, headline="auc")
    findings, controls, condition = found.findings, found.controls, found.findings.conditions[0]
    key, level_of = condition.level_inference, Value(mean=home, chance=0.5, majority=0.5)
    put(findings, level_of, "level", "auc", condition.id, key, "internal", "*")
    holds = Verdict(Word.HOLDS, level_of, Value(mean=0.0, low=-0.02, high=-0.01), above=Value(mean=above))
    low = screen(findings, condition, holds, HOSPITALS).low
    assert low == (words and f"The level is low in itself: at home {words}")
    loses = replace(holds, word=Word.LOSES, loss=Value(mean=0.1, low=0.08, high=0.12))
    assert screen(findings, condition, loses, HOSPITALS).low == ""
    own = {"partition": condition.run.partition_id}
    put(findings, Value(mean=0.62), f"{OF_CONTROL}level", "auc", "", "", "internal", "*", **own)
    for difference, end in ((0.01, " there."), (-0.01, " there, and the network is not shown to be better.")):
        known = Value(mean=0.03, low=difference, high=0.05)
        put(findings, known, f"{OF_CONTROL}difference", "auc", condition.id, key, "internal", "*", **own)
        beside = screen(findings, condition, holds, HOSPITALS, controls=controls).low
        control = " A control that sees colour and texture only, without a network, has 0.620"
        assert beside == (low and f"{low}{control}{end}")


def test_home_of_sites_left_out_in_turn_is_called_a_mean_of_models(tmp_path: Path) -> None:
    """Three models, each tested at the two hospitals that trained it."""
    partition = {"internal": ["centre0", "centre1", "centre3"], "leave_one_out": True}
    tile = answer(loaded(tmp_path, 1.0, 0.7, partition=partition).findings).tiles[0]
    assert tile.label.endswith(" at home")
    assert tile.note.endswith(
        "; the mean of 3 models, each at the hospitals that trained it, on the patients of all of them together"
    )
    assert "mean of" not in answer(loaded(tmp_path / "one", 1.0, 0.7).findings).tiles[0].note


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("", "", 6, 6), "ok", "6 of 6 planned trainings, by validation"),
        (
            ("", "", 4, 6),
            "unknown",
            "4 of 6 planned trainings have, by validation; the others are missing, or have no validation",
        ),
        (("", "1 of 6 is late.", 6, 6), "suspect", "1 of 6 is late."),
        (("", "1 of 4 is late.", 4, 6), "suspect", "1 of 4 is late. Judged: 4 of 6 planned trainings."),
        (("all of one class", "1 of 6 is late.", 6, 6), "problem", "all of one class"),
    ],
)
def test_the_light_on_trainings_says_over_how_many_it_speaks(
    arguments: tuple[str, str, int, int], status: str, words: str
) -> None:
    told = training_light(*arguments)
    assert (told.status, told.detail) == (status, words)


def test_trainings_that_are_missing_are_not_called_converged(tmp_path: Path) -> None:
    """Of six trainings those of local batch norm are missing."""
    runs = [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}]
    report = StudyReport(loaded(tmp_path, 0.9, 0.9, runs=runs, without={"bn": "local"}))
    told = next(light for light in page.context(report)["lights"].rows if light.name == "Converged")
    assert told.status != "ok" and "3 of 6 planned trainings" in told.detail
