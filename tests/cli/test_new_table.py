"""`fedshift new NAME --table`: a study of what a hospital has, which is ready to run, and what it says on the way."""

from __future__ import annotations

import csv
import functools
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from real_data import FOLDER, needs
from scan_files import altered

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.jobs.proposed_study import ENOUGH

Told = pytest.CaptureFixture[str]
HEAD = ("Datei", "Klinik", "Pat-ID", "Befund", "Alter")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def picture(path: Path, mode: str = "RGB", side: int = 40, values: tuple[int, ...] = (0, 90)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(path.suffix, mode, side, values))


@functools.cache
def encoded(suffix: str, mode: str, side: int, values: tuple[int, ...]) -> bytes:
    """Thousands of files are one image, which is encoded once."""
    pixels = np.resize(np.array(values, dtype=np.uint8), (side, side))
    Image.fromarray(pixels).convert(mode).save(file := io.BytesIO(), Image.registered_extensions()[suffix])
    return file.getvalue()


def export(sites: dict[str, int], share: float = 0.5, mode: str = "RGB") -> Iterator[tuple[str, ...]]:
    """The rows of a hospital's export, whose images lie in a folder beside it; two images a patient."""
    for site, number in sites.items():
        for k in range(number):
            name = f"{site[0]}{k:03}.png"
            picture(Path("export/Bilder", name), mode)
            yield name, site, f"{site}-{k // 2}", "bösartig" if k // 2 < share * number / 2 else "gutartig", str(k)


def write(rows: list[tuple[str, ...]], **form: Any) -> None:
    with Path("export/export.csv").open("w", newline="", encoding=form.pop("encoding", "utf-8")) as file:
        csv.writer(file, **form).writerows([HEAD, *rows])


def new(name: str, table: str, *words: str) -> dict[str, Any]:
    assert cli.main(["new", name, "--table", table, "--yes", *words]) == 0
    content: dict[str, Any] = yaml.safe_load(Path(name, "config/studies", f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def test_an_export_of_excel_becomes_a_study_that_is_ready_to_run(capsys: Told) -> None:
    rows = [*export({"Süd": 120, "Nord": 110, "West": 100})]
    rows[3] = (*rows[3][:3], "Unklar", rows[3][4])
    rows[5] = (*rows[5][:3], "Bösartig ", rows[5][4])
    write(rows, delimiter=";", encoding="windows-1252")
    before = Path("export/export.csv").read_bytes()
    made = new("lungs", "export/export.csv")
    assert Path("export/export.csv").read_bytes() == before
    columns = {"path": "Datei", "site": "Klinik", "patient": "Pat-ID", "label": "Befund"}
    labels = {"Bösartig": "Bösartig", "Unklar": None, "bösartig": "Bösartig", "gutartig": "gutartig"}
    assert made["dataset"] == {
        "name": "own_images",
        "table": "../../../export/export.csv",
        "folder": "../../../export/Bilder",
        "encoding": "windows-1252",
        "columns": columns,
        "classes": ["gutartig", "Bösartig"],
        "labels": labels,
        "size": 32,
    }
    assert made["partition"]["internal"] == ["Süd", "Nord"] and made["partition"]["external"] == ["West"]
    assert made["headline"] == "accuracy" and "class_weights" not in made["training"]
    said = capsys.readouterr()
    for words in (
        "330 rows, 5 columns; not UTF-8, read as windows-1252",
        "images   330 png; shorter side 40 to 40 pixels",
        "column 'Klinik': Süd 120, Nord 110, West 100",
        "kept     column 'Alter'",
        "taken: 1 image with the label 'Unklar' left out",
        "taken: labels 'Bösartig' and 'bösartig' are one class",
        "external: West, since it is the smallest site",
    ):
        assert words in said.err, said.err
    assert "329 images of 3 sites, 165 patients" in said.out
    assert "Süd (internal): 119 images, 60 patients; 60 gutartig, 59 Bösartig" in said.out
    # what check finds sound can be run, from any folder
    assert cli.main(["check", "lungs", "-d", "lungs"]) == 0
    assert yaml.safe_load(Path("lungs/config/config.yaml").read_text(encoding="utf-8"))["study"] == "lungs"


def test_an_excel_file_is_read_as_its_csv(capsys: Told) -> None:
    pytest.importorskip("openpyxl", reason="reading Excel needs openpyxl")
    rows = [*export({"A": 60, "B": 60, "C": 60})]
    write(rows)
    pd.DataFrame(rows, columns=list(HEAD)).to_excel("export/export.xlsx", index=False)
    csv_, excel = new("one", "export/export.csv"), new("two", "export/export.xlsx")
    assert excel["dataset"].pop("table") == "../../../export/export.xlsx"
    csv_["dataset"].pop("table")
    assert csv_ == excel


@pytest.mark.parametrize(
    ("sites", "external"),
    [
        (("A", "B", "C"), ["C", "D"]),  # D has one class: alone outside, it has no value of a score of two
        (("A", "B"), ["D"]),  # and two sites that train are not made one
    ],
)
def test_a_site_of_one_class_is_not_all_that_is_tested_outside(
    sites: tuple[str, ...], external: list[str], capsys: Told
) -> None:
    write(
        [
            (*row[:3], "gutartig", *row[4:]) if row[1] == "D" else row
            for row in export({**dict.fromkeys(sites, 100), "D": 90})
        ]
    )
    made = new("mixed", "export/export.csv")
    assert made["partition"]["external"] == external
    assert made["partition"]["internal"] == [site for site in sites if site not in external]
    reason = "C is the smallest site with 20 patients of the rarest class or more, as an interval needs, and the others"
    assert (f"since {reason} lack a class" in capsys.readouterr().err) == ("C" in external)


@pytest.mark.parametrize(
    ("sites", "share", "found"),
    [
        # a fifth is unequal: 20 of 100 images, 10 patients
        (
            {"A": 300, "B": 200, "C": 100},
            0.2,
            {"headline": "auc", "class_weights": "balanced", "external": ["B"], "margin": 0.05},
        ),
        ({"A": 100, "B": 100, "C": 8}, 0.5, {"headline": "accuracy", "external": ["C"]}),
        ({"A": 100}, 0.5, {"headline": "accuracy", "external": [], "margin": None}),
        ({"A": 60, "B": 60, "C": 60}, 0.5, {"folds": None}),
        ({"A": 40, "B": 40, "C": 60}, 0.5, {"folds": 5}),
        ({"A": 2000, "B": 2000, "C": 100}, 0.5, {"batch_size": 32, "rounds": 20, "lr": 0.1}),
        ({"A": 60, "B": 60, "C": 100}, 0.5, {"batch_size": 4, "lr": 0.0125}),
    ],
)
def test_settings_follow_from_counts(sites: dict[str, int], share: float, found: dict[str, Any]) -> None:
    write([*export(sites, share)])
    made = new("x", "export/export.csv")
    flat = made | made["training"] | made["partition"] | made["partition"]["split"]
    assert {key: flat.get(key) for key in found} == found
    steps = flat["rounds"] * sum(0.6 * sites[site] for site in flat["internal"]) / len(flat["internal"])
    assert steps / flat["batch_size"] > 250 or flat["rounds"] == 60
    assert (ENOUGH, study.load(Path("x/config/studies/x.yaml"), "mini").study.title) == (20, made["title"])


def test_grey_images_are_neither_flipped_nor_turned() -> None:
    write([*export({"A": 60, "B": 60, "C": 60}, mode="L")])
    assert new("x", "export/export.csv")["transforms"] == ["scale_intensity"]


@pytest.mark.parametrize("layout", ["{site}/{label}/{name}", "{label}/{site}/{name}", "all/{site}/x/{label}/{name}"])
def test_folders_of_folders_name_sites_and_classes(layout: str, capsys: Told) -> None:
    for site in ("north", "south", "west"):
        for label in ("benign", "malignant"):
            for k in range(12):
                picture(Path("images", layout.format(site=site, label=label, name=f"{site}{label}{k}.jpg")))
    made = new("x", "images")
    assert made["dataset"]["classes"] == ["benign", "malignant"]
    assert made["dataset"]["table"] == "../../images.csv" and made["dataset"]["folder"] == "../../../images"
    assert {*made["partition"]["internal"], *made["partition"]["external"]} == {"north", "south", "west"}
    rows = pd.read_csv("x/images.csv")
    assert list(rows) == ["path", "label", "site"] and len(rows) == 72
    assert "patients are unknown" in capsys.readouterr().out


def test_masks_lie_beside_their_images() -> None:
    for site, names in {"a": ("image", "mask"), "b": ("images", "masks"), "c": (".", "manual")}.items():
        for k in range(8):
            picture(Path("eyes", site, names[0], f"{k}.jpg"))
            picture(Path("eyes", site, names[1], f"{k}{'_manual' * (site == 'c')}.png"), "L", values=(0, 255))
            picture(Path("eyes", site, "fov", f"{k}.png"), "L", values=(255,))
    picture(Path("eyes/a/image/alone.jpg"))
    made = new("x", "eyes")
    assert made["task"] == "segmentation" and made["headline"] == "dice" and made["model"] == "unet_small"
    assert made["dataset"]["masks"] == {0: 0, 255: 1}
    rows = pd.read_csv("x/images.csv")
    assert len(rows) == 24 and rows["site"].value_counts().to_dict() == {"a": 8, "b": 8, "c": 8}
    stems = rows[["path", "mask", "valid"]].map(lambda cell: Path(cell).stem.removesuffix("_manual"))
    assert stems["path"].tolist() == stems["mask"].tolist() == stems["valid"].tolist()
    assert study.load(Path("x/config/studies/x.yaml"), "mini").study.metrics[0] == "dice"


def test_a_folder_of_dicom_gets_pseudonyms_and_the_labels_of_a_table(capsys: Told) -> None:
    """Pseudonyms are hexadecimal, and by chance hold any few digits."""
    for k in range(24):
        device = {"ManufacturerModelName": ("One", "Two")[k % 2], "SOPInstanceUID": f"1.2.{k}"}
        altered("MR_small.dcm", Path("pacs", f"P{k}", "IM1"), PatientID=f"MRN{k}", **device)
    assert cli.main(["new", "x", "--table", "pacs", "--yes"]) == 2
    assert "no folder names a class, and no header does; give --labels CSV" in capsys.readouterr().err
    assert not Path("x").exists()
    rows = "".join(f"MRN{k},{('clear', 'tumour')[k // 2 % 2]}\n" for k in range(24))
    Path("labels.csv").write_text(f"patient,label\n{rows}")
    made = new("x", "pacs", "--labels", "labels.csv")
    assert made["dataset"]["classes"] == ["clear", "tumour"]
    assert {*made["partition"]["internal"], *made["partition"]["external"]} == {"One", "Two"}
    table = pd.read_csv("x/images.csv")
    assert table["patient"].nunique() == 24 and not table["patient"].str.contains("MRN").any()


@pytest.mark.parametrize(
    ("names", "positive"),
    [
        (("clear", "tumour"), "tumour"),
        (("Karzinom", "frei"), "Karzinom"),
        (("no tumour", "tumour"), "tumour"),
        (("benign tumour", "malignant tumour"), "malignant tumour"),
        (("melanoma", "seborrhoeic keratosis"), "melanoma"),
        (("left", "right"), "left"),
    ],
)
def test_the_positive_class_is_told_by_its_name_or_else_rarer(names: tuple[str, str], positive: str) -> None:
    """Of "left" and "right" nothing tells: the rarer one is proposed."""
    rows = [(*row[:3], names[k % 5 > 1], row[4]) for k, row in enumerate(export({"A": 60, "B": 60, "C": 60}))]
    write(rows)
    assert new("x", "export/export.csv")["dataset"]["classes"][1] == positive


def test_labels_of_a_table_are_not_taken_from_folders(capsys: Told) -> None:
    """The folders are hospitals, and in a second export classes of the same names as the labels: both say no class."""
    for k in range(24):
        about = {"PatientID": f"007{k}", "SOPInstanceUID": f"1.2.{k}", "ManufacturerModelName": ("One", "Two")[k % 2]}
        label = ("clear", "tumour")[k // 2 % 2]
        for folder in (f"pacs/{('north', 'south', 'west')[k % 3]}/P{k}", f"sorted/{label}/P{k}"):
            altered("MR_small.dcm", Path(folder, "IM1"), **about)
    rows = "".join(f"007{k},{('clear', 'tumour')[k // 2 % 2]}\n" for k in range(24))
    Path("labels.csv").write_text(f"patient,label\n{rows}")
    made = new("x", "pacs", "--labels", "labels.csv")
    assert made["dataset"]["classes"] == ["clear", "tumour"]
    assert {*made["partition"]["internal"], *made["partition"]["external"]} == {"north", "south", "west"}
    assert "what do the folders north, south, west name? site" in capsys.readouterr().err
    made = new("y", "sorted", "--labels", "labels.csv")
    assert made["dataset"]["classes"] == ["clear", "tumour"]
    assert {*made["partition"]["internal"], *made["partition"]["external"]} == {"One", "Two"}


@pytest.mark.parametrize(
    ("table", "words", "line"),
    [
        ("lost.csv", (), "lost.csv: no such file or folder; name a table, or a folder of images"),
        ("a.csv", (), "no column seems to hold the path; it has x, site, label; say --column path=NAME"),
        ("b.csv", (), "no column seems to hold the site; it has path, label; say --column site=NAME"),
        ("c.csv", (), "the column of labels: names 1 classes ('x'); 2 to 20 are needed"),
        ("c.csv", ("--column", "label=Befnd"), "no column 'Befnd'"),
    ],
)
def test_what_no_study_can_be_made_of_is_one_line_and_writes_nothing(
    table: str, words: tuple[str, ...], line: str, capsys: Told
) -> None:
    Path("a.csv").write_text("x,site,label\n1,A,x\n2,B,y\n")
    Path("b.csv").write_text("path,label\na.png,x\nb.png,y\n")
    Path("c.csv").write_text("path,site,label\na.png,A,x\nb.png,B,x\n")
    assert cli.main(["new", "x", "--table", table, "--yes", *words]) == 2
    assert line in capsys.readouterr().err
    assert not Path("x").exists()


def test_a_study_is_added_to_a_project_and_over_nothing(capsys: Told) -> None:
    write([*export({"A": 60, "B": 60, "C": 60})])
    assert cli.main(["new", "p"]) == 0
    words = ["new", "p/config/studies/second.yaml", "--table", "export/export.csv", "--yes"]
    assert cli.main(words) == 0
    assert cli.main(["check", "second", "-d", "p"]) == 0
    capsys.readouterr()
    assert cli.main(words) == 2
    assert "second.yaml: exists already" in capsys.readouterr().err


def test_a_terminal_is_asked_what_no_table_says(monkeypatch: pytest.MonkeyPatch, capsys: Told) -> None:
    write([(*row[:3], str(int(row[3] == "bösartig")), row[4]) for row in export({"A": 60, "B": 60, "C": 60})])
    answers = iter(["healthy", "", "nowhere", "B"])
    asked = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return next(answers)

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert cli.main(["new", "x", "--table", "export/export.csv"]) == 0
    made = yaml.safe_load(Path("x/config/studies/x.yaml").read_text(encoding="utf-8"))
    assert made["dataset"]["classes"] == ["healthy", "class 1"]
    assert made["partition"]["external"] == ["B"]
    assert asked == ["[class 0] ", "[class 1] ", "[A] ", "[A] "]
    assert "known: A, B, C" in capsys.readouterr().err


@pytest.mark.slow
@needs("mitosis_sites.tar", "skin_sites.tar", "retina_vessels.tar")
@pytest.mark.parametrize(
    ("archive", "found"),
    [
        ("mitosis_sites", {"classes": ["normal", "atypical"], "external": ["midog_xr"], "headline": "auc"}),
        ("skin_sites", {"classes": ["nevus", "melanoma"], "external": ["ph2"], "headline": "auc"}),
        ("retina_vessels", {"classes": ["background", "structure"], "external": ["stare"], "headline": "dice"}),
    ],
)
def test_real_sets_get_a_study(archive: str, found: dict[str, Any], tmp_path: Path) -> None:
    with tarfile.open(FOLDER / f"{archive}.tar") as packed:
        packed.extractall(tmp_path / "data", filter="data")
    made = new("x", "data/samples.csv")
    flat = made | made["dataset"] | made["partition"]
    assert {key: flat[key] for key in found} == found
