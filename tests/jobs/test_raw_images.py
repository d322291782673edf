"""What preparation finds out about raw images: those that cannot be read, and those that are much too large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.io.images import read_image, shorter_side
from fedshift.io.tables import write_table
from fedshift.jobs.prepare import notes, prepare, readable_rows
from fedshift.study.run import Data

SIDE = 8
DAMAGED = {"cut.png": b"\x89PNG\r\n\x1a\nIHDR", "empty.png": b"", "text.png": b"no image"}
SCAN = bytes(128) + b"DICM" + bytes(60)


def picture(path: Path, *size: int, grey: int = 0) -> None:
    Image.new("RGB", size or (SIDE, SIDE), (grey, grey, grey)).save(path)


def own(folder: Path, sites: dict[str, str], **settings: Any) -> Data:
    """Own images, each at a site."""
    rows = pd.DataFrame({"path": list(sites), "label": np.arange(len(sites)) % 2, "site": list(sites.values())})
    write_table(folder / "t.csv", rows)
    spec = {"name": "own_images", "table": folder / "t.csv", "size": SIDE, **settings}
    return Data(dataset=registry.build("dataset", spec), synthetic=False)


def spoiled(folder: Path, **settings: Any) -> Data:
    """Six good images of A and of B, and four of A, B and C that cannot be read, one of which is not there."""
    for name, content in DAMAGED.items():
        (folder / name).write_bytes(content)
    for n in range(6):
        picture(folder / f"{n}.png", grey=40 * n)
    bad = {"cut.png": "B", "lost.png": "A", "empty.png": "C", "text.png": "B"}
    return own(
        folder, {"0.png": "A", "1.png": "B", **bad, **{f"{n}.png": "AB"[n % 2] for n in range(2, 6)}}, **settings
    )


def test_images_that_cannot_be_read_are_left_out_on_request_and_counted_by_site(tmp_path: Path, capsys: Any) -> None:
    prepare(spoiled(tmp_path, skip_unreadable=True), tmp_path / "raw", tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert made.samples["sample"].tolist() == [f"{n}.png" for n in range(6)]
    assert made.images[:, 0, 0, 0].tolist() == [40 * n for n in range(6)]
    note = "4 images (2 at B, 1 at A, 1 at C) could not be read and are left out."
    assert made.card["notes"] == [note]
    assert made.card["unreadable"] == 4
    assert f"warning: {note}" in capsys.readouterr().err


def test_without_that_they_are_all_named(tmp_path: Path) -> None:
    data = spoiled(tmp_path)
    (tmp_path / "lost.png").touch()
    with pytest.raises(UserErrors) as caught:
        prepare(data, tmp_path / "raw", tmp_path / "out")
    named = [Path(str(error.where)).name for error in caught.value.errors]
    assert named == ["cut.png", "lost.png", "empty.png", "text.png"]


def test_where_no_image_can_be_read_that_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no image")
    data = own(tmp_path, {"text.png": "A", "lost.png": "A"}, skip_unreadable=True)
    with pytest.raises(UserErrors, match=r"text\.png: cannot be read .*\n.*lost\.png: no such image"):
        prepare(data, tmp_path / "raw", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_setting_changes_ids_only_where_it_is_used(tmp_path: Path) -> None:
    plain, off, on = (
        own(tmp_path, {"a.png": "A"}, **s) for s in ({}, {"skip_unreadable": False}, {"skip_unreadable": True})
    )
    assert plain.id == off.id != on.id
    assert plain.raw == on.raw, "nothing is downloaded again"
    assert "skip_unreadable" not in plain.dataset.identity()


def test_sound_images_need_no_note(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    prepare(own(tmp_path, {"a.png": "A"}), tmp_path / "raw", tmp_path / "out")
    assert Prepared(tmp_path / "out").card["notes"] == []


@pytest.mark.parametrize(("size", "large"), [((128, 128), False), ((500, 128), False), ((129, 129), True)])
def test_images_with_more_than_sixteen_pixels_for_one_that_is_kept_are_noted(
    tmp_path: Path, size: tuple[int, int], large: bool
) -> None:
    """16 times 8 is 128; the shorter side counts, since the longer one is cropped."""
    picture(tmp_path / "big.png", *size)
    picture(tmp_path / "a.png")
    prepare(own(tmp_path, {"a.png": "A", "big.png": "B"}), tmp_path / "raw", tmp_path / "out")
    wanted = "1 image (1 at B) is more than 16 times as wide and high as what the network sees of them"
    found = Prepared(tmp_path / "out").card["notes"]
    assert [note.startswith(wanted) for note in found] == [True] * large
    assert all(note.endswith("If they are whole slides, cut them into patches first.") for note in found)


def test_notes_count_by_site_in_the_order_of_the_samples() -> None:
    samples = pd.DataFrame({"site": ["B", "A", "B", "A", "B"], "patient": None})
    told = list(notes(samples, np.array([0, 2, 3]), lambda i: 20.0 if i == 2 else 16.0, 1))
    assert told[0] == "2 images (1 at A, 1 at B) could not be read and are left out."
    assert told[1].startswith("1 image (1 at B) is more than 16 times")
    assert list(notes(samples, np.arange(5), None, 1)) == []


def test_names_that_are_spelt_in_several_ways_are_noted() -> None:
    """One patient under two names could train and test."""
    samples = pd.DataFrame({"site": ["A", "A", "B", "C"], "patient": ["p1", "p1 ", None, "P2"]})
    assert list(notes(samples, np.arange(4), None, 1)) == [
        "Patients 'p1', 'p1 ' differ only in spelling, and count as one person; if they are several, name them apart."
    ]
    samples["site"] = ["Zürich", "Zu\u0308rich", "B", "C"]
    assert next(notes(samples, np.arange(4), None, 1)).startswith(r"Sites 'Zürich', 'Zu\u0308rich' differ only in")


def test_rows_keep_their_order_with_several_threads() -> None:
    def image(i: int) -> None:
        if i % 3 == 0:
            raise UserError(i, "cannot be read")

    assert readable_rows(image, 10, 4).tolist() == [1, 2, 4, 5, 7, 8]


def test_the_shorter_side_comes_from_the_header(tmp_path: Path) -> None:
    picture(tmp_path / "wide.png", 30, 20)
    (tmp_path / "text.png").write_text("no image")
    sides = [shorter_side(tmp_path / name) for name in ("wide.png", "text.png", "lost.png")]
    assert sides == [20, 0, 0]


def test_a_whole_slide_is_known_by_its_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow refuses more than twice its limit; at 100 pixels that is any image of more than 14 x 14."""
    picture(tmp_path / "slide.png", 15, 15)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    words = r"slide\.png: has too many pixels .* whole slide .*; cut it into patches first: fedshift patches$"
    with pytest.raises(UserError, match=words):
        read_image(tmp_path / "slide.png")


@pytest.mark.parametrize("name", ["scan.dcm", "scan.DICOM", "scan", "scan.png"])
def test_dicom_is_known_by_its_mark_and_told_how_to_convert(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(SCAN)
    with pytest.raises(
        UserError, match=r"scan.*: is a DICOM file, which is not read here; convert it to PNG first, .*dcm"
    ):
        read_image(tmp_path / name)


def test_an_image_of_an_archive_has_no_row_to_remove(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    with pytest.raises(UserError) as caught:
        read_image(tmp_path / "empty.png")
    assert str(caught.value) == f"{tmp_path}/empty.png: the file is empty; obtain the archive again"
