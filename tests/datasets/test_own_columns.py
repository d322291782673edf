"""A table whose columns and labels have other names: the study says what they mean, and the file stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tutorial import ROOT, steps

from fedshift import study
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.datasets import Dataset

TABLE = """\
Datei;Klinik;PatID;Befund;Label;Scanner
a.png;Nord;7;gutartig;x;A
b.png;Nord;8;bösartig;x;B
c.png;Süd;9;1,0;x;A
d.png;Süd;9;unklar;x;A
lost.png;Süd;9;;x;A
"""
COLUMNS = {"path": "Datei", "site": "KLINIK ", "patient": "PatID", "label": "Befund"}
LABELS = {"gutartig": "benign", "bösartig": "malignant", 1: "malignant", "unklar": None, "": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abcd":
        Image.fromarray(np.zeros((8, 8, 3), dtype=np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "export.csv").write_text(TABLE, encoding="windows-1252")
    return tmp_path


def own(folder: Path, **settings: Any) -> Dataset:
    given = {"columns": COLUMNS, "labels": LABELS, "encoding": "windows-1252", "classes": ["benign", "malignant"]}
    return registry.build(
        "dataset", {"name": "own_images", "table": folder / "export.csv", "size": 8} | given | settings
    )


def test_columns_and_labels_of_the_study_give_the_table_its_meaning(folder: Path) -> None:
    before = (folder / "export.csv").read_bytes()
    dataset = own(folder)
    opened = dataset.open(folder)
    rows = opened.samples
    assert rows["sample"].tolist() == ["a.png", "b.png", "c.png"]
    assert rows["site"].tolist() == ["Nord", "Nord", "Süd"]
    assert rows["patient"].tolist() == ["7", "8", "9"]
    assert rows["label"].tolist() == [0, 1, 1]
    # the table's own column Label has no meaning here, and no name that could be taken for one
    assert opened.further == ("scanner",)
    told = "2 images left out because of the label: 1 'unklar', 1 ''"
    assert opened.remarks == (told,)
    examined = dataset.examine(folder)
    assert (list(examined.faults), examined.facts) == ([], (told,))
    assert {"a.png", "b.png", "c.png"} < dataset.own_files().keys() and "lost.png" not in dataset.own_files()
    assert dataset.fingerprint() != ""
    assert (folder / "export.csv").read_bytes() == before


def test_a_study_that_renames_nothing_keeps_its_ids(folder: Path) -> None:
    plain = own(folder, columns={}, labels={}, encoding="utf-8")
    assert not {"columns", "labels", "encoding"} & plain.identity().keys()
    assert own(folder).identity()["columns"] == COLUMNS


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"columns": COLUMNS | {"site": "Ort"}}, "no column 'Ort', which dataset.columns.site names; it has datei, kl"),
        ({"columns": {"path": "Datei", "site": "Klinik"}, "labels": {}}, "label 'x' is none of the 2 classes"),
        ({"columns": {"Datei": "path"}}, "columns.Datei"),
        ({"labels": {"gutartig": "bening"}}, "means 'bening', which is no class; did you mean 'benign'"),
        ({"labels": {"gutartig": "benign"}}, "label 'bösartig' is none of the 2 classes"),
        ({"labels": LABELS | {"": "benign"}}, "line 6: no such image"),
        ({"encoding": "windows-12"}, "'windows-12' is no encoding"),
        ({"encoding": "utf-8"}, "not a readable table file: 'utf-8' codec can't decode"),
    ],
)
def test_what_does_not_fit_the_table_is_one_line(folder: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        own(folder, **settings).open(folder)
    assert words in str(caught.value)


def test_the_study_of_the_documentation_reads_such_a_table(folder: Path) -> None:
    (example,) = (step for step in steps(ROOT / "docs" / "own-hospital.md") if step.title)
    path = folder / "a/b" / Path(str(example.title)).name
    path.parent.mkdir(parents=True)
    path.write_text(example.text, encoding="utf-8")
    rows = TABLE.replace("gutartig", "0").replace(";x;", ";;").splitlines()
    # the documentation's export is an Excel file, which its reader needs a package for
    plan = study.load(path, "mini")
    (data,) = plan.data.values()
    (folder / "export.csv").write_text("\n".join(rows), encoding="utf-8")
    here = data.dataset.model_copy(update={"table": folder / "export.csv", "folder": folder})
    assert here.open(folder).samples["label"].tolist() == [0, 1, 1]
    assert len(plan.runs) == 6 and plan.study.partition[0].external == ("West",)
