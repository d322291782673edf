"""Slides cut into patches: what is written, from which squares, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openslide
import pandas as pd
import pytest
import yaml
from PIL import Image
from slide_files import PINK, WHITE, asap, disc, inside_disc, square

from fedshift import study
from fedshift.cli import main
from fedshift.core.errors import UserError
from fedshift.datasets.own_images import OwnImages
from fedshift.slides.annotations import GROUPS
from fedshift.slides.squares import Chosen, Grid, Labelled, Pyramid, Settings, choose, label, on_white, opened

STUDY: dict[str, Any] = {
    "title": "Tumour on slides",
    "dataset": {"name": "own_images", "table": "patches/images.csv", "size": 16, "classes": ["normal", "tumour"]},
    "partition": {"internal": ["A", "B"], "external": ["C"]},
    "model": "mlp",
    "training": {"rounds": 2, "batch_size": 4, "lr": 0.01},
    "runs": [{"algorithm": "fedavg"}],
    "inferences": ["source"],
    "metrics": ["accuracy", "auc"],
    "figures": ["sites"],
}
HEAD = "slide,annotation,site,patient"
APERIO = "Aperio Image Library v11.2.1\r\n2048x2048 [0,0 2048x2048] (256x256) J2K/YUV16 Q=70|AppMag = 40"


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe's slide and its annotation, and with a slide that does not say how large a pixel is."""
    folder = tmp_path_factory.mktemp("slides")
    disc(folder / "one.tif")
    disc(folder / "unknown.svs", None, APERIO)
    asap(folder / "one.xml", ("Tumor", square(640, 1024)))
    return folder


def table(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "slides.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def patches(folder: Path, out: Path, *options: str) -> int:
    return main(["patches", str(folder / "slides.csv"), str(out), *options])


@pytest.fixture(scope="module")
def cut(slides: Path) -> Path:
    table(slides, "one.tif,one.xml,north,p1,S60", head=f"{HEAD},scanner")
    assert patches(slides, slides / "out") == 0
    return slides / "out"


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# ---- the recipe's slide


def test_the_recipe_has_9_squares_of_tumour_and_123_normal_ones(cut: Path) -> None:
    rows = pd.read_csv(cut / "images.csv")
    assert rows["label"].value_counts().to_dict() == {"normal": 123, "tumour": 9}
    shares = inside_disc().reshape(16, 128, 16, 128).mean((1, 3))
    tumour = np.zeros((16, 16), bool)
    tumour[5:8, 5:8] = True
    for name, expected in (("tumour", tumour), ("normal", (shares > 0.2) & ~tumour)):
        squares = rows[rows["label"] == name]
        places = np.stack([squares["y"], squares["x"]], 1) / 128 + 1  # a patch begins a square before its middle
        assert places.tolist() == np.argwhere(expected).tolist()
        assert np.abs(squares["tissue_fraction"] - shares[expected]).max() <= 0.05
        assert (squares["tumour_fraction"] == (name == "tumour")).all()


def test_each_row_names_a_patch_as_it_is_on_the_slide(cut: Path) -> None:
    rows = pd.read_csv(cut / "images.csv")
    first = "path,label,site,patient,slide,x,y,mpp,tumour_fraction,tissue_fraction,weight,scanner"
    assert ",".join(rows.columns) == first
    fixed = rows[["site", "patient", "slide", "mpp", "weight", "scanner"]].drop_duplicates()
    assert fixed.to_numpy().tolist() == [["north", "p1", "one", 1.0, 1.0, "S60"]]
    colours = np.where(inside_disc()[..., None], PINK, WHITE)
    for row in rows.iloc[[0, 40, -1]].itertuples():
        assert row.path == f"north/p1/one_{row.x}_{row.y}.png"
        with Image.open(cut / str(row.path)) as image:
            assert (image.size, image.mode, image.info) == ((96, 96), "RGB", {})
            expected = colours[row.y : row.y + 384, row.x : row.x + 384].reshape(96, 4, 96, 4, 3).mean((1, 3))
            assert np.abs(np.asarray(image) - expected).max() <= 0.5
    assert len(list(cut.rglob("one_*.png"))) == len(rows)


def test_the_account_says_how(cut: Path) -> None:
    account = json.loads((cut / "patches.json").read_text())
    assert account["versions"]["openslide"] == openslide.__library_version__
    assert account["settings"]["groups"] == GROUPS and account["settings"]["per_slide"] == 2000
    (slide,) = account["slides"]
    assert (slide["vendor"], slide["mpp"], slide["level"]) == ("generic-tiff", 0.25, 2)
    assert slide["squares"] == slide["patches"] == {"tumour": 9, "normal": 123}
    assert slide["areas"] == {"tumour": 1, "hole": 0, "ignore": 0} and slide["warnings"] == []
    assert abs(slide["tissue"] - inside_disc().mean()) < 0.001


def test_the_contact_sheet_shows_tissue_and_tumour_where_they_are(cut: Path) -> None:
    with Image.open(cut / "contact-north.png") as image:
        picture = np.asarray(image)[23 : 23 + 128, 8 : 8 + 128].astype(int)
    assert np.abs(picture[24, 64] - PINK).max() <= 2 and np.abs(picture[3, 3] - WHITE).max() <= 2
    tumour = picture[41:63, 41:63]
    assert (tumour[..., 2] < 120).all(), "orange over pink"
    assert (picture[66:100, 40:64, 2] > 120).all()


def test_the_dataset_reads_the_table(cut: Path) -> None:
    data = OwnImages(table=cut / "images.csv", classes=("normal", "tumour"))
    examined = data.examine(Path())
    assert not examined.faults and examined.samples["label"].value_counts().to_dict() == {0: 123, 1: 9}


def test_a_folder_that_is_there_stays_as_it_is(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(cut)
    assert patches(cut.parent, cut) == 2
    assert "is there already; name a folder that is not there" in capsys.readouterr().err
    assert digests(cut) == before


# ---- sampling, pseudonyms


def test_further_slides_change_nothing_and_the_seed_does(slides: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copy(slides / "one.tif", tmp_path / f"{name}.tif")
        shutil.copy(slides / "one.xml", tmp_path / f"{name}.xml")
    one, two = "one.tif,one.xml,north,p1", "two.tif,two.xml,north,p2"
    for out, rows, seed in (("a", [one], 0), ("b", [two, one], 0), ("c", [one], 1)):
        table(tmp_path, *rows)
        assert patches(tmp_path, tmp_path / out, "--per-slide", "20", "--seed", str(seed)) == 0
    a, b, c = (digests(tmp_path / out / "north" / "p1") for out in "abc")
    assert a == b != c and len(a) == 20
    two_of_b = {name.removeprefix("two") for name in digests(tmp_path / "b" / "north" / "p2")}
    assert two_of_b != {name.removeprefix("one") for name in a}, "each slide has a draw of its own"
    rows = pd.read_csv(tmp_path / "a" / "images.csv").groupby("label")["weight"].agg(["size", "first"])
    assert rows.loc["tumour"].tolist() == [9, 1.0] and rows.loc["normal"].tolist() == [11, 123 / 11]


def test_slides_that_are_cut_at_the_same_time_come_to_the_same_bytes(slides: Path, tmp_path: Path) -> None:
    names = [f"{site}{n}" for site in ("north", "south") for n in range(3)]
    for name in names:
        shutil.copy(slides / "one.tif", tmp_path / f"{name}.tif")
        shutil.copy(slides / "one.xml", tmp_path / f"{name}.xml")
    table(tmp_path, *(f"{name}.tif,{name}.xml,{name[:-1]},{name}" for name in names))
    for threads in "14":
        assert patches(tmp_path, tmp_path / threads, "--per-slide", "20", "--threads", threads) == 0
    assert digests(tmp_path / "1") == digests(tmp_path / "4")
    assert {"contact-north.png", "contact-south.png", "images.csv"} <= digests(tmp_path / "4").keys()


def test_a_slide_that_cannot_be_read_ends_all_of_them(
    slides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is found in the middle of the work: its header is sound, and a region of it is not."""
    for name in ("one", "two", "three"):
        shutil.copy(slides / "one.tif", tmp_path / f"{name}.tif")
    table(tmp_path, *(f"{name}.tif,,north,{name},normal" for name in ("one", "two", "three")), head=f"{HEAD},label")
    read = Pyramid.read

    def broken(self: Pyramid, *args: Any) -> np.ndarray:
        if self.path.stem == "two":
            raise UserError(self.path, "cannot be read", "scan it again")
        return read(self, *args)

    monkeypatch.setattr(Pyramid, "read", broken)
    assert patches(tmp_path, tmp_path / "out", "--threads", "2") == 2
    assert "two.tif: cannot be read; scan it again" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one.tif", "slides.csv", "three.tif", "two.tif"]


def test_pseudonyms_need_the_key(slides: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(slides, "one.tif,one.xml,north,Ada Lovelace")
    options = ("--per-slide", "10", "--pseudonyms", str(tmp_path / "key"))
    assert patches(slides, tmp_path / "a", *options) == patches(slides, tmp_path / "b", *options) == 0
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    written = "".join(digests(tmp_path / "a")) + "".join(
        path.read_bytes().decode("latin-1") for path in (tmp_path / "a").rglob("*") if path.is_file()
    )
    assert "Lovelace" not in written and "one_" not in written
    rows = pd.read_csv(tmp_path / "a" / "images.csv", dtype=str)
    assert rows["patient"].str.fullmatch("[0-9a-f]{12}").all() and rows["patient"].nunique() == 1
    assert patches(slides, tmp_path / "c", "--per-slide", "10", "--pseudonyms", str(tmp_path / "other")) == 0
    other = pd.read_csv(tmp_path / "c" / "images.csv", dtype=str)
    assert set(other["patient"]).isdisjoint(rows["patient"]) and (other["x"] == rows["x"]).all()
    (tmp_path / "short").write_text("secret\n")
    assert patches(slides, tmp_path / "d", "--pseudonyms", str(tmp_path / "short")) == 2
    assert patches(slides, tmp_path / "d", "--pseudonyms", str(tmp_path / "d" / "key")) == 2
    error = capsys.readouterr().err
    assert "too few for a secret" in error and "is inside the folder that is written" in error
    assert not (tmp_path / "d").exists()


# ---- rules of squares


def grid(**settings: Any) -> Grid:
    return Grid(Settings(size=8, core=4, mask_mpp=2, **settings), scale=1.0, size=(24, 24))


def labelled(tumour: np.ndarray, ignored: np.ndarray | None = None, **settings: Any) -> Labelled:
    return label(grid(**settings), tumour, np.ones((12, 12), bool), ignored)


def test_any_tumour_is_tumour_unless_a_share_is_asked_for() -> None:
    tumour = np.zeros((12, 12), bool)
    tumour[4, 4] = tumour[4:6, 6:8] = True
    any_tumour, half = labelled(tumour), labelled(tumour, tumour_share=0.5)
    assert np.argwhere(any_tumour.tumour).tolist() == [[2, 2], [2, 3]]
    assert np.argwhere(half.tumour).tolist() == [[2, 3]]
    assert any_tumour.tumour_share[2, 2] == 0.25
    assert not half.normal[2, 2], "a square with less tumour than asked for is left out, and not normal"
    assert (any_tumour.normal.sum(), half.normal.sum()) == (14, 14)


def test_squares_of_an_ignored_area_and_at_the_rim_are_left_out() -> None:
    ignored = np.zeros((12, 12), bool)
    ignored[5, 5] = True
    squares = labelled(np.zeros((12, 12), bool), ignored)
    expected = np.zeros((6, 6), bool)
    expected[1:5, 1:5] = True  # a patch reaches half a square beyond its middle
    expected[2, 2] = False
    assert np.array_equal(squares.normal, expected)


@pytest.mark.parametrize(
    ("tumours", "normals", "most", "expected"),
    [(30, 30, 20, (10, 10)), (3, 30, 20, (3, 17)), (30, 3, 20, (17, 3)), (3, 4, 20, (3, 4)), (0, 9, 1, (0, 1))],
)
def test_half_are_tumour_where_both_labels_suffice(tumours: int, normals: int, most: int, expected: Any) -> None:
    tumour, normal = np.zeros((2, 8, 8), bool)
    tumour.ravel()[:tumours], normal.ravel()[-normals:] = True, True
    drawn = choose(Labelled(np.zeros((8, 8)), np.zeros((8, 8)), tumour, normal), Settings(per_slide=most), "a")
    numbers = {squares.label: (len(squares.places), squares.weight) for squares in drawn}
    wanted = {"tumour": (expected[0], tumours), "normal": (expected[1], normals)}
    assert numbers == {name: (count, all_ / count) for name, (count, all_) in wanted.items() if count}
    assert all(len(np.unique(part.places, axis=0)) == len(part.places) for part in drawn)
    assert all(isinstance(part, Chosen) for part in drawn)


# ---- slides


def test_what_was_not_scanned_is_white() -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (200, 100, 160, 255))
    assert np.asarray(on_white(image)).tolist() == [[[255, 255, 255], [200, 100, 160]]]
    assert np.asarray(on_white(Image.new("RGB", (1, 1), (9, 8, 7)))).tolist() == [[[9, 8, 7]]]


def test_regions_are_read_at_any_scale(slides: Path) -> None:
    colours = np.where(inside_disc()[..., None], PINK, WHITE)
    with opened(slides / "one.tif") as pyramid:
        assert isinstance(pyramid, Pyramid) and pyramid.mpp == 0.25
        for scale, level in ((1, 0), (3, 1), (4, 2), (5, 2), (16, 3)):
            assert pyramid.level(scale) == level
            size = 512 // scale
            region = pyramid.read(250, 300, size, size, scale, Image.Resampling.BOX)
            part = colours[300 : 300 + size * scale, 250 : 250 + size * scale]
            expected = part.reshape(size, scale, size, scale, 3).mean((1, 3))
            assert np.abs(region - expected).mean() < 0.6, f"scale {scale}"
        outside = pyramid.read(-64, -64, 16, 16, 4, Image.Resampling.LANCZOS)
        assert (outside == 255).all()


def test_a_size_in_the_table_takes_the_place_of_one_in_the_file(slides: Path, tmp_path: Path) -> None:
    table(slides, "unknown.svs,one.xml,north,p1,0.5", head=f"{HEAD},mpp")
    assert patches(slides, tmp_path / "out", "--per-slide", "4") == 0
    (slide,) = json.loads((tmp_path / "out" / "patches.json").read_text())["slides"]
    assert (slide["vendor"], slide["mpp"], slide["mpp_of_file"], slide["level"]) == ("aperio", 0.5, None, 1)
    table(slides, "one.tif,one.xml,north,p1,0.5", head=f"{HEAD},mpp")
    assert patches(slides, tmp_path / "more", "--per-slide", "4") == 0
    (slide,) = json.loads((tmp_path / "more" / "patches.json").read_text())["slides"]
    assert slide["warnings"] == ["mpp 0.5 in the table, 0.25 in the file"]


# ---- faults


def test_a_slide_that_does_not_say_its_pixel_size_is_refused(
    slides: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with openslide.OpenSlide(slides / "unknown.svs") as slide:
        assert slide.properties["openslide.vendor"] == "aperio" and "openslide.mpp-x" not in slide.properties
    path = table(slides, "one.tif,one.xml,north,p1", "unknown.svs,one.xml,north,p2")
    assert patches(slides, tmp_path / "out") == 2
    assert capsys.readouterr().err == (
        f"{path}, line 3: {slides / 'unknown.svs'}: does not say how many micrometres a pixel has; "
        "ask who scanned it, and write the size into the column mpp\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_faults_of_all_rows_are_named_at_once(slides: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disc(slides / "dots.tif", 352.8, side=512)
    disc(slides / "half.tif", 0.5, side=1024)
    Image.new("RGB", (600, 600)).save(slides / "photo.png")
    asap(slides / "far.xml", ("Tumor", square(4000, 5000)))
    asap(slides / "none.xml", ("normal", square(640, 1024)))
    asap(slides / "names.xml", ("Necrosis", square(320, 512)))
    rows = {
        "one.tif,,north,p1,,": "has no annotation, and no label normal",
        "lost.tif,one.xml,north,p2,,": "no such slide",
        "dots.tif,one.xml,north,p3,,": "says that a pixel has 352.8 micrometres",
        "one.tif,far.xml,north,p4,,": "outside of its slide",
        "photo.png,one.xml,north,p5,,": "is not a whole slide that OpenSlide reads",
        "half.tif,names.xml,north,p6,,": "names have no role: 'Necrosis' (1)",
        "unknown.svs,none.xml,north,p7,0.25,": "has no area of tumour",
        "unknown.svs,one.xml,north,p8,0.25,": "is the slide of",
        "unknown.svs,one.xml,north,,0.25,": "patient is empty",
        "unknown.svs,one.xml,a/b,p9,0.25,": "cannot be the name of a folder",
        "unknown.svs,one.xml,north,p9,0x25,": "mpp '0x25' is not a number",
        "unknown.svs,one.xml,north,p9,,benign": "label 'benign' is none of normal, tumour",
    }
    table(slides, *rows, head=f"{HEAD},mpp,label")
    assert patches(slides, tmp_path / "out") == 2
    error = capsys.readouterr().err.splitlines()
    for line, words in enumerate(rows.values(), start=2):
        assert any(f"line {line}: " in text and words in text for text in error), (line, words, error)
    assert len(error) == len(rows) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ("one.tif,one.xml,north,p1,normal", (), "has tumour, but the label of its slide is normal"),
        ("one.tif,lost.xml,north,p1,", (), "no such file"),
        ("one.tif,one.xml,north,p1,", ("--mpp", "0.2"), "0.25 micrometres per pixel, which is coarser than --mpp 0.2"),
        ("one.tif,one.xml,north,p1,", ("--size", "1024"), "is smaller than a patch: 2048 x 2048"),
        ("one.tif,one.xml,north,p1,", ("--core", "31"), "--core: must be a value that differs from --size by an even"),
        ("one.tif,one.xml,north,p1,", ("--tissue", "wool"), "--tissue: must be a value that is otsu, or"),
        ("one.tif,one.xml,north,p1,", ("--groups", "Tumor=tumor"), "is not NAME=ROLE; did you mean 'tumour'?"),
        ("one.tif,,north,p1,normal", ("--tissue", "250"), "no slide has a single square"),
    ],
)
def test_what_is_refused(
    slides: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, options: tuple[str, ...], words: str
) -> None:
    table(slides, row, head=f"{HEAD},label")
    assert patches(slides, tmp_path / "out", *options) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---- a study


@pytest.mark.slow
def test_the_table_trains_through_to_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "slides"
    folder.mkdir()
    disc(folder / "disc.tif", side=1024)
    asap(folder / "a.xml", ("Tumor", square(320, 512)))
    rows = list[str]()
    for site in "ABC":
        for patient in range(6):
            shutil.copy(folder / "disc.tif", folder / f"{site}{patient}.tif")
            rows.append(f"{site}{patient}.tif,a.xml,{site},{site}{patient}")
    table(folder, *rows)
    options = ("--size", "32", "--core", "16", "--per-slide", "6")
    assert patches(folder, tmp_path / "patches", *options) == 0
    monkeypatch.chdir(tmp_path)
    Path("cut.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    plan = study.load(Path("cut.yaml"), "mini")
    (data,), (run,) = plan.data.values(), plan.runs.values()
    jobs = [("download", data.raw), ("prepare", data.id), ("partition", run.partition_id)]
    jobs += [("control", key) for key in plan.controls]
    jobs += [("train", run.id), ("predict", run.id, *plan.sweeps)]
    for command, *ids in jobs:
        assert main([command, "cut.yaml", *ids]) == 0, command
    assert main(["ledger", "cut.yaml", "--write"]) == main(["report", "cut.yaml"]) == 0
    page = Path("reports", "cut.html").read_text(encoding="utf-8")
    assert "Tumour on slides" in page
    scores = pd.read_csv(Path("results", "studies", "cut", "scores.csv"))
    assert set(scores.loc[scores["metric"] == "accuracy", "site"]) >= {"A", "B", "C"}
