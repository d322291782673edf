"""What a page calls its sites and patients: scanners of a hospital that trained, lesions, domains; words alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fake_study
import pytest
import yaml
from outline import Outline
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.cli.data import unknown_sites
from fedshift.core import registry
from fedshift.core.errors import UserErrors
from fedshift.core.spelling import counted, plural
from fedshift.data.partition import Partition
from fedshift.page import behind_means, page
from fedshift.page.phrases import Nouns
from fedshift.page.study_report import StudyReport
from fedshift.study import declaration


def of(hospital: str, kind: str = "scanner") -> dict[str, str]:
    return {"kind": kind, "of": hospital}


SCANNER = of("utrecht")
SITES = {"xr": SCANNER, "cs2": SCANNER, "s360": SCANNER, "tcga": {"kind": "collection"}}
PARTITION = {"internal": ["xr", "cs2", "north"], "external": ["s360", "south", "tcga"]}
ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "inferences": ["source"], "figures": []}
UNIT = ["lesion", "image"]


class Photographs(fake_study.Fake):
    """Images of no hospital."""

    site_kind = "domain"


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_study, "PATIENTS", 30)


def reported(root: Path, **changes: Any) -> StudyReport:
    plan, paths = summarised(root, fake_study.helps, **ONE | changes)
    return StudyReport(study_results.load(plan, paths))


def another(report: StudyReport) -> list[str]:
    """The sentences on another hospital."""
    section = behind_means.new_hospital_section(report.findings, report.nouns)
    assert section is not None and section.title == section.short == f"Another {report.nouns.other}"
    return section.lines


def text_of(root: Path, **changes: Any) -> str:
    plan, paths = summarised(root, fake_study.helps, **ONE | changes)
    return Outline(page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")).text


def nouns_of(**changes: Any) -> Nouns:
    return Nouns.of(fake_study.plan(Path(), **changes), known=True)


def test_a_scanner_of_a_hospital_that_trained_is_no_hospital_outside(tmp_path: Path) -> None:
    report = reported(tmp_path, partition=PARTITION, sites=SITES, unit=UNIT)
    first = page.first_screen(report)
    trained = "s360 is a scanner of utrecht, which trained with other scanners"
    outside = "hospital, {} collection and {} scanner outside"
    assert first.screen.whom.removeprefix("FedAvg, aggregated BN. ") == (
        f"1 {outside.format(1, 1)}: s360, south and tcga; {trained}. Other hospitals may differ"
    )
    assert first.in_words[0] == (
        "One hospital and two scanners of utrecht trained a model together; it was tested on 90 lesions or images of "
        f"one {outside.format('one', 'one')} (s360, south and tcga); {trained}."
    )
    assert "1 hospital and 1 collection alone can say little about other hospitals." in report.told.lead
    assert "· 180 lesions or images · 2 hospitals, 1 collection and 3 scanners of utrecht ·" in page._about(report)
    assert another(report) == [
        "One external hospital was tested (60.0 at south). It says nothing about any other hospital.",
        f"Not counted here: tcga (collection); {trained}.",
    ]


@pytest.mark.painted
def test_the_page_counts_lesions_and_calls_nobody_a_patient(tmp_path: Path) -> None:
    text = text_of(tmp_path, partition=PARTITION, sites=SITES, unit=UNIT)
    assert "took no part" not in text.replace(fake_study.study().question, "")
    assert "Accuracy (%) at each site" in text
    assert "95% intervals over lesions or images and trainings" in text
    assert "Lesions or images shared by internal and external sites: none" in text
    assert "Table: 1,800 images, 180 lesions or images." in text
    assert "Where this protocol says patients, this study has lesions or images." in text
    assert "Each lesion or image counts as independent, and not each patient" in text
    kept = (
        "Where this protocol says patients",
        "not each patient: where one patient has",
        "about its use for patients",
        "Patient and public involvement",
        "a decision about a patient on it",
        "test 20% by patient",
    )
    before, _, _ = text.partition("Where this protocol says patients")
    for words in kept:
        before = before.replace(words, "")
    names = r"names? of (a )?patients?|unknown patients|`?patient`? (is )?the name"
    assert not re.findall(r".{60}\bpatients?\b.{20}", re.sub(names, "", before)), "of lesions"


@pytest.mark.painted
def test_domains_are_no_hospitals(tmp_path: Path) -> None:
    def unknown(table: Any) -> Any:
        return table.assign(patient=None)

    report = reported(tmp_path, dataset=Photographs(), change=unknown)
    first = page.first_screen(report)
    assert ". 2 domains outside: centre1 and " in first.screen.whom
    assert first.screen.whom.endswith(". Other domains may differ")
    assert first.in_words[0].startswith("Two domains trained a model together; it was tested on 600 images of two ")
    assert "4 domains" in page._about(report) and "patient" not in page._about(report)
    said = [*first.in_words, first.screen.sentence, report.told.lead, *another(report)]
    said += [text for pair in first.how_to_read for text in pair] + page._forests(report, first)
    assert not [text for text in said if re.search("hospital|patient", text.replace(" in a hospital that", ""))]


def test_sites_of_one_kind_have_its_name() -> None:
    two = {site: {"kind": "scanner"} for site in (*fake_study.INTERNAL, *fake_study.EXTERNAL)}
    scanners = nouns_of(sites=two)
    assert (scanners.place, scanners.other) == ("scanner", "scanner")
    some = nouns_of(sites={"centre0": SCANNER, "centre1": SCANNER})
    assert (some.place, some.other) == ("site", "hospital")
    assert some.counted(["centre0", "centre1", "centre3"]) == "1 hospital and 2 scanners of utrecht"
    assert some.counted([]) == "0 sites"
    assert some.each(["centre3"]) == "hospital" and some.each(["centre3", "centre0"]) == "site"


@pytest.mark.parametrize(
    ("sites", "shared", "apart"),
    [
        ({}, "", ["c", "d"]),
        ({"c": of("elsewhere")}, "", ["c", "d"]),
        ({"c": of("a")}, "c is a scanner of a, which trained", ["d"]),
        ({"a": of("u"), "c": of("u")}, "c is a scanner of u, which trained with another scanner", ["d"]),
        (dict.fromkeys("abcd", of("u")), "c and d are scanners of u, which trained with other scanners", []),
        ({"a": of("u"), "c": of("u", "department")}, "c is a department of u, which trained", ["d"]),
        (dict.fromkeys("ab", of("c")), "c trained with 2 scanners", ["d"]),
        ({"c": of("a"), "d": of("b")}, "c is a scanner of a, which trained; d is a scanner of b, which trained", []),
    ],
    ids=["hospitals", "elsewhere", "of a site", "of a name", "two", "department", "the hospital itself", "of two"],
)
def test_the_hospital_of_an_external_site_may_have_trained(sites: Any, shared: str, apart: list[str]) -> None:
    partition = {"internal": ["a", "b"], "external": ["c", "d"]}
    outside = nouns_of(partition=partition, sites=sites).outside([Partition(**partition)])
    assert (outside.sites, outside.shared, outside.apart) == (["c", "d"], shared, apart)


def test_of_sites_left_out_in_turn_the_others_train() -> None:
    partition = {"internal": ["a", "b", "c"], "leave_one_out": True}
    nouns = nouns_of(partition=partition, sites={"a": SCANNER, "b": SCANNER})
    outside = nouns.outside(Partition(**partition).each())
    assert outside.apart == ["c"]
    assert outside.shared == "a and b are scanners of utrecht, which trained with another scanner"


def test_clients_are_those_that_train_and_no_test_set_is_one() -> None:
    dealt = nouns_of(
        partition={"internal": ["one", "two"], "deal": {"sites": ["train"]}, "external": ["test"]},
    )
    assert dealt.counted(["one", "two", "test"]) == "1 hospital and 2 clients"
    mnist = {"internal": ["client1", "client2"], "external": ["test"]}
    assert nouns_of(dataset={"name": "mnist"}, partition=mnist).counted(["client1", "test"]) == "1 client and 1 site"


class Signals(fake_study.Fake):
    """Vectors made of windows of a signal."""

    name = "signals"
    sample_noun = "window"
    shape = (192,)


@pytest.mark.painted
@pytest.mark.parametrize("outside", [0.9, 0.6], ids=["holds up", "loses"])
def test_windows_are_no_images(tmp_path: Path, outside: float) -> None:
    """What is left is a subject of a checklist, in its own words."""

    def right(run: object, inference: str, site: str, role: str) -> float:
        return 0.9 if role == "internal" or inference == "tsmobn" else outside

    changes: dict[str, Any] = {"dataset": Signals(), "inferences": ["source", "tsmobn"], "synthetic": False}
    plan, paths = summarised(tmp_path, right, **ONE | changes)
    html = page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")
    # the specification has the settings of all datasets, by their names
    text = Outline(re.sub(r'<section id="provenance".*?</section>', "", html, flags=re.DOTALL)).text
    assert "1,200 windows given as real" in text
    assert "Table: 1,200 windows, 120 patients." in text
    assert "Pixel-identical windows shared by training and test" in text
    assert "own unlabelled windows (TsmoBN)" in text
    named = re.findall(r".{60}\b[Ii]mages?\b.{20}", text)
    assert [one for one in named if "Image acquisition" not in one] == []
    assert "Windows that were counted" in text and "None for a window" in text


def test_images_without_patients_are_resampled_by_their_own_noun() -> None:
    assert fake_study.study(dataset=Signals()).resampled(known=False) == "window"
    assert fake_study.study().resampled(known=False) == "image"


@pytest.mark.parametrize(("dataset", "noun"), [("abide", "window"), ("gaussians", "vector"), ("camelyon17", "image")])
def test_a_dataset_knows_what_its_samples_are(dataset: str, noun: str) -> None:
    assert registry.get("dataset", dataset).sample_noun == noun  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dataset", "kind"),
    [
        *((name, "domain") for name in ("office_caltech10", "domainnet10", "digits_dg", "digits_five", "pacs")),
        *((name, "domain") for name in ("cifar10c", "morpho_mnist")),
        *((name, "client") for name in ("cifar10", "cifar100", "mnist", "gaussians")),
        ("medmnist", "site"),
        *((name, "hospital") for name in ("camelyon17", "abide", "own_images", "prostate_sites")),
    ],
)
def test_a_dataset_knows_what_its_sites_are(dataset: str, kind: str) -> None:
    assert registry.get("dataset", dataset).site_kind == kind  # type: ignore[attr-defined]


def test_words_change_no_run() -> None:
    plain, named = (fake_study.plan(Path(), **words) for words in ({}, {"unit": "eye", "sites": {"centre0": SCANNER}}))
    assert list(plain.runs) == list(named.runs) and list(plain.data) == list(named.data)
    assert [run.spec for run in plain.runs.values()] == [run.spec for run in named.runs.values()]
    assert plain.view != named.view, "the page is written again"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ({"unit": "lesions"}, "unit: 'lesions' is a plural; write the singular, such as lesion"),
        ({"unit": "two words"}, "unit: 'two words' is no plain noun; write one word in small letters, such as lesion"),
        ({"unit": ["slide", "Eye"]}, "unit.1: 'Eye' is no plain noun; write one word in small letters, such as lesion"),
        ({"sites": {"a": {"kind": "scaner"}}}, "sites.a.kind: unknown value 'scaner'; did you mean 'scanner'?"),
        (
            {"sites": {"a": {"kind": "domain", "of": "b"}}},
            "sites.a.of: is for a department or a scanner, and the site is a domain; leave it out",
        ),
    ],
)
def test_wrong_words_are_one_line(words: dict[str, Any], fault: str, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "config" / "studies" / "demo.yaml"
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(shipped.read_text(encoding="utf-8")) | words), encoding="utf-8")
    with pytest.raises(UserErrors) as caught:
        declaration.read(file, "mini")
    assert str(caught.value).removeprefix(f"{file}.") == fault


def test_check_names_words_in_vain() -> None:
    def lines(sites: dict[str, Any]) -> list[str]:
        return list(unknown_sites(fake_study.plan(Path(), sites=sites)))

    assert lines({"centre0": SCANNER, "centre1": SCANNER}) == lines({"centre1": {"kind": "scanner", "of": "centre0"}})
    assert lines({"centre0": SCANNER, "centre1": SCANNER}) == []
    (line,) = lines({"center0": {"kind": "collection"}})
    assert line == (
        "  warning: sites: the study has no site 'center0', so no page shows its kind; did you mean 'centre0'?"
    )
    (line,) = lines({"centre0": {"kind": "scanner", "of": "centre33"}})
    assert line == (
        "  warning: sites.centre0.of: no other site belongs to 'centre33' or has this name; did you mean 'centre3'?"
    )


@pytest.mark.parametrize(
    ("one", "many_"),
    [
        ("lesion", "lesions"),
        ("biopsy", "biopsies"),
        ("eye", "eyes"),
        ("mass", "masses"),
        ("branch", "branches"),
        ("metastasis", "metastases"),
        ("tooth", "teeth"),
        ("slide or biopsy", "slides or biopsies"),
        ("slide, image or eye", "slides, images or eyes"),
        ("further condition", "further conditions"),
    ],
)
def test_plurals(one: str, many_: str) -> None:
    assert plural(one) == many_
    assert counted(1, one) == f"1 {one}" and counted(2, one) == f"2 {many_}"
