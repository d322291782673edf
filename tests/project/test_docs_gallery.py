"""The gallery of the documentation: it lists what is there, and takes no page that it must not show."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GALLERY: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "gallery.py"))
EXHIBITS = GALLERY["EXHIBITS"]
STUDIES = ROOT / "config" / "studies"
WITH_IMAGES = {"patches", "mistakes", "outlines"}


PICTURE = '<svg style="--width:9rem"><text>answer</text></svg>'
ALONE = '<svg style="color: #111; background: #fff; --width:9rem"><text>answer</text></svg>\n'


def html(study: str, more: str = "", picture: str = PICTURE) -> str:
    answer = f'<figure class="forest wide">\n{picture}\n</figure><figure class="flow"><svg></svg></figure>'
    return f"{answer}<footer><p>Made by fedshift from the files of study <b>{study}</b>.</p>{more}</footer>"


def declared(study: str) -> dict[str, Any]:
    """The file of a study of the project, or of a reproduction."""
    files = [STUDIES / f"{study}.yaml", *(ROOT / "docs" / "reproductions").glob(f"*/{study}.yaml")]
    (file,) = [file for file in files if file.is_file()]
    settings: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an empty gallery, and the page of each study in reports."""
    (tmp_path / "docs" / "gallery").mkdir(parents=True)
    (tmp_path / "reports").mkdir()
    text = f"# Gallery\n\n{GALLERY['BEGIN']}\n{GALLERY['END']}\n\nThe end.\n"
    (tmp_path / "docs" / "gallery.md").write_text(text, encoding="utf-8")
    for exhibit in EXHIBITS:
        (tmp_path / "reports" / f"{exhibit.study}.html").write_text(html(exhibit.study), encoding="utf-8")
    return tmp_path


def links(project: Path) -> list[str]:
    return re.findall(r"\]\((gallery/[^)]+\.(?:html|svg))\)", (project / "docs/gallery.md").read_text(encoding="utf-8"))


def test_the_gallery_lists_the_pages_that_are_there_and_no_others() -> None:
    markdown = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert markdown == GALLERY["written"](markdown, ROOT / "docs/gallery"), "write it again: make gallery"
    there = sorted(path.name for path in (ROOT / "docs/gallery").iterdir() if path.name != "studies.yaml")
    assert sorted(Path(link).name for link in links(ROOT)) == there
    assert [name for name in there if name.endswith(".html")] == ["demo.html", "mitosis.html", "vessels.html"]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.study)
def test_pages_of_the_gallery_could_be_put_there_again(exhibit: Any) -> None:
    assert declared(exhibit.study)
    file = ROOT / "docs/gallery" / exhibit.file
    if exhibit.file.endswith(".html"):
        assert GALLERY["fault"](exhibit, file) == ""
    else:
        picture = ElementTree.parse(file).getroot()
        assert picture.get("role") == "img" and picture[0].text, "its title tells what it shows"
        assert not [element for element in picture.iter() if element.tag.rpartition("}")[2] in ("image", "script")]


@pytest.mark.parametrize(
    "study",
    [
        *(exhibit.study for exhibit in EXHIBITS if not exhibit.images),
        *("benchmark-digits", "benchmark-vessels", "fedbn-table1-office"),
    ],
)
def test_studies_whose_licence_forbids_it_name_no_figure_with_images(study: str) -> None:
    """At the scale of the real data; a miniature is drawn, and may be shown."""
    settings = declared(study)
    figures = settings.get("scales", {}).get("paper", {}).get("figures", settings["figures"])
    assert figures and not WITH_IMAGES & set(figures)


def test_the_page_of_a_reproduction_is_found(project: Path) -> None:
    """It lies in the reproduction's working folder; one in reports comes first."""
    study = "demo"
    first = project / "reports" / f"{study}.html"
    second = project / "build" / "reproductions" / study / "reports" / f"{study}.html"
    second.parent.mkdir(parents=True)
    second.write_text(html(study, "reproduced"), encoding="utf-8")
    for expected in (html(study), html(study, "reproduced")):
        assert GALLERY["main"](study, root=project) == 0
        assert (project / "docs/gallery/demo.html").read_text(encoding="utf-8") == expected
        first.unlink(missing_ok=True)


def test_a_page_is_added_by_one_command_and_the_order_is_fixed(project: Path) -> None:
    assert links(project) == []
    for exhibit in reversed(EXHIBITS):
        assert GALLERY["main"](exhibit.study, root=project) == 0
        expected = html(exhibit.study) if exhibit.file.endswith(".html") else ALONE
        assert (project / "docs/gallery" / exhibit.file).read_text(encoding="utf-8") == expected
    assert links(project) == [f"gallery/{exhibit.file}" for exhibit in EXHIBITS]
    (project / "docs/gallery" / EXHIBITS[0].file).unlink()
    assert GALLERY["main"](root=project) == 0
    assert links(project) == [f"gallery/{exhibit.file}" for exhibit in EXHIBITS[1:]]
    assert (project / "docs/gallery.md").read_text(encoding="utf-8").endswith("\n\nThe end.\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such page; run the study first"),
        (html("benchmark-mitosis"), "is not the page of benchmark-skin"),
        (
            html("benchmark-skin", str(ROOT / "study.yaml")),
            f"names the folder {ROOT}; name the study by a relative path",
        ),
        (html("benchmark-skin", " " * GALLERY["LARGEST"]), "bytes, and a page of the gallery has less than 2,000,000"),
        (html("benchmark-skin", '<img src="data:image/png;base64,x">'), "whose licence does not allow it here"),
        (html("benchmark-skin", picture=""), "has no picture of its answer"),
    ],
    ids=["missing", "another", "folder", "large", "images", "picture"],
)
def test_a_page_that_cannot_be_shown_ends_in_one_line(
    content: str | None, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = project / "reports" / "benchmark-skin.html"
    page.unlink()
    if content is not None:
        page.write_text(content, encoding="utf-8")
    before = (project / "docs/gallery.md").read_text(encoding="utf-8")
    assert GALLERY["main"]("benchmark-skin", root=project) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith(str(page)) and words in said
    assert links(project) == [] and list((project / "docs/gallery").iterdir()) == []
    assert (project / "docs/gallery.md").read_text(encoding="utf-8") == before


def test_a_study_that_the_gallery_does_not_know_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert GALLERY["main"]("nobody", root=project) == 2
    assert capsys.readouterr().err.startswith("STUDY: nobody is not one of demo, ")
