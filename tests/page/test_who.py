"""Who was in a study: the flow of images, patients of each class in every split, and further columns, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fake_study
import pandas as pd
import pytest
from fake_study import EVIL
from outline import Outline
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.io.text import read_json, write_json
from fedshift.page import page, who
from fedshift.page.cohort import cohorts
from fedshift.page.who import Who

ONE: dict[str, Any] = {"runs": [{"algorithm": "fedavg"}], "seeds": [0], "inferences": ["source"], "figures": []}
CLASSES = ("healthy", "tumour")


def made(root: Path, card: dict[str, Any] | None = None, **changes: Any) -> tuple[list[Who], str]:
    plan, paths = summarised(root, **ONE | {"dataset": fake_study.Fake(classes=CLASSES)} | changes)
    if card:
        (data,) = plan.data
        file = paths.data_files(data).card
        write_json(file, read_json(file) | card)
    loaded = study_results.load(plan, paths)
    return who.sections(loaded, cohorts(loaded)), page.write(study_results.load(plan, paths)).read_text(
        encoding="utf-8"
    )


def test_images_of_masks_have_no_class() -> None:
    rows = pd.DataFrame({"sample": ["1", "2", "3"], "patient": ["a", "a", "b"], "label": [0, 1, 1]})
    assert who._events(rows, "patient", ()) == "2 patients"
    assert who._events(rows, "patient", CLASSES) == "2 patients: 1 healthy, 2 tumour"
    assert who._events(rows, "", ()) == ""


def words(picture: str) -> str:
    """What the diagram says to readers who cannot see it."""
    return ElementTree.fromstring(picture)[0].text or ""


def test_images_are_counted_from_the_table_to_the_splits(tmp_path: Path) -> None:
    """Four sites of 6 patients with 10 images: 70, 10 and 20 % of the patients of a site, rounded: 4, 1 and 1."""
    split = {"train": 0.7, "val": 0.1, "test": 0.2}
    partition = {"internal": fake_study.INTERNAL, "external": fake_study.EXTERNAL, "split": split}
    (first,), html = made(tmp_path, partition=partition)
    said = words(first.picture)
    assert said.startswith("Flow of images. Table: 240 images, 24 patients. Left out: none.")
    assert "At home: 120 images, 12 patients (centre0 train 40, val 10, test 10; centre3 train 40" in said
    assert f"Outside: 120 images, 12 patients (centre1 test 60; {EVIL} test 60)." in said
    assert EVIL not in html and "<svg" in first.picture
    shown = "".join(ElementTree.fromstring(first.picture).itertext())
    assert "40 / 10 / 10" in shown and "240 images, 24 patients" in shown


def test_what_is_left_out_has_the_reason_that_is_recorded(tmp_path: Path) -> None:
    """centre0 has 60 images and centre3 half of them: truncation leaves out 30. centre9 takes no part with its 5.

    centre0 and centre1 have six patients, and half a centre3 has three.
    """

    def change(table: pd.DataFrame) -> pd.DataFrame:
        short = table[~((table["site"] == "centre3") & (table.groupby("site").cumcount() >= 30))]
        more = table[table["site"] == "centre0"].head(5)
        return pd.concat([short, more.assign(sample="x" + more["sample"], site="centre9")])

    partition = {"internal": fake_study.INTERNAL, "external": ["centre1"], "truncate": True, "by": "sample"}
    (first,), _ = made(tmp_path, {"unreadable": 3}, change=change, partition=partition)
    assert words(first.picture).startswith(
        "Flow of images. Table: 158 images, 15 patients. Left out: 3 could not be read, 5 of sites that take no part, "
        "30 left out by the cut to the smallest site."
    )


def test_patients_of_each_class_stand_below_the_images_of_a_split(tmp_path: Path) -> None:
    """Patients 0 and 1 of centre1 are healthy throughout; the others have both classes."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        healthy = table["patient"].isin(["centre1/0", "centre1/1"])
        return table.assign(label=table["label"].where(~healthy, 0))

    (first,), html = made(tmp_path, change=change)
    rows = {row[0].text: row for row in first.table.rows}
    assert rows["centre1"][-1].text == "60 (33.3 %)"
    assert rows["centre1"][-1].below == "6 patients: 6 healthy, 4 tumour"
    assert rows["centre1"][-2].below == ""
    assert first.further is None
    assert "6 patients: 6 healthy, 4 tumour" in Outline(html).text


def test_without_patients_images_are_counted(tmp_path: Path) -> None:
    (first,), _ = made(tmp_path, change=lambda table: table.assign(patient=None))
    assert words(first.picture).startswith("Flow of images. Table: 240 images. Left out: none.")
    assert {row[0].text: row[-1].below for row in first.table.rows}["centre1"] == "30 healthy, 30 tumour"


def test_further_columns_are_summed_up_by_site(tmp_path: Path) -> None:
    """Ages 40 to 45 of six patients have the median 42.5; 20 of 60 images have no scanner."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        number = table["patient"].str.rpartition("/")[2].astype(int)
        scanner = number.map({0: "A", 1: "A", 2: "B", 3: "A"})
        return table.assign(age=40 + number, scanner=scanner)

    (first,), html = made(tmp_path, change=change)
    assert first.further is not None
    assert first.further.header == ("Site", "Role", "age", "scanner")
    shown = {row[0].text: [cell.text for cell in row[2:]] for row in first.further.rows}
    assert shown["centre1"] == ["median 42.5 (40 to 45)", "A 30, B 10; not stated 20"]
    assert "median 42.5 (40 to 45)" in Outline(html).text


@pytest.mark.parametrize("held_out", [2])
def test_every_partition_has_its_flow(tmp_path: Path, held_out: int) -> None:
    parts = [{"internal": fake_study.INTERNAL, "external": [site]} for site in ("centre1", "centre2")][:held_out]
    found, html = made(tmp_path, partition=parts)
    assert [one.title for one in found] == ["centre1", "centre2"]
    assert html.count('id="flow-0-title"') == html.count('id="flow-1-title"') == 1
