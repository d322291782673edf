"""Raw files of each dataset, and what is prepared from them."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.datasets import camelyon17
from fedshift.datasets.camelyon17 import FOLDER, Camelyon17, Counts
from fedshift.datasets.own_images import OwnImages
from fedshift.io.images import read_image
from fedshift.io.tables import write_table
from fedshift.io.text import read_json
from fedshift.jobs import prepare
from fedshift.study.run import Data

PATCHES, PATIENTS = 40, 4


def leaves(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- Camelyon17 -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Camelyon17:
    return Camelyon17(patches=PATCHES, patients=PATIENTS)


@pytest.fixture(scope="module")
def camelyon(small: Camelyon17, tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tmp_path_factory.mktemp("camelyon")
    prepare.obtain(Data(dataset=small, synthetic=True), raw, None)
    return raw


def test_the_miniature_has_the_layout_of_the_archive(camelyon: Path) -> None:
    folder = camelyon / FOLDER
    meta = pd.read_csv(folder / "metadata.csv", index_col=0, dtype={"patient": "str"})
    assert list(meta) == ["patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"]
    assert list(meta.index) == list(range(5 * PATCHES))
    assert meta["patient"].str.fullmatch(r"\d{3}").all()
    assert (folder / "RELEASE_v1.0.txt").is_file()
    where = "patient_" + meta["patient"] + "_node_" + meta["node"].astype(str)
    place = "_x_" + meta["x_coord"].astype(str) + "_y_" + meta["y_coord"].astype(str)
    expected = "patches/" + where + "/patch_" + where + place + ".png"
    assert {str(p.relative_to(folder)) for p in folder.rglob("*.png")} == set(expected)
    with Image.open(folder / expected[0]) as image:
        assert (image.format, image.size, image.mode) == ("PNG", (96, 96), "RGB")


def test_five_centres_with_patients_of_their_own_and_both_classes_in_each(camelyon: Path) -> None:
    meta = pd.read_csv(camelyon / FOLDER / "metadata.csv", dtype={"patient": "str"})
    assert meta["center"].value_counts().to_dict() == dict.fromkeys(range(5), PATCHES)
    assert (meta.groupby("center")["patient"].nunique() == PATIENTS).all()
    assert (meta.groupby("patient")["center"].nunique() == 1).all()
    assert (meta.groupby("patient")["slide"].nunique() == 1).all()
    assert (meta.groupby("patient")["tumor"].nunique() == 2).all()
    assert (meta.groupby("center")["tumor"].mean() == 0.5).all()


def test_many_patients_have_numbers_and_slides_of_their_own_and_patches_of_both_classes(tmp_path: Path) -> None:
    """80 patches are two for each of 40 patients: half as many patients are the most there can be."""
    Camelyon17(patches=80, patients=60).miniature(tmp_path)
    meta = pd.read_csv(tmp_path / FOLDER / "metadata.csv", dtype={"patient": "str"})
    assert (meta.groupby("center")["patient"].nunique() == 40).all()
    for column in ("center", "slide"):
        assert (meta.groupby("patient")[column].nunique() == 1).all()
    assert (meta.groupby("slide")["patient"].nunique() == 1).all()
    assert (meta.groupby("patient")["tumor"].nunique() == 2).all()
    assert meta["patient"].str.fullmatch(r"\d{3}").all()


def test_wilds_own_class_reads_the_miniature(camelyon: Path, small: Camelyon17) -> None:
    from wilds.datasets.camelyon17_dataset import Camelyon17Dataset

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wilds = Camelyon17Dataset(version="1.0", root_dir=str(camelyon), download=False)
    assert len(wilds) == 5 * PATCHES
    x, y, meta = wilds[0]
    assert (x.size, int(y), meta.tolist()[:2]) == ((96, 96), 0, [0, 0])
    opened = small.open(camelyon)
    assert opened.samples["label"].tolist() == wilds.y_array.tolist()
    assert opened.samples["site"].tolist() == [f"centre{c}" for c in wilds.metadata_array[:, 0].tolist()]
    for i in (0, 77, len(wilds) - 1):
        np.testing.assert_array_equal(opened.image(i), np.asarray(wilds.get_input(i)))


def test_official_files_and_a_miniature_are_listed_alike(camelyon: Path, small: Camelyon17, tmp_path: Path) -> None:
    """Without the mark of a miniature, `wilds` lists the files."""
    raw = shutil.copytree(camelyon, tmp_path / "raw")
    (raw / FOLDER / "RELEASE_v1.0.txt").write_text("")
    pd.testing.assert_frame_equal(small.open(raw).samples, small.open(camelyon).samples)


def test_the_miniature_is_the_same_to_the_byte(camelyon: Path, small: Camelyon17, tmp_path: Path) -> None:
    small.miniature(tmp_path)
    assert leaves(tmp_path / FOLDER) == leaves(camelyon / FOLDER)


def test_a_damaged_image_of_an_archive_is_no_row_to_remove(camelyon: Path, small: Camelyon17, tmp_path: Path) -> None:
    raw = shutil.copytree(camelyon, tmp_path / "raw")
    opened = small.open(raw)
    (spoilt,) = (raw / FOLDER).rglob(f"patch_{opened.samples['sample'][3]}.png")
    spoilt.write_bytes(b"")
    with pytest.raises(UserError) as caught:
        opened.image(3)
    assert str(caught.value) == f"{spoilt}: the file is empty; obtain the archive again"


def test_prepared_pixels_are_those_of_the_files(camelyon: Path, small: Camelyon17, tmp_path: Path) -> None:
    data = Data(dataset=small, synthetic=True)
    prepare.prepare(data, camelyon, tmp_path / "out", threads=2)
    made = Prepared(tmp_path / "out")
    assert isinstance(made.images, np.memmap)
    assert (made.images.dtype, made.images.shape) == (np.uint8, (5 * PATCHES, 96, 96, 3))
    assert not made.images.flags.writeable
    meta = pd.read_csv(camelyon / FOLDER / "metadata.csv", dtype={"patient": "str"})
    for i in (0, 1, 77, 5 * PATCHES - 1):
        name = made.samples["sample"][i]
        (file,) = (camelyon / FOLDER).rglob(f"patch_{name}.png")
        with Image.open(file) as image:
            np.testing.assert_array_equal(made.images[i], np.asarray(image))
        row = meta.iloc[i]
        assert name == f"patient_{row.patient}_node_{row.node}_x_{row.x_coord}_y_{row.y_coord}"
        assert made.samples["site"][i] == f"centre{row.center}"
        assert made.samples["patient"][i] == f"patient_{row.patient}"
        assert made.samples["label"][i] == row.tumor


def test_the_card_says_where_it_is_from(camelyon: Path, small: Camelyon17, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare.prepare(Data(dataset=small, synthetic=True), camelyon, out)
    card = read_json(out / "card.json")
    assert {"title", "version", "source", "licence", "citation", "caveat", "synthetic", "classes", "checksums"} <= set(
        card
    )
    assert (card["synthetic"], card["classes"]) == (True, ["normal", "tumour"])
    assert card["sites"]["centre4"] == {"images": PATCHES, "patients": PATIENTS}
    for name, checksum in card["checksums"].items():
        assert checksum == "sha256:" + hashlib.sha256((out / name).read_bytes()).hexdigest()
    assert set(card["checksums"]) == {"images.npy", "samples.parquet"}


COUNTS = Counts(
    patches=dict.fromkeys(range(5), (PATCHES // 2, PATCHES // 2)),
    patients=dict.fromkeys(range(5), PATIENTS),
    splits=(3 * PATCHES, 0),
)


def test_a_folder_with_other_counts_than_wilds_is_no_copy(camelyon: Path, tmp_path: Path) -> None:
    with pytest.raises(UserErrors, match=r"metadata\.csv: centre 4 has 20 patches with label 1, expected 73,361"):
        prepare.obtain(Data(dataset=Camelyon17(), synthetic=False), tmp_path, camelyon)
    assert list(tmp_path.iterdir()) == []


def test_an_unpacked_folder_in_the_mirror_is_linked(
    camelyon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camelyon17, "WILDS", COUNTS)
    real = Data(dataset=Camelyon17(), synthetic=False)
    prepare.obtain(real, tmp_path / "raw", camelyon)
    link = tmp_path / "raw" / FOLDER
    assert link.is_symlink()
    assert link.resolve() == (camelyon / FOLDER).resolve()
    assert read_json(tmp_path / "raw" / "source.json")["synthetic"] is False
    prepare.obtain(real, tmp_path / "raw", camelyon)  # again: it is there


def test_an_archive_of_another_size_is_refused(tmp_path: Path) -> None:
    mirror, raw = tmp_path / "mirror", tmp_path / "raw"
    mirror.mkdir()
    archive = mirror / f"{FOLDER}.tar.gz"
    archive.write_bytes(b"not it")
    with pytest.raises(UserError, match=r"size is 6, expected 10658709504; check this file of the mirror"):
        prepare.obtain(Data(dataset=Camelyon17(), synthetic=False), raw, mirror)
    assert list(raw.iterdir()) == []
    assert archive.is_file()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "metadata.csv").unlink(), "metadata.csv: no such file"),
        (lambda f: (f / "RELEASE_v1.0.txt").unlink(), "has no RELEASE_v1.0.txt"),
        (
            lambda f: (f / "metadata.csv").write_text((f / "metadata.csv").read_text().replace("center", "centre", 1)),
            "metadata.csv: no column 'center'",
        ),
    ],
)
def test_a_spoiled_archive_is_named(
    camelyon: Path, small: Camelyon17, tmp_path: Path, spoil: Callable[[Path], Any], words: str
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in ("metadata.csv", "RELEASE_v1.0.txt"):
        (folder / name).write_bytes((camelyon / FOLDER / name).read_bytes())
    spoil(folder)
    with pytest.raises(UserError, match=words):
        small.open(tmp_path)


# --- own images -----------------------------------------------------------------------------------------------------

GREY = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
COLOUR = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def picture(path: Path, pixels: np.ndarray = COLOUR, mode: str | None = None) -> None:
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)


def table(folder: Path, rows: list[dict[str, Any]] | str) -> Path:
    path = folder / "samples.csv"
    if isinstance(rows, str):
        path.write_text(rows, encoding="utf-8")
    else:
        pd.DataFrame(rows).to_csv(path, index=False)
    return path


REMEDY = "get it again, remove its row, or leave it out: dataset.skip_unreadable: true"


def two(folder: Path, **changes: list[Any]) -> Path:
    """A table of two good images, with other columns or cells."""
    for name in ("a.png", "b.png"):
        picture(folder / name)
    good = {"path": ["a.png", "b.png"], "label": [0, 1], "site": ["X", "Y"], "patient": ["p", "q"]}
    path = folder / "samples.csv"
    pd.DataFrame(good | changes).to_csv(path, index=False)
    return path


def own(path: Path, **settings: Any) -> Data:
    dataset = registry.build("dataset", {"name": "own_images", "table": path, "size": 8, **settings})
    return Data(dataset=dataset, synthetic=False)


def prepared(data: Data, folder: Path, mirror: Path | None = None) -> Prepared:
    prepare.obtain(data, folder / "raw", mirror)
    prepare.prepare(data, folder / "raw", folder / "out")
    return Prepared(folder / "out")


def test_images_of_many_formats_come_out_as_rgb(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.bmp")
    picture(tmp_path / "c.tiff")
    picture(tmp_path / "d.jpg")
    picture(tmp_path / "grey.png", GREY)
    picture(tmp_path / "alpha.png", mode="RGBA")
    picture(tmp_path / "palette.gif", GREY, mode="P")
    names = ["a.png", "b.bmp", "c.tiff", "d.jpg", "grey.png", "alpha.png", "palette.gif"]
    path = table(tmp_path, [{"path": n, "label": 0, "site": "X"} for n in names])
    made = prepared(own(path), tmp_path)
    assert made.images.shape == (7, 8, 8, 3)
    for i in (0, 1, 2, 5):
        np.testing.assert_array_equal(made.images[i], COLOUR, err_msg=names[i])
    assert np.abs(made.images[3].astype(int) - COLOUR).mean() < 60, "JPEG keeps the picture roughly"
    for i in (4, 6):
        np.testing.assert_array_equal(made.images[i], np.repeat(GREY[..., None], 3, axis=2), err_msg=names[i])
    assert made.samples["patient"].isna().all()


def test_faults_of_a_table_come_in_one_pass(tmp_path: Path) -> None:
    """Latin letters of Windows, a column that is missing, a wrong label, and a lost image; semicolons are no fault."""
    picture(tmp_path / "a.png")
    path = tmp_path / "samples.csv"
    path.write_bytes("path;label;Klinik\na.png;0;Z\xfcrich\nb.png;3;Ulm\n".encode("cp1252"))
    found = [fault.what for fault in own(path).dataset.examine(Path()).faults]
    assert len(found) == 4
    assert found[0].startswith("not a readable table file: 'utf-8' codec can't decode byte 0xfc")
    assert found[1] == "no column 'site'"
    assert found[2].startswith("label '3' is none of the 2 classes") and found[3].startswith("no such image")


def test_paths_of_windows_are_one_line(tmp_path: Path) -> None:
    names = [f"sub\\{n}.png" for n in range(30)]
    columns = {"path": names, "label": [0] * 30, "site": ["X"] * 30, "patient": ["p"] * 30}
    (fault,) = own(two(tmp_path, **columns)).dataset.examine(Path()).faults
    assert fault.what == f"no such image: {tmp_path / names[0]}, as in 29 more rows"
    assert fault.remedy == "write / between folders"


@pytest.mark.parametrize(("most", "told"), [(63, True), (64, False), (0, False)])
def test_a_site_that_uses_less_than_a_quarter_of_the_range_is_noted(tmp_path: Path, most: int, told: bool) -> None:
    """The image of X has values up to `most`, and that of Y up to 255."""
    path = two(tmp_path)
    picture(tmp_path / "a.png", np.full((8, 8, 3), most, np.uint8))
    picture(tmp_path / "b.png", np.full((8, 8, 3), 255, np.uint8))
    notes = prepared(own(path), tmp_path).card["notes"]
    assert any("lie below a quarter of the range at X (63 of 255), as" in note for note in notes) == told


def test_a_png_of_sixteen_bits_keeps_its_range(tmp_path: Path) -> None:
    deep = GREY.astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    path = table(tmp_path, [{"path": "deep.png", "label": 0, "site": "X"}])
    np.testing.assert_array_equal(prepared(own(path), tmp_path).images[0, ..., 0], GREY)


def deep(folder: Path, most: int) -> Data:
    """Own images of which one has 16 bits a pixel: 0 and, at one place, `most`."""
    pixels = np.zeros((8, 8), np.uint16)
    pixels[3, 5] = most
    Image.fromarray(pixels).save(folder / "deep.png")
    return own(table(folder, [{"path": "deep.png", "label": 0, "site": "X"}]))


@pytest.mark.parametrize("most", [1, 4095])
def test_twelve_bits_in_sixteen_are_refused(tmp_path: Path, most: int) -> None:
    """They would leave at most 15 of 255."""
    with pytest.raises(UserError, match=rf"deep\.png: .* brightest is {most} of 65535.*; rescale it .*, or export it"):
        prepared(deep(tmp_path, most), tmp_path)
    assert read_image(tmp_path / "deep.png").max() == most >> 8, "published images are as they are"


@pytest.mark.parametrize(("most", "kept"), [(0, 0), (4096, 16)])
def test_sixteen_bits_that_are_black_or_use_more_than_twelve_are_not(tmp_path: Path, most: int, kept: int) -> None:
    assert prepared(deep(tmp_path, most), tmp_path).images.max() == kept


def test_own_images_are_turned_as_their_camera_says(tmp_path: Path) -> None:
    """Orientation 6 is 'row 0 is the right-hand side, column 0 the top' in the standard: a turn to the right."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(COLOUR).save(tmp_path / "turned.png", exif=exif)
    path = table(tmp_path, [{"path": "turned.png", "label": 0, "site": "X"}])
    np.testing.assert_array_equal(prepared(own(path), tmp_path).images[0], COLOUR[::-1].transpose(1, 0, 2))
    np.testing.assert_array_equal(read_image(tmp_path / "turned.png"), COLOUR, "published images are as they are")


def test_a_depth_that_would_be_clipped_is_refused(tmp_path: Path) -> None:
    Image.fromarray(GREY.astype(np.int32) * 1000).save(tmp_path / "deep.tiff")
    path = table(tmp_path, [{"path": "deep.tiff", "label": 0, "site": "X"}])
    with pytest.raises(UserError, match=r"deep\.tiff: has 32 bits a pixel, and no window; write one"):
        prepared(own(path), tmp_path)


def test_images_that_are_not_square_are_scaled_and_cropped_at_the_centre(tmp_path: Path) -> None:
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    picture(tmp_path / "wide.png", wide)
    picture(tmp_path / "tall.png", wide.transpose(1, 0, 2))
    path = table(tmp_path, [{"path": n, "label": 0, "site": "X"} for n in ("wide.png", "tall.png")])
    made = prepared(own(path), tmp_path)
    assert made.images.shape == (2, 8, 8, 3)
    assert (made.images[:, 2:6, 2:6] >= 199).all(), "the middle third is what is left"


@pytest.mark.parametrize("labels", [["benign", "malignant"], [0, 1], ["0", "malignant"], [0.0, 1.0]])
def test_labels_are_names_or_numbers_of_classes(tmp_path: Path, labels: list[Any]) -> None:
    made = prepared(own(two(tmp_path, label=labels), classes=["benign", "malignant"]), tmp_path)
    assert made.samples["label"].tolist() == [0, 1]
    assert made.classes == ("benign", "malignant")


def test_sites_and_patients_keep_their_names(tmp_path: Path) -> None:
    made = prepared(own(two(tmp_path, site=["NA", "01"], patient=["007", None])), tmp_path)
    assert made.samples["site"].tolist() == ["NA", "01"]
    assert made.samples["patient"].isna().tolist() == [False, True]
    assert made.samples["patient"][0] == "007"


def test_rows_without_a_patient_are_one_each_where_the_study_says_so(tmp_path: Path) -> None:
    path = two(tmp_path, patient=["p", None])
    made = prepared(own(path, one_image_a_patient=True), tmp_path)
    assert made.samples["patient"].tolist() == ["p", "b.png"]
    assert own(path).dataset.identity() != own(path, one_image_a_patient=True).dataset.identity()
    assert "one_image_a_patient" not in own(path).dataset.identity()


def test_two_images_of_a_patient_refute_what_the_study_says(tmp_path: Path) -> None:
    data = own(two(tmp_path, patient=["007", "7.0"]), one_image_a_patient=True)
    (fault,) = data.dataset.examine(Path()).faults
    assert str(fault).endswith(
        "samples.csv, line 3: patient '007' is that of " + f"{tmp_path}/samples.csv, line 2 too; "
        "correct it, or remove dataset.one_image_a_patient"
    )


def test_numbers_are_names_and_keep_their_zeros(tmp_path: Path) -> None:
    path = two(tmp_path)
    table(tmp_path, "path,label,site,patient\na.png,0,01,007\nb.png,1,1,\n")
    made = prepared(own(path), tmp_path)
    assert made.samples["patient"].isna().tolist() == [False, True]
    assert made.samples["patient"][0] == "007"
    assert made.samples["site"].tolist() == ["01", "1"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"path": ["a.png", "c.png"]},
            "samples.csv, line 3: no such image: .*c.png; get it again, remove its row",
        ),
        ({"path": ["a.png", "cut.png"]}, "cut.png: cannot be read as an image"),
        ({"path": ["a.png", "text.png"]}, "text.png: cannot be read as an image"),
        ({"path": ["a.png", "a.png"]}, "line 3: 'a.png' is the image of .*samples.csv, line 2; list it once"),
        ({"path": ["a.png", "./a.png"]}, "line 3: './a.png' is the image of .*samples.csv, line 2; list it once"),
        ({"path": ["sub\\a.png", "b.png"]}, "line 2: no such image: .*; write / between folders"),
        ({"path": ["a.png", None]}, "samples.csv, line 3: path is empty"),
        ({"label": [0, 2]}, "samples.csv, line 3: label '2' is none of the 2 classes .negative, positive."),
        ({"label": ["negative", "benign"]}, "samples.csv, line 3: label 'benign' is none of the 2 classes"),
        ({"label": [None, 1]}, "samples.csv, line 2: label is empty"),
        ({"site": ["X", None]}, "samples.csv, line 3: site is empty"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_half_written(
    tmp_path: Path, changes: dict[str, list[Any]], words: str
) -> None:
    path = two(tmp_path, **changes)
    picture(tmp_path / "cut.png", np.random.default_rng(1).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    cut(tmp_path / "cut.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "raw").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=words) as caught:
        prepare.prepare(own(path), tmp_path / "raw", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label,site\n\na.png,0,X\n \nb.png,2,Y\n", "samples.csv, line 5: label '2' is none of"),
        ('path,label,site\na.png,0,"X\nY"\n\nb.png,,Y\n', "samples.csv, line 5: label is empty"),
        ("path,label,site\na.png,0,X\n\nc.png,1,Y\n", "samples.csv, line 4: no such image"),
        (
            "path,label,site\n\na.png,0,St. Mary, Boston\n",
            "samples.csv, line 3: has 4 cells, but the header has 3",
        ),
        ("path,label,label,site\na.png,0,1,X\n", "samples.csv, line 1: the column 'label' appears twice; rename"),
        ("path,label,site,Label \na.png,0,X,1\n", "samples.csv, line 1: the column 'label' appears twice; rename"),
        (
            "path;label;site\na.png;2;St. Mary, Boston\n",
            "samples.csv, line 2: label '2' is none of",
        ),
    ],
)
def test_a_table_is_read_as_it_stands_or_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    two(tmp_path)
    with pytest.raises(UserError) as caught:
        own(table(tmp_path, text)).dataset.open(tmp_path)
    assert words in str(caught.value)


def test_a_cell_with_a_comma_in_quotes_is_one_cell(tmp_path: Path) -> None:
    two(tmp_path)
    path = table(tmp_path, 'path,label,site,\na.png,0,"St. Mary, Boston",\nb.png,1,"a\nb"\n')
    assert prepared(own(path), tmp_path).samples["site"].tolist() == ["St. Mary, Boston", "a\nb"]


@pytest.mark.parametrize("coding", ["latin-1", "utf-16-le"])
def test_a_table_in_another_coding_is_told_so(tmp_path: Path, coding: str) -> None:
    path = two(tmp_path)
    path.write_text("path,label,site\na.png,0,Zürich\nb.png,1,Y\n", encoding=coding)
    with pytest.raises(UserError, match=r"samples.csv.*: not a readable table file: .*; save it as UTF-8"):
        own(path).dataset.open(tmp_path)


def test_a_table_in_parquet_is_read_as_one_in_csv(tmp_path: Path) -> None:
    rows = {"Path": ["a.png", "b.png"], "label": [0.0, 1.0], "site": [1, 2], "patient": ["p", None]}
    two(tmp_path)
    pd.DataFrame(rows).to_parquet(tmp_path / "samples.parquet")
    made = prepared(own(tmp_path / "samples.parquet"), tmp_path)
    assert made.samples["label"].tolist() == [0, 1]
    assert made.samples["site"].tolist() == ["1", "2"]
    assert made.samples["patient"].isna().tolist() == [False, True]
    pd.DataFrame(rows | {"label": [0.0, None]}).to_parquet(tmp_path / "samples.parquet")
    with pytest.raises(UserError, match=r"samples.parquet, row 2: label is empty"):
        own(tmp_path / "samples.parquet").dataset.open(tmp_path)


@pytest.mark.parametrize("head", ["path", "Path", " path", "PATH "])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_image_put_in_anothers_place_is_noticed(tmp_path: Path, head: str, suffix: str) -> None:
    two(tmp_path)
    path = tmp_path / f"samples.{suffix}"
    write_table(path, pd.DataFrame({head: ["a.png", "b.png"], "label": [0, 1], "site": ["X", "Y"]}))
    dataset = own(path).dataset
    before = dataset.fingerprint()
    assert before == dataset.fingerprint()
    picture(tmp_path / "b.png", GREY)
    assert before != dataset.fingerprint()


@pytest.mark.parametrize("column", ["path", "label", "site"])
def test_a_column_that_is_missing_is_named(tmp_path: Path, column: str) -> None:
    path = two(tmp_path)
    pd.read_csv(path).drop(columns=column).to_csv(path, index=False)
    with pytest.raises(UserError, match=rf"samples.csv: no column '{column}'; it has "):
        own(path).dataset.open(tmp_path)


def test_all_images_that_cannot_be_read_are_named_at_once(tmp_path: Path) -> None:
    picture(tmp_path / "good.png", GREY)
    picture(tmp_path / "cut.png", GREY)
    cut(tmp_path / "cut.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    names = ("empty.png", "good.png", "cut.png", "text.png")
    path = table(tmp_path, [{"path": name, "label": 0, "site": "X"} for name in names])
    with pytest.raises(UserErrors) as caught:
        prepared(own(path), tmp_path)
    first, *others = str(caught.value).splitlines()
    assert first == f"{tmp_path}/empty.png: the file is empty; {REMEDY}"
    wanted = [f"{tmp_path}/{name}: cannot be read as an image" for name in ("cut.png", "text.png")]
    assert [line.partition(" (")[0] for line in others] == wanted


def test_all_faults_of_a_table_are_named_at_once(tmp_path: Path) -> None:
    two(tmp_path)
    path = table(tmp_path, "path,label,site\na.png,Positive,X\nb.png,,X\nlost.png,1,\na.png,1,X\nb.png,,X\n")
    with pytest.raises(UserErrors) as caught:
        own(path).dataset.open(tmp_path)
    assert str(caught.value).splitlines() == [
        f"{path}, line 3: label is empty, as in one more row; fill it in",
        f"{path}, line 4: site is empty; fill it in",
        f"{path}, line 2: label 'Positive' is none of the 2 classes (negative, positive); write 'positive'",
        f"{path}, line 4: no such image: {tmp_path}/lost.png; {REMEDY}",
        f"{path}, line 5: 'a.png' is the image of {path}, line 2; list it once",
        f"{path}, line 6: 'b.png' is the image of {path}, line 3; list it once",
    ]


def test_of_many_lost_images_twenty_are_named_and_the_others_counted(tmp_path: Path) -> None:
    path = table(tmp_path, [{"path": f"{n}.png", "label": 0, "site": "X"} for n in range(25)])
    with pytest.raises(UserErrors) as caught:
        own(path).dataset.open(tmp_path)
    *named, rest = str(caught.value).splitlines()
    assert [line.partition(": ")[0] for line in named] == [f"{path}, line {n + 2}" for n in range(20)]
    assert rest == f"{path}: 5 more like these"


def test_a_table_with_a_header_alone_is_told_so(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label,site\n")
    with pytest.raises(UserError) as caught:
        own(path).dataset.open(tmp_path)
    assert str(caught.value) == f"{path}: has no rows below its header; list each image in a row"


@pytest.mark.parametrize("text", ["", "path,label,site\n"])
def test_a_table_without_rows_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="samples"):
        prepared(own(table(tmp_path, text)), tmp_path)


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.csv: no such file"):
        prepared(own(tmp_path / "nowhere.csv"), tmp_path)


def test_what_was_prepared_before_survives_a_failure(tmp_path: Path) -> None:
    path = two(tmp_path)
    prepared(own(path), tmp_path)
    before = leaves(tmp_path / "out")
    cut(tmp_path / "b.png")
    with pytest.raises(UserError, match=r"b\.png"):
        prepare.prepare(own(path), tmp_path / "raw", tmp_path / "out")
    assert leaves(tmp_path / "out") == before


def pack(path: Path, *more: tuple[str, bytes]) -> str:
    """An archive of the two good images and their table, and more members; its sha256."""
    content = io.BytesIO()
    picture(png := path.parent / "one.png")
    members = [("own/a.png", png.read_bytes()), ("own/b.png", png.read_bytes())]
    members.append(("own/samples.csv", b"path,label,site\na.png,0,X\nb.png,1,Y\n"))
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, body in (*members, *more):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    png.unlink()
    path.write_bytes(content.getvalue())
    return hashlib.sha256(content.getvalue()).hexdigest()


def packed(sha256: str | None = None) -> Data:
    return own(Path("own/samples.csv"), archive="own.tar", sha256=sha256)


def test_an_archive_of_the_mirror(tmp_path: Path) -> None:
    (mirror := tmp_path / "mirror").mkdir()
    checksum = pack(mirror / "own.tar")
    made = prepared(packed(checksum), tmp_path, mirror)
    assert made.samples["site"].tolist() == ["X", "Y"]
    np.testing.assert_array_equal(made.images[0], COLOUR)
    assert made.card["source"] == "own.tar"
    assert [p.name for p in mirror.iterdir()] == ["own.tar"]


@pytest.mark.parametrize("given", [None, "mirror", "nowhere"])
def test_an_archive_that_is_not_in_the_mirror(tmp_path: Path, given: str | None) -> None:
    (tmp_path / "mirror").mkdir()
    with pytest.raises(UserError, match=r"(own.tar: no lasting address is known|no such mirror directory).*mirror=DIR"):
        prepare.obtain(packed(), tmp_path / "raw", given and tmp_path / given)  # type: ignore[arg-type]
    assert leaves(tmp_path / "raw") == {}


def test_an_archive_of_another_content(tmp_path: Path) -> None:
    pack(tmp_path / "own.tar")
    with pytest.raises(UserError, match=rf"own.tar: sha256 is [0-9a-f]{{64}}, expected {'0' * 64}"):
        prepare.obtain(packed("0" * 64), tmp_path / "raw", tmp_path)
    assert leaves(tmp_path / "raw") == {}


def test_an_archive_that_climbs_out(tmp_path: Path) -> None:
    pack(tmp_path / "own.tar", ("own/../../../evil.txt", b"!"))
    with pytest.raises(UserError, match=r"own.tar: member '.*evil.txt' leads out of the folder; nothing was unpacked"):
        prepare.obtain(packed(), tmp_path / "raw", tmp_path)
    assert leaves(tmp_path / "raw") == {}
    assert not list(tmp_path.rglob("evil.txt"))


def test_own_files_are_inputs_and_those_of_an_archive_are_not(tmp_path: Path) -> None:
    path = two(tmp_path)
    assert own(path).dataset.inputs() == (path,)
    images = {name: tmp_path / name for name in ("a.png", "b.png")}
    assert own(path).dataset.own_files() == {"table": path, **images}
    assert packed().dataset.own_files() == {}
    assert packed().dataset.fingerprint() == ""
    assert packed().dataset.inputs() == ()


# --- every dataset --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(registry.discover("dataset")))
def test_every_dataset_has_a_card_and_classes(name: str) -> None:
    settings = {"table": "samples.csv"} if name == OwnImages.name else {}
    dataset = registry.build("dataset", {"name": name, **settings})
    card = dataset.card()
    assert card.title
    assert card.source
    assert card.licence
    assert len(dataset.classes) >= 2
