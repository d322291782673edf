"""Traps in data: what checks, first screen and sentences say of each, on constructed studies."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
from outline import Outline
from PIL import Image
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.analysis.findings import Findings
from fedshift.analysis.numbers import Numbers
from fedshift.analysis.values import Table, Value
from fedshift.analysis.verdict import Reason, Verdict, Word
from fedshift.data.looks import Album
from fedshift.data.partition import Partition
from fedshift.data.prepared import read_samples
from fedshift.io.tables import write_table
from fedshift.jobs.prepare import seen
from fedshift.page import cohort, page, sections, threshold_and_probabilities
from fedshift.page.answer import answer, three_sentences
from fedshift.page.cohort import Check, Cohort
from fedshift.page.history import Trained, broken_down, trained, unfinished
from fedshift.page.html import Light
from fedshift.page.page import lights
from fedshift.page.phrases import HOSPITALS
from fedshift.page.screens import screen

SITES = ("north", "south", "east")
PARTITION = Partition(internal=("north", "south"), external=("east",))
CLASSES = ("benign", "tumour")
SIZE = 32
EACH = 40


def rows(**columns: Any) -> pd.DataFrame:
    """40 images of each of three sites, 4 of each patient, classes in turn by patient; the third site is external."""
    table = pd.DataFrame(
        {
            "sample": [f"{site}/{n:02}.png" for site in SITES for n in range(EACH)],
            "site": np.repeat(SITES, EACH),
            "patient": [f"{site}{n // 4}" for site in SITES for n in range(EACH)],
            "label": [n // 4 % 2 for _ in SITES for n in range(EACH)],
        }
    )
    table["role"] = np.where(table["site"] == "east", "external", "internal")
    place = table.groupby("site").cumcount()
    split = np.select([place < 20, place < 32], ["train", "val"], "test")
    table["split"] = np.where(table["role"] == "external", "test", split)
    return table.assign(**columns)


def pictures(number: int) -> np.ndarray:
    """Smooth random colours (number, 32, 32, 3)."""
    coarse = np.random.default_rng(0).integers(0, 256, (number, 9, 9, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(c).resize((SIZE, SIZE), Image.Resampling.BICUBIC)) for c in coarse])


def judged(
    table: pd.DataFrame, folder: Path, images: np.ndarray | None = None, classes: tuple[str, ...] = CLASSES
) -> Cohort:
    """Return the cohort of samples, with what preparation keeps of their images."""
    images = pictures(len(table)) if images is None else images
    pixels, flat, grey, looks = zip(*map(seen, images), strict=True)
    table = table.assign(pixels=pixels, flat=flat, grey=grey, look=looks, row=np.arange(len(table)))
    return cohort._cohort(
        PARTITION, table, table[table["split"] == "test"], classes, Album(images, table["site"].tolist())
    )


def check(made: Cohort, title: str) -> Check:
    return next(one for one in made.checks if one.what == title)


def light(made: Cohort, name: str) -> Light:
    return next(one for one in lights(made.checks, (), made.few) if one.name == name)


def cropped(image: np.ndarray) -> np.ndarray:
    part = Image.fromarray(image[1:, :-1])
    return np.asarray(part.resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def test_sound_data_have_no_doubts(tmp_path: Path) -> None:
    made = judged(rows(), tmp_path)
    assert {one.status for one in made.checks} == {"ok"}
    assert not made.doubted and made.patients
    assert light(made, "Leaks and copies").status == light(made, "Coding of labels").status == "ok"


def test_cropped_copies_outside_are_suspect_and_said_with_what_they_may_be(tmp_path: Path) -> None:
    """The first ten images of the external site are cropped copies of training images."""
    images = pictures(3 * EACH)
    images[2 * EACH : 2 * EACH + 10] = [cropped(image) for image in images[:10]]
    made = judged(rows(), tmp_path, images)
    found = check(made, cohort.NEAR)
    assert found.status == "suspect"
    number = int(found.detail.split()[0])
    assert 8 <= number <= 10
    assert f"({number} images at north and {number} images at east)" in found.detail
    assert "Copies, or neighbours that overlap: scores on copies are too good" in found.detail
    assert any(text.startswith(cohort.NEAR) for text in made.caveats)
    assert check(made, cohort.NEAR_WITHIN).status == "ok"
    assert light(made, "Leaks and copies").status == "suspect"


def test_copies_cannot_be_told_where_most_images_are_alike_at_two_sites(tmp_path: Path) -> None:
    """One sentence, which is neither ok nor suspect, and no list of pairs."""
    common, *own = pictures(3 * EACH + 1).astype(float)
    made = judged(rows(), tmp_path, np.stack([0.95 * common + 0.05 * one for one in own]).astype(np.uint8))
    found = [one for one in made.checks if one.what in (cohort.NEAR, cohort.NEAR_WITHIN)]
    assert [(one.what, one.status, one.nearest) for one in found] == [(cohort.NEAR, "unknown", ())]
    assert found[0].detail.startswith("most images look like one of another site")


def test_images_that_are_all_alike_may_only_be_of_one_kind(tmp_path: Path) -> None:
    """Twelve shades of one image, 6 at each of two sites: each is like the 6 at the other site."""
    images = pictures(3 * EACH)
    image = images[0] // 2
    for n in range(6):
        images[n] = image + 2 * n
        images[2 * EACH + n] = image + 2 * n + 1
    found = check(judged(rows(), tmp_path, images), cohort.NEAR)
    assert found.status == "suspect"
    assert found.detail.startswith("36 pairs (6 images at north and 6 images at east)")
    assert found.detail.endswith("; but each of them is like 6 others, so they may only be of one kind")


def test_what_differs_between_partitions_by_numbers_is_told_once() -> None:
    near = [Check(cohort.NEAR, "suspect", f"{n} pairs") for n in (3, 3, 5)]
    shared = [Check("Shared images", "PROBLEM", f"{n} images") for n in (1, 2, 2)]
    people = [
        Cohort(title, Table("", (), ()), [one, two], [f"{one.what}: {one.detail}"], True, 9, 9, [])
        for title, one, two in zip("abc", near, shared, strict=True)
    ]
    assert [concern.text for concern in sections._checks(people, pictures=False)] == [
        f"{cohort.NEAR}: 3 pairs (held out: a and b). Alike, with other numbers, where c is held out",
        "Shared images: 1 images (held out: a)",
        "Shared images: 2 images (held out: b and c)",
    ]


def test_neighbours_of_one_patient_that_overlap_are_no_problem(tmp_path: Path) -> None:
    """Split by image, and both images of one patient."""
    images = pictures(3 * EACH)
    images[EACH - 1] = cropped(images[0])
    table = rows()
    table.loc[EACH - 1, "patient"] = table["patient"][0]
    found = check(judged(table, tmp_path, images), cohort.NEAR)
    assert found.status == "suspect"
    assert "Copies, or neighbours that overlap, as in the 1 pair of one patient" in found.detail


@pytest.mark.parametrize(("patient", "status"), [("east9", "suspect"), ("east0", "ok")])
def test_copies_within_a_site_count_where_patients_differ(patient: str, status: str, tmp_path: Path) -> None:
    images = pictures(3 * EACH)
    images[-1] = cropped(images[2 * EACH])
    table = rows()
    assert table["patient"][2 * EACH] == "east0"
    table.loc[len(table) - 1, "patient"] = patient
    assert check(judged(table, tmp_path, images), cohort.NEAR_WITHIN).status == status


def test_black_images_are_problems_and_turn_the_light_of_labels(tmp_path: Path) -> None:
    images = pictures(3 * EACH)
    images[2 * EACH :] = 0
    made = judged(rows(), tmp_path, images)
    assert cohort.problems([made]) == [
        f"{cohort.TORN}: 40 images at east",
        "Images without contrast: 40 images at east",
    ]
    assert check(made, "Pixel-identical images within a site").status == "suspect"
    assert light(made, "Coding of labels").status == "problem"
    assert cohort.TORN in light(made, "Coding of labels").detail


@pytest.mark.parametrize(
    ("inverted", "status", "where"),
    [
        (0, "ok", ""),
        (1, "suspect", "1 at east"),
        (20, "PROBLEM", "20 at east"),
        (80, "PROBLEM", "40 at south and 40 at east"),
    ],
)
def test_a_site_whose_masks_are_inverted_is_a_problem(inverted: int, status: str, where: str) -> None:
    """Half of a site's masks or more, in which the structure has more than nine tenths."""
    table = rows()
    table["structure"] = 0.9
    table.loc[len(table) - inverted :, "structure"] = 0.91
    (found,) = cohort._masks(table)
    assert found.status == status
    assert where in found.detail


@pytest.mark.parametrize(
    ("patients", "words"),
    [
        ([f"image{n}" for n in range(3 * EACH)], "every image has its own patient"),
        (["unknown", "unknown", *(f"p{n // 4}" for n in range(2, 3 * EACH))], "stand for patients who are not known"),
    ],
    ids=["images", "placeholder"],
)
def test_patients_that_may_be_none_are_asked_for(patients: list[str], words: str, tmp_path: Path) -> None:
    made = judged(rows(patient=patients), tmp_path)
    assert made.doubted
    assert any(words in text for text in made.caveats)


def test_patients_that_are_spelt_in_several_ways_are_compared_as_one(tmp_path: Path) -> None:
    """Of each patient one image is that of 3.0, not of 3: as the file has them, patients 20 to 31 are split."""
    names = pd.Series([f"{n // 4 % 10}{'.0' * (n % 2)}" for n in range(3 * EACH)])
    table = rows(patient=names)
    file = tmp_path / "samples.parquet"
    write_table(file, table.drop(columns=["role", "split"]))
    read = read_samples(file).assign(role=table["role"], split=table["split"])
    assert read["patient"].nunique() == 10 and names.nunique() == 20
    made = judged(read, tmp_path)
    assert check(made, cohort.PATIENT_NAMES).detail == (
        "10 spelt in several ways, such as 0 and 0.0, are each taken for one person"
    )
    # each patient is at all three sites, and so inside and outside
    shared = check(made, "Patients shared by internal and external sites")
    assert (shared.status, shared.detail[:9]) == ("PROBLEM", "10 shared")
    assert light(made, "Leaks and copies").status == "problem"


def test_a_patient_with_an_outlying_part_of_a_site_turns_the_light_and_withholds_nothing(tmp_path: Path) -> None:
    """North has 40 images of 7 patients: 16 of one are 16 / (40 / 7) = 2.8 times the mean, and 18 are 3.15 times."""
    for number, status in ((16, "ok"), (18, "suspect")):
        names = [f"{site}{n // 4}" for site in SITES for n in range(EACH)]
        names[:number] = ["Y7"] * number
        made = judged(rows(patient=names), tmp_path)
        assert check(made, cohort.DOMINANT).status == light(made, "Leaks and copies").status == status
        assert not made.doubted
    names[EACH : EACH + number] = ["Z7"] * number
    assert check(judged(rows(patient=names), tmp_path), cohort.DOMINANT).detail == (
        f"patient 'Y7' has 18 of the {EACH} images at {SITES[0]}, and 1 more like it: is it one person? If the name "
        "stands for several, leave the cell empty"
    )


def test_one_image_a_patient_is_no_doubt_where_the_study_says_so(tmp_path: Path) -> None:
    table = rows(patient=[f"image{n}" for n in range(3 * EACH)])
    pixels, flat, grey, looks = zip(*map(seen, pictures(len(table))), strict=True)
    table = table.assign(pixels=pixels, flat=flat, grey=grey, look=looks, row=np.arange(len(table)))
    test = table[table["split"] == "test"]
    made = cohort._cohort(PARTITION, table, test, CLASSES, Album(pictures(len(table))), one_each=True)
    assert not made.doubted
    assert light(made, "Leaks and copies").status == "ok"


def test_unknown_patients_are_said_with_the_leak_that_may_follow(tmp_path: Path) -> None:
    made = judged(rows(patient=None), tmp_path)
    assert not made.patients
    assert any("one patient may train and test, so that scores at home look too good" in text for text in made.caveats)


def test_few_events_are_a_caveat(tmp_path: Path) -> None:
    table = rows()
    outside = table["site"] == "east"
    table.loc[outside, "label"] = (table[outside].groupby("site").cumcount() < 4).astype(int)
    made = judged(table, tmp_path)
    assert "only 1 patient of class tumour at east" in made.few
    assert any("only 1 patient of class tumour at east" in text and "rough there" in text for text in made.caveats)


def test_classes_that_sites_lack_are_listed(tmp_path: Path) -> None:
    classes = ("zero", "one", "two", "three")
    table = rows(label=np.arange(3 * EACH) % 4)
    table.loc[(table["site"] == "east") & (table["label"] == 2), "label"] = 3
    made = judged(table, tmp_path, classes=classes)
    assert made.few == ["no two at east"]
    assert light(made, "Classes and events") == Light("Classes and events", "suspect", "no two at east", "cohort")


def test_many_sites_with_few_events_are_counted() -> None:
    said = lights([], (), [f"1 patient of tumour at site{n}" for n in range(9)])[-1].detail
    assert said.endswith("1 patient of tumour at site3 and 5 more")


def test_classes_that_go_with_sites_are_said(tmp_path: Path) -> None:
    """38 of 40 benign, 2 of 40, and 20 of 40: chi square 64.8 of 120 images, V = sqrt(0.54) = 0.73."""
    table = rows()
    place = table.groupby("site").cumcount()
    table["label"] = (place < table["site"].map({"north": 2, "south": 38, "east": 20})).astype(int)
    text = next(text for text in judged(table, tmp_path).caveats if text.startswith("Classes go with sites"))
    assert "Cramér's V 0.73" in text


def test_grey_images_and_formats_that_go_with_the_class(tmp_path: Path) -> None:
    table = rows()
    images = pictures(3 * EACH)
    benign = (table["label"] == 0).to_numpy()
    images[benign] = images[benign][..., :1]
    table["sample"] = [
        name if b else name.replace("png", "jpg") for name, b in zip(table["sample"], benign, strict=True)
    ]
    made = judged(table, tmp_path, images)
    for title, start in (
        ("Grey images by class", "grey: 100 % of benign, 0 % of tumour"),
        ("File formats by class", "jpg: 0 % of benign, 100 % of tumour"),
    ):
        found = check(made, title)
        assert found.status == "suspect"
        assert found.detail.startswith(f"{start} (Cramér's V 1.00)")


def test_a_mixture_of_formats_is_no_trap(tmp_path: Path) -> None:
    table = rows()
    table["sample"] = [name.replace("png", ("png", "JPEG", "tiff")[n % 3]) for n, name in enumerate(table["sample"])]
    assert check(judged(table, tmp_path), "File formats by class").status == "ok"


def test_codes_of_an_earlier_version_are_left_alone() -> None:
    table = rows(
        look="0" * 16, row=range(3 * EACH), pixels=[hashlib.sha256(bytes([n])).hexdigest() for n in range(120)]
    )
    made = cohort._cohort(PARTITION, table, table[table["split"] == "test"], CLASSES, Album(pictures(3 * EACH)))
    assert not any(one.what == cohort.NEAR for one in made.checks)


# ---- verdicts and sentences


def test_an_external_site_of_one_class_cannot_be_compared(tmp_path: Path) -> None:
    """Both external sites have tumour only: accuracy there is a sensitivity."""

    def tumour(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(label=table["label"].where(table["site"].isin(fake_study.INTERNAL), 1))

    plan, paths = summarised(tmp_path, change=tumour, runs=[{"algorithm": "fedavg"}], figures=[])
    found = study_results.load(plan, paths)
    told = answer(found.findings)
    assert told.judged.reason is Reason.NOT_COMPARABLE
    said = screen(found.findings, told.condition, told.judged, HOSPITALS)
    assert said.word == "Cannot tell"
    assert said.sentence.startswith("At centre1 and ") and "of one class" in said.sentence
    shown = Outline(page.write(study_results.load(plan, paths)).read_text("utf-8")).text
    assert "No run of this study has been scored" not in shown
    assert "Next: first test 10 patients of each class at every site." in shown
    assert "At internal sites TsmoBN adds" in told.lead or "At internal sites" not in told.lead


@pytest.mark.parametrize(
    ("classes", "asked"),
    [(("a", "b"), ": are the labels coded the other way round?) at centre1"), (("a", "b", "c"), "below 0) at centre1")],
)
def test_a_slope_below_zero_is_the_wrong_way_round(classes: tuple[str, ...], asked: str, tmp_path: Path) -> None:
    """Of two classes alone it follows that one has been taken for the other."""
    dataset = fake_study.Fake(classes=classes)
    plan, paths = summarised(
        tmp_path, runs=[{"algorithm": "fedavg"}], figures=[], dataset=dataset, metrics=["accuracy"], headline="accuracy"
    )
    found = study_results.load(plan, paths)
    (condition,) = found.names.conditions.values()
    about = {"quantity": "slope", "condition_id": condition.id, "inference_id": "source", "role": "external"}
    ends = {"centre1": (-1.0, -2.0, -0.1), fake_study.EVIL: (0.5, 0.2, 0.8)}
    slopes = [about | {"site": at} | dict(zip(("mean", "low", "high"), ends[at], strict=True)) for at in ends]
    said = threshold_and_probabilities._sentence(Findings(found.names, Numbers(slopes)))
    assert "surely the wrong way round (the interval of the slope is" in said and asked in said
    assert f"too extreme (the interval of the slope is below 1) at {fake_study.EVIL}" in said


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (
            {"bn": "local"},
            "Runs or predictions are missing, so that hospitals inside and outside cannot be compared yet.",
        ),
        ({"bn": "aggregated"}, "No run of this study has been scored."),
    ],
)
def test_what_is_scored_in_part_is_not_called_unscored(without: dict[str, str], words: str, tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, figures=[], without=without)
    findings = study_results.load(plan, paths).findings
    judged = Verdict(Word.CANNOT_TELL, Value(), Value(), Reason.NOT_SCORED)
    said = screen(findings, findings.conditions[0], judged, HOSPITALS)
    assert said.word == "No result yet"
    assert said.sentence.startswith(words)
    assert said.step == "finish the runs: What is missing has the command."
    text = Outline(page.write(study_results.load(plan, paths)).read_text("utf-8")).text
    assert "What is missing" in text and "To resume the rest" in text


def test_a_result_that_is_half_there_is_not_blamed_on_few_patients(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, figures=[], without={"bn": "local"})
    findings = study_results.load(plan, paths).findings
    judged = Verdict(Word.CANNOT_TELL, Value(mean=0.9), Value(), Reason.NOT_SCORED)
    about = findings, findings.conditions[0], judged, HOSPITALS
    _, came_out, concluded = three_sentences(*about, faulty=False, synthetic=False)
    assert came_out.endswith("runs or predictions are missing, and nothing can be compared yet.")
    assert concluded == "So you may conclude nothing before the study is complete."


def test_too_few_rounds_under_a_falling_rate_are_said(tmp_path: Path) -> None:
    """All runs keep their last round of 4: nobody can see whether validation still rises."""
    training = {"rounds": 4, "schedule": "cosine"}
    plan, paths = summarised(tmp_path, training=training, runs=[{"algorithm": "fedavg"}], figures=[])
    found = study_results.load(plan, paths)
    runs = [
        Trained(name, "", run.seed, fake_study.manifest(run) | {"best_round": 4}, 0, 0.0, 0.0, 0.0)
        for name, run in plan.runs.items()
    ]
    (said,) = unfinished(found.findings, runs, found.rounds)
    assert said.startswith("3 of 3 runs kept their last round, after fewer than 10 of them")


def test_trainings_that_break_down_are_counted_and_named(tmp_path: Path) -> None:
    """The loss of one of two conditions ends at twice its beginning: its three runs turn the light."""
    runs = [{"algorithm": "fedavg"}, {"algorithm": "fedprox"}]
    plan, paths = summarised(tmp_path, training={"rounds": 12}, runs=runs, figures=[])
    found = study_results.load(plan, paths)
    worse = {run.id for run in plan.runs.values() if run.algorithm.name == "fedprox"}
    rounds = pd.DataFrame(
        {"run": name, "round": k, "split": "train", "loss": 1.0 - 0.05 * k if k < 12 or name not in worse else 2.0}
        for name in plan.runs
        for k in range(1, 13)
    ).assign(accuracy=0.5)
    assert not list(unfinished(found.findings, trained(found), rounds))
    assert next(broken_down(trained(found), rounds)) == (
        "3 of 6 runs broke down: after its lowest value, their training loss rose above that of the first round "
        "(FedProx, aggregated BN). Scores are those of the rounds that were kept."
    )


def test_images_without_a_class_have_no_share_and_no_doubts_about_classes(tmp_path: Path) -> None:
    """As those of a study of masks."""
    table = rows().drop(columns="label")
    made = judged(table, tmp_path)
    assert made.table.caption == "Images and patients of each site, and images of each split"
    assert not any("%" in cell for row in made.table.rows for cell in row)
    assert made.few == []
    assert not any("class" in text for text in [*made.caveats, *(check.what for check in made.checks)])
