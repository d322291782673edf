"""Errors that users of their own images have met: each ends with code 2 and one line that says what to do."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from fedshift.cli import parser as cli

STUDY: dict[str, Any] = {
    "title": "T",
    "dataset": {"name": "own_images", "table": "../../own/t.csv", "size": 8},
    "partition": {"internal": ["A"], "external": ["B"], "split": {"train": 0.6, "val": 0.2, "test": 0.2}},
    "model": "mlp",
    "training": {"rounds": 1, "batch_size": 2},
    "runs": [{"algorithm": "fedavg"}],
    "inferences": ["source"],
}
SCAN = bytes(128) + b"DICM" + bytes(60)


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study of ten images of each of two sites, entered."""
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    Path("own").mkdir()
    for n in range(20):
        Image.new("RGB", (8, 8), (n, n, n)).save(f"own/{n}.png")
    rows([f"{n}.png,{n % 2},{'AB'[n // 10]}" for n in range(20)])
    study({})
    return tmp_path


def rows(lines: list[str], header: str = "path,label,site") -> None:
    Path("own/t.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def changed(old: str, new: str, count: int = -1) -> None:
    table = Path("own/t.csv")
    assert old in table.read_text(encoding="utf-8")
    table.write_text(table.read_text(encoding="utf-8").replace(old, new, count), encoding="utf-8")


def study(changes: dict[str, Any]) -> None:
    Path("config/studies").mkdir(parents=True, exist_ok=True)
    Path("config/studies/tiny.yaml").write_text(yaml.safe_dump(STUDY | changes), encoding="utf-8")


def edited(old: str, new: str) -> None:
    path = Path("config/studies/tiny.yaml")
    assert old in path.read_text(encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that `fedshift check` prints of a bad study."""
    assert cli.main(["check", "tiny", "--scale", "mini"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def renamed() -> None:
    """The file has a decomposed name, as a Mac writes it; the table has a composed one."""
    Path("own/19.png").rename(Path("own", unicodedata.normalize("NFD", "Zürich.png")))
    changed("19.png", "Zürich.png")


def in_capitals() -> None:
    Path("own/19.png").rename("own/19.PNG")


def scan() -> None:
    Path("own/19.png").rename("own/19.dcm")
    Path("own/19.dcm").write_bytes(SCAN)
    changed("19.png", "19.dcm")


REMEDY = "get it again, remove its row, or leave it out: dataset.skip_unreadable: true"
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "an empty image": (
        lambda: Path("own/19.png").write_bytes(b""),
        f"own/t.csv, line 21: the file is empty: own/19.png; {REMEDY}",
    ),
    "an image that is not there": (
        lambda: Path("own/19.png").unlink(),
        f"own/t.csv, line 21: no such image: own/19.png; {REMEDY}",
    ),
    "DICOM": (
        scan,
        "own/t.csv, line 21: is a DICOM file without an image, such as a report or a plan: own/19.dcm; " + REMEDY,
    ),
    "the other Unicode form": (
        renamed,
        r"own/t.csv, line 21: no such image: own/Zürich.png; its folder has 'Zu\u0308rich.png': spaces, case and the "
        "Unicode form count",
    ),
    "case": (
        in_capitals,
        "own/t.csv, line 21: no such image: own/19.png; its folder has '19.PNG': spaces, case and the Unicode form "
        "count",
    ),
    "an empty table": (lambda: Path("own/t.csv").write_text(""), "own/t.csv: not a readable table file: it is empty"),
    "a header alone": (lambda: rows([]), "own/t.csv: has no rows below its header; list each image in a row"),
    "labels 1 and 2": (
        lambda: rows([f"{n}.png,{n % 2 + 1},{'AB'[n // 10]}" for n in range(20)]),
        "own/t.csv, line 3: label '2' is none of the 2 classes (negative, positive), as in 9 more rows; labels run "
        "from 1 to 2 here, and must run from 0 to 1: write 0 for negative, and so on, or the names of classes",
    ),
    "a label out of range": (
        lambda: changed("19.png,1", "19.png,7"),
        "own/t.csv, line 21: label '7' is none of the 2 classes (negative, positive); write 0 to 1 or the name of a "
        "class, or name all classes in dataset.classes",
    ),
    "a space behind a site": (
        lambda: changed("9.png,1,A", "9.png,1,A ", 1),
        "partition: site 'A' is also spelt 'A ' in the data (images: 1); spell it alike everywhere: spaces, case and "
        "the Unicode form count",
    ),
    "a space behind a site in the study": (
        lambda: edited("- A\n", "- 'A '\n"),
        "partition: site 'A ' is also spelt 'A' in the data (images: 10); spell it alike everywhere: spaces, case and "
        "the Unicode form count",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_and_where_and_what_to_do(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, line = CASES[case]
    spoil()
    assert told(capsys) == [line]


@pytest.mark.parametrize(("name", "is_a"), [("NO", "true or false"), ("yes", "true or false"), ("1", "a number")])
@pytest.mark.parametrize("place", ["internal", "external", "classes"])
def test_names_that_yaml_takes_for_something_else_are_to_be_quoted(
    name: str, is_a: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if place == "classes":
        edited("size: 8", f"size: 8\n  classes: [{name}, other]")
    else:
        edited({"internal": "- A\n", "external": "- B\n"}[place], f"- {name}\n")
    (line,) = told(capsys)
    assert f".{place}.0: must be text, and is {is_a}" in line
    assert line.endswith("put it in quotes")


def test_four_faults_of_one_table_are_told_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    rows([*(f"{n}.png,{n % 2},{'AB'[n // 10]}" for n in range(19)), "19.png,9,A ", "lost.png,1,B", "18.png,0,B"])
    assert [line.partition("; ")[0] for line in told(capsys)] == [
        "own/t.csv, line 21: label '9' is none of the 2 classes (negative, positive)",
        "own/t.csv, line 22: no such image: own/lost.png",
        "own/t.csv, line 23: '18.png' is the image of own/t.csv, line 20",
        "partition: site 'A' is also spelt 'A ' in the data (images: 1)",
    ]


def test_sites_without_a_role_that_differ_by_a_space_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is in the study, so nothing of it is lost; but the two are probably one hospital."""
    changed("19.png,1,B", "19.png,1,C ")
    changed("18.png,0,B", "18.png,0,C")
    assert cli.main(["check", "tiny", "--scale", "mini"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  warning: sites 'C', 'C ' differ only in spelling, and count as 2" in lines
    assert "  warning: site 'C ' (images: 1) has no role in the study" in lines


def test_what_preparation_left_out_is_told_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    from fedshift import study as studies

    study({"dataset": STUDY["dataset"] | {"skip_unreadable": True}})
    Path("own/19.png").write_text("no image")
    Path("own/3.png").unlink()
    (data,) = studies.load(Path("config/studies/tiny.yaml"), "mini").data.values()
    assert cli.main(["download", "tiny", data.raw]) == 0
    assert cli.main(["prepare", "tiny", data.id]) == 0
    capsys.readouterr()
    assert cli.main(["check", "tiny", "--scale", "mini"]) == 0
    note = "  warning: 2 images (1 at A, 1 at B) could not be read and are left out."
    assert note in capsys.readouterr().out.splitlines()
