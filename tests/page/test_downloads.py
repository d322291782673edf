"""The files that a page offers: with intervals, marked where data are synthetic, and none that is empty."""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import replace
from pathlib import Path

import fake_study
import intervals
import pytest
from outline import Outline
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.io.paths import Paths
from fedshift.page import downloads, page
from fedshift.study.plan import Plan

PATIENTS = 30
"""Patients of each site: enough for intervals."""


def made(root: Path, synthetic: bool) -> tuple[Plan, Paths]:
    plan, paths = summarised(root, synthetic=synthetic, figures=["sites"])
    study_results.draw(study_results.load(plan, paths), "sites")
    return plan, paths


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake_study, "PATIENTS", PATIENTS)
        return made(tmp_path_factory.mktemp("synthetic"), True)


def offered(study: tuple[Plan, Paths]) -> dict[str, str]:
    """The content of every file that the page of a study holds, by name."""
    tags = Outline(page.write(study_results.load(*study)).read_text(encoding="utf-8")).tags
    links = [a for tag, a in tags if tag == "a" and a.get("download") and "svg" not in str(a["download"])]
    return {str(a["download"]): base64.b64decode(str(a["href"]).partition(",")[2]).decode() for a in links}


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_synthetic_data_say_so_in_names_and_contents(synthetic: tuple[Plan, Paths]) -> None:
    files = offered(synthetic)
    assert {name.rpartition(".")[2] for name in files} == {"csv", "md", "tex"}
    for name, text in files.items():
        assert name.startswith("synthetic-fake-")
        if name.endswith(".csv"):
            assert {row["synthetic"] for row in rows(text)} == {"yes"}
        else:
            assert "Synthetic: not a result." in text
    assert r"\caption{Synthetic: not a result." in files["synthetic-fake-overview.tex"]


def test_figures_say_so_in_their_names(synthetic: tuple[Plan, Paths]) -> None:
    tags = Outline(page.write(study_results.load(*synthetic)).read_text(encoding="utf-8")).tags
    assert "synthetic-fake-sites.svg" in [a.get("download") for _, a in tags]


def test_a_marked_table_has_the_values_of_its_file(synthetic: tuple[Plan, Paths]) -> None:
    plan, paths = synthetic
    text = offered(synthetic)["synthetic-fake-effects.csv"]
    with paths.study_files(plan.name).result("effects").open(newline="", encoding="utf-8") as file:
        assert [{**row, "synthetic": "yes"} for row in csv.DictReader(file)] == rows(text)


def test_real_data_are_not_marked(tmp_path: Path) -> None:
    files = offered(made(tmp_path, False))
    assert "fake-scores.csv" in files
    assert not [name for name, text in files.items() if "synthetic" in (name + text).lower()]


def test_empty_tables_are_not_offered(synthetic: tuple[Plan, Paths]) -> None:
    """The study names no paper: its tables of published values and of trends have a header alone."""
    plan, paths = synthetic
    assert len(paths.study_files(plan.name).result("trends").read_text().splitlines()) == 1
    titles = [title for title, *_ in downloads.downloads(study_results.load(plan, paths))]
    empty = {"Beside the published values", "Trends", "Subgroups"}
    assert not empty & set(titles)
    assert {"Overview table", "Table of sites", "Summary", "Effects", "All scores"} <= set(titles)


def test_a_large_file_is_named(synthetic: tuple[Plan, Paths], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "EMBED", 10)
    offers = {title: (links, path) for title, links, path in downloads.downloads(study_results.load(*synthetic))}
    assert offers["All scores"] == ([], "results/studies/fake/scores.csv")


def test_intervals_are_in_every_format(synthetic: tuple[Plan, Paths]) -> None:
    """All patients of a role are alike: 90 % inside, 60 % outside, 80 % there with TsmoBN."""
    inside, outside, adapted = (
        intervals.alike(patients, 10, share) for patients, share in ((6, 0.9), (PATIENTS, 0.6), (PATIENTS, 0.8))
    )
    percent = intervals.percent
    files = offered(synthetic)
    first, second, *_ = rows(files["synthetic-fake-overview.csv"])
    assert first["95% interval (Internal mean)"] == percent(*inside.level())
    assert (first["95% interval (External mean)"], second["95% interval (External mean)"]) == (
        percent(*outside.level()),
        percent(*adapted.level()),
    )
    assert first["95% interval (Gap)"] == percent(*inside.minus(outside))
    sites = {row["Site"]: row for row in rows(files["synthetic-fake-sites.csv"])}
    assert sites["centre1"]["95% interval (Gain, TsmoBN)"] == percent(
        *replace(adapted, sites=1).gain_over(replace(outside, sites=1))
    )
    assert sites["centre0"]["95% interval (Source)"] == percent(*replace(inside, sites=1).level())
    for kind in ("md", "tex"):
        for name, found in (("overview", outside), ("sites", replace(outside, sites=1))):
            assert percent(*found.level()) in files[f"synthetic-fake-{name}.{kind}"]


def test_too_few_patients_leave_a_dash(tmp_path: Path) -> None:
    """Six patients a site, of whom one or two at an internal site test: no interval there."""
    first = rows(offered(made(tmp_path, False))["fake-overview.csv"])[0]
    assert (first["Internal mean"], first["95% interval (Internal mean)"]) == ("90.0 ± 0.0", "–")
