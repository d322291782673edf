"""The inspection of samples: what it counts, what it warns of, and that no fault hides another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedshift.algorithms import Training
from fedshift.core.spelling import folded, groups, quoted
from fedshift.data.inspection import Inspection, by_class, cramers_v, dominant, inspect
from fedshift.data.partition import Partition

CLASSES = ("benign", "tumour")


def samples(sites: dict[str, int], **columns: Any) -> pd.DataFrame:
    """Samples of unknown patients, classes in turn."""
    rows = [
        {"sample": f"{site}/{i}", "site": site, "label": i % 2, "patient": None}
        for site, count in sites.items()
        for i in range(count)
    ]
    return pd.DataFrame(rows).assign(**columns)


def seen(table: pd.DataFrame, batch: int = 2, **changes: Any) -> Inspection:
    partition = Partition(**{"internal": ("A", "B"), "external": ("C",)} | changes)
    return inspect(table, CLASSES, [(partition, Training(batch_size=batch))])


def said(inspection: Inspection) -> list[str]:
    return [str(fault).partition(";")[0] for fault in inspection.faults]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("Zürich", other) for other in ("zürich", " Zürich", "Zürich\t", "ZÜRICH", "Zu\u0308rich", "Zü\u00adrich")),
        *(("12", other) for other in ("12.0", "012", "12.00", "\uff11\uff12", "12\u200b", "\ufeff12", "\xa012 ")),
        *(("12000", other) for other in ("12,000", "12\xa0000", "12\u202f000", "12'000", "1.2E+04", "12,000.0")),
        ("P7", "P007"),
        ("north-7", "north\u20137"),
        ("north-7", "NORTH\u2212007.0"),
        ("a b", "a\xa0\u2009b"),
        ("0", "000"),
        ("STRASSE", "straße"),
    ],
)
def test_spellings_of_one_name(name: str, other: str) -> None:
    assert folded(other) == folded(name)
    assert groups(["Ulm", name, "Ulm", other]) == [[name, other]]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("Zürich", other) for other in ("Zurich", "Z ürich", "Zürich1")),
        *(("12", other) for other in ("120", "1.2", "12.01", "1 2", "-12", "12a")),
        ("1.5", "1.05"),  # parts of a number with dots, such as an identifier of DICOM
        ("1.2.10", "1.2.1"),
        ("12e45", "12e+45"),  # a digest is no number
        ("1,00", "100"),
        ("1000", "100"),
    ],
)
def test_other_names(name: str, other: str) -> None:
    assert groups([name, other]) == []


def test_what_readers_would_overlook_shows_in_a_message() -> None:
    assert [quoted(name) for name in ("A ", "Zürich", "Zu\u0308rich")] == ["'A '", "'Zürich'", r"'Zu\u0308rich'"]


def test_sound_samples_have_neither_faults_nor_warnings() -> None:
    table = samples({"A": 20, "B": 20, "C": 24})
    inspection = seen(table.assign(patient=[f"{site}{i // 2}" for i, site in enumerate(table["site"])]))
    assert (inspection.faults, list(inspection.warnings())) == ([], [])
    assert [(s.name, s.roles, s.samples, s.classes) for s in inspection.sites] == [
        ("A", ("internal",), 20, (10, 10)),
        ("B", ("internal",), 20, (10, 10)),
        ("C", ("external",), 24, (12, 12)),
    ]
    assert (inspection.patients, [site.unknown for site in inspection.sites]) == (32, [0, 0, 0])


def test_one_fault_hides_no_other() -> None:
    """A is spelt in two ways and too small for a batch, B cannot be split, and C is not there."""
    inspection = seen(samples({"A": 10, "a": 10, "B": 1}), batch=15)
    assert said(inspection) == [
        "partition: site 'A' is also spelt 'a' in the data (images: 10)",
        "partition: unknown site 'C'",
        "partition: site 'B': has 1 samples, too few for train + val + test",
        "client 'A': has 14 training images, fewer than one batch of 15",  # 20 in all, 4 test, 2 validate
    ]


def test_a_fault_of_several_trainings_is_named_once() -> None:
    partition = Partition(internal=("A",), external=("C",))
    uses = [(partition, Training(batch_size=15, lr=lr)) for lr in (0.1, 0.2)]
    assert len(inspect(samples({"A": 10, "C": 1}), CLASSES, uses).faults) == 1


@pytest.mark.parametrize("by", ["sample", "class"])
def test_wrong_labels_and_lost_sites_bring_no_further_faults(by: str) -> None:
    table = samples({"A": 20, "B": 20, "C": 5}).astype({"label": "float64", "site": "object"})
    table.loc[table["site"] == "A", "label"] = None
    table.loc[table["site"] == "C", "site"] = [None, "C", "C", "C", "C"]
    inspection = seen(table, by=by)
    assert inspection.faults == []
    assert [site.classes for site in inspection.sites] == [(0, 0), (10, 10), (2, 2)]


def test_patients_at_several_sites_are_counted_and_those_across_apart() -> None:
    """p is at A and B, which both train; q at A and C; r at C and D, and D takes no part."""
    table = samples({"A": 20, "B": 20, "C": 20, "D": 20})
    table["patient"] = table["sample"]
    shared = {"A/0": "p", "B/0": "p", "A/1": "q", "C/1": "q", "C/2": "r", "D/2": "r"}
    table["patient"] = table["patient"].replace(shared)
    inspection = seen(table)
    assert (inspection.shared, inspection.across) == ({"p", "q", "r"}, {"q"})
    assert inspection.patients == 77
    assert list(inspection.warnings()) == [
        "site 'D' (images: 20) has no role in the study",
        "patients at several sites: 3, at internal and external ones: 1; "
        "they count as different people; leave out at one site whoever is the same",
        "every image has its own patient (60): is `patient` the name of an image? Then images of one patient may "
        "train and test, and intervals are too narrow. If each is of another person, say so: "
        "dataset.one_image_a_patient: true",
    ]


def test_unknown_patients_are_said_with_what_follows() -> None:
    (said_of_it,) = seen(samples({"A": 20, "B": 20, "C": 20})).warnings()
    assert said_of_it.startswith("patients are unknown: images of one patient may train and test")


def test_spellings_of_a_patient_count_once_and_stay_in_one_split() -> None:
    """Of 30 patients with two images each, one image of each is of a program that writes numbers as floats."""
    table = samples({"A": 20, "B": 20, "C": 20})
    inspection = seen(table.assign(patient=[f"{n // 2 + 10}{'.0' * (n % 2)}" for n in range(60)]))
    assert inspection.patients == 30
    assert [site.patients for site in inspection.sites] == [10, 10, 10]
    assert list(inspection.warnings()) == [
        "patients '10', '10.0'; '11', '11.0'; '12', '12.0' and 27 more differ only in spelling, and count as one "
        "person each; if they are several, name them apart"
    ]


@pytest.mark.parametrize("name", ["unknown", "N/A", "-", "?", " NaN", "0", "None"])
def test_names_that_stand_for_unknown_patients_are_asked_about(name: str) -> None:
    table = samples({"A": 40, "B": 40, "C": 40}).assign(patient=[f"p{n // 2}" for n in range(120)])
    table.loc[:2, "patient"] = name
    (question,) = (line for line in seen(table).warnings() if "stand for" in line)
    assert question.startswith(f"patient {name!r} has 3 of the 40 images at A: does the name stand for patients who")


def test_a_patient_0_beside_a_patient_1_is_counted_and_not_asked_about() -> None:
    table = samples({"A": 40, "B": 40, "C": 40}).assign(patient=[f"{n // 2}" for n in range(120)])
    assert not [line for line in seen(table).warnings() if "stand" in line]


@pytest.mark.parametrize(("images", "asked"), [(12, True), (4, False)])
def test_a_patient_with_most_images_of_a_site_is_asked_about(images: int, asked: bool) -> None:
    """At site A of 100 images, 12 are more than a tenth and 12 / (100 / 45) = 5.4 times the mean; 4 are neither."""
    table = samples({"A": 100, "B": 40, "C": 40}).assign(patient=[f"p{n // 2}" for n in range(180)])
    table.loc[: images - 1, "patient"] = "Y7"
    assert any("patient 'Y7' has " in line for line in seen(table).warnings()) == asked


def test_a_line_about_many_images_has_the_noun_of_the_study() -> None:
    named = samples({"A": 100}).assign(patient=["Y7"] * 12 + [f"p{n // 2}" for n in range(88)])
    assert list(dominant(named, "slide")) == ["slide 'Y7' has 12 of the 100 images at A"]


def test_few_patients_with_many_images_each_are_no_question() -> None:
    table = samples({"A": 40, "B": 40, "C": 40}).assign(patient=[f"p{n // 10}" for n in range(120)])
    assert not [line for line in seen(table).warnings() if "stand" in line]


def test_one_image_a_patient_that_the_study_states_is_no_question() -> None:
    table = samples({"A": 20, "B": 20, "C": 20})
    table["patient"] = table["sample"]
    uses = [(Partition(internal=("A", "B"), external=("C",)), Training(batch_size=2))]
    assert [*inspect(table, CLASSES, uses, one_each=True).warnings()] == []
    (question,) = inspect(table, CLASSES, uses).warnings()
    assert "dataset.one_image_a_patient: true" in question


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("split", ["train", "val", "test"], True),
        ("set", ["Training", "Testing", "Training"], True),
        ("fold", ["1", "2", "3"], True),
        ("ward", ["1", "2", "3"], False),
        ("split", ["train", "train", "train"], False),
    ],
)
def test_a_column_that_looks_like_a_split_and_is_not_used_is_told(column: str, values: list[str], told: bool) -> None:
    table = samples({"A": 20, "B": 20, "C": 20}).assign(patient=[f"p{n // 2}" for n in range(60)])
    table[column] = [values[n % 3] for n in range(60)]
    found = [line for line in seen(table).warnings() if "is not used" in line]
    assert bool(found) == told
    if told:
        assert found[0].startswith(f"column {column!r} holds {values[0]!r}, {values[1]!r}")
        assert found[0].endswith(f"split: {{ column: {column} }}")


def test_a_column_that_is_used_is_not_told() -> None:
    table = samples({"A": 20, "B": 20, "C": 20}).assign(patient=[f"p{n // 2}" for n in range(60)])
    table["split"] = [("train", "val", "test")[n % 3] for n in range(60)]
    assert list(seen(table, split={"column": "split"}).warnings()) == []


def test_what_external_sites_lack_and_have_few_of() -> None:
    table = samples({"A": 40, "B": 40, "C": 40}).assign(patient=[f"p{n // 2}" for n in range(120)])
    table.loc[table["site"] == "C", "label"] = 1
    table.loc[table.index[table["site"] == "B"][:34], "label"] = 1
    warnings = [*seen(table).warnings()]
    assert "site 'C' is external, and has no image of class" in " ".join(warnings)
    assert any(line.startswith("site 'B' has few images (3 of ") for line in warnings)


def test_classes_that_go_with_sites() -> None:
    """A 2 x 2 table of 36, 4, 4, 36: chi squared is 80 (36^2 - 4^2)^2 / 40^4 = 51.2, and V sqrt(51.2 / 80) = 0.8."""
    assert cramers_v([(36, 4), (4, 36)]) == pytest.approx(0.8)
    assert cramers_v([(10, 10), (20, 20)]) == pytest.approx(0)
    assert cramers_v([(10, 0), (20, 0)]) == 0
    table = samples({"A": 40, "B": 40, "C": 40}).assign(patient=[f"p{n // 2}" for n in range(120)])
    labels = [0] * 36 + [1] * 4 + [1] * 36 + [0] * 4 + [0, 1] * 20
    assert "classes go with sites (Cramér's V 0.65)" in " ".join(seen(table.assign(label=labels)).warnings())


def test_of_many_spellings_some_are_named_and_the_others_counted() -> None:
    table = samples({"A": 30, "B": 30, "C": 30})
    names = [f"{letter}{n}" for n in range(45) for letter in "pP"]
    (text,) = seen(table.assign(patient=names)).warnings()
    assert text.startswith("patients 'p0', 'P0'; 'p1', 'P1'; 'p2', 'P2' and 42 more differ only in spelling")


@pytest.mark.parametrize(
    ("endings", "words"),
    [
        ((".png", ".jpg"), "the format of files goes with the class: jpg: 0 % of benign, 100 % of tumour"),
        ((".png", ".png"), ""),
        ((".tif", ".TIFF"), ""),
        (("", ""), ""),
    ],
    ids=["each its own", "one", "two spellings", "none"],
)
def test_formats_that_go_with_the_class(endings: tuple[str, str], words: str) -> None:
    table = samples({"A": 40, "B": 40, "C": 20})
    table["sample"] = [f"{n}{endings[int(label)]}" for n, label in enumerate(table["label"])]
    found = [text for text in seen(table).warnings() if text.startswith("the format")]
    assert [text[: len(words)] for text in found] == ([words] if words else [])


def test_the_association_of_formats_with_classes_by_hand() -> None:
    """30 of 40 benign and 10 of 40 tumour images are png: V = 0.5. With 22 and 18 it is 0.1, and nothing is said."""
    label = pd.Series(np.repeat([0, 1], 40))

    def kind(first: int, second: int) -> pd.Series:
        return pd.Series(np.concatenate([np.repeat(["png", "jpg"], [n, 40 - n]) for n in (first, second)]))

    text = by_class(kind(30, 10), label, ("benign", "tumour"))
    assert text.startswith("jpg: 25 % of benign, 75 % of tumour (Cramér's V 0.50)")
    assert by_class(kind(22, 18), label, ("benign", "tumour")) == ""


def test_of_many_classes_those_that_differ_most_are_named() -> None:
    label = pd.Series(np.repeat(range(4), 25))
    kind = pd.Series(["png"] * 85 + ["jpg"] * 15)
    text = by_class(kind, label, ("zero", "one", "two", "three"))
    assert text.startswith("png: 40 % of three, 100 % of zero (Cramér's V ")
