"""A trained run on new images: the answers that its study would give, and a page that says what they are worth."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from outline import Outline
from own_images import CLASSES, SITES, Project, listing, rows
from patience import PATIENCE
from PIL import Image
from pydicom.data import get_testdata_file

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.data.prepared import Prepared
from fedshift.io import disk
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.paths import RunFiles
from fedshift.io.tables import read_table, write_table
from fedshift.jobs import apply as job
from fedshift.jobs.apply import Applied, apply, chosen, images_of_study
from fedshift.jobs.image_files import FileSamples, ImageFiles, looks
from fedshift.jobs.predict import load_run, predict
from fedshift.jobs.prepare import prepare
from fedshift.page import applied as page
from fedshift.page.applied import NewClasses, at_home, likeness, outside
from fedshift.page.html import Lead, Light
from fedshift.study.run import Run


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


P = ["p0", "p1"]
WRITTEN = [f"p_{name}" for name in CLASSES]


# ---- the same answers as in the study


@pytest.mark.parametrize(("site", "client"), [("far", None), ("north", "north")])
@pytest.mark.parametrize("inference", ["source", "tsmobn", "population"])
def test_a_site_of_the_study_gets_the_bits_of_its_prediction(
    trained_project: Project, tmp_path: Path, site: str, client: str | None, inference: str
) -> None:
    known = next(i for i in trained_project.plan.inferences.values() if i.name == inference)
    predict(trained_project.folder(), {inference: known}, trained_project.paths, tmp_path / "wanted.parquet")
    wanted = read_table(tmp_path / "wanted.parquet").query("site == @site")
    table = rows(trained_project).set_index("path").loc[wanted["sample"]].reset_index()
    settings = [f"{k}={v}" for k, v in known.model_dump(exclude_defaults=True).items()]
    trained_project.apply(
        listing(trained_project, "one.csv", table), inference, *settings, client=client, out=tmp_path / "out"
    )
    found = read_table(tmp_path / "out" / "predictions.csv")
    assert list(found) == ["path", "label", "site", "patient", "predicted", *WRITTEN]
    assert found["path"].tolist() == wanted["sample"].tolist()
    np.testing.assert_array_equal(found[WRITTEN].to_numpy(), wanted[P].to_numpy())
    assert found["predicted"].tolist() == [CLASSES[k] for k in wanted[P].to_numpy().argmax(1)]
    assert found["label"].tolist() == [CLASSES[k] for k in wanted["label"]]


def test_every_site_of_a_table_is_tracked_by_itself(trained_project: Project) -> None:
    mixed = rows(trained_project, "far", "south").sample(frac=1, random_state=0)
    both = trained_project.apply(listing(trained_project, "mixed.csv", mixed), "tsmobn", "batch_size=4").table
    for site in ("far", "south"):
        alone = listing(trained_project, "alone.csv", mixed[mixed["site"] == site].drop(columns="site"))
        wanted = trained_project.apply(alone, "tsmobn", "batch_size=4").table
        np.testing.assert_array_equal(both.loc[both["site"] == site, P].to_numpy(), wanted[P].to_numpy())
    together = trained_project.apply(
        listing(trained_project, "together.csv", mixed.drop(columns="site")), "tsmobn", "batch_size=4"
    )
    assert np.abs(together.table[P].to_numpy() - both[P].to_numpy()).max() > 1e-3


def test_the_client_whose_own_tensors_are_used_makes_a_difference(trained_project: Project) -> None:
    source = listing(trained_project, "far.csv", rows(trained_project, "far"))
    found = [trained_project.apply(source, client=c).table["p1"].to_numpy() for c in (None, "north", "south")]
    assert min(np.abs(a - b).max() for a, b in ((found[0], found[1]), (found[1], found[2]))) > 1e-4


def test_a_folder_is_a_sorted_table_of_its_images(trained_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "hospital"
    for part in ("b/z", "b", "a", ".hidden", "a.b"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        shutil.copy(trained_project.root / "images" / "far-01.bmp", folder / part / "two.BMP")
        shutil.copy(trained_project.root / "images" / "far-02.tiff", folder / part / "one.tiff")
    (folder / "a" / ".thumb.png").write_text("hidden")
    (folder / "notes.txt").write_text("no image")
    found = trained_project.apply(folder, "tsmobn", "batch_size=2", out=tmp_path / "out").table
    wanted = sorted(f"{part}/{name}" for part in ("b/z", "b", "a", "a.b") for name in ("one.tiff", "two.BMP"))
    assert found["path"].tolist() == wanted
    write_table(folder / "same.csv", pd.DataFrame({"path": wanted}))
    again = trained_project.apply(folder / "same.csv", "tsmobn", "batch_size=2", out=tmp_path / "out").table
    pd.testing.assert_frame_equal(found, again)


def test_folders_that_are_links_count_once_each(trained_project: Project, tmp_path: Path) -> None:
    """A folder that is also there without a link keeps its real name; loops end, also through a folder above."""
    source, elsewhere = tmp_path / "hospital", tmp_path / "elsewhere"
    for folder in (source / "b", elsewhere / "deep"):
        folder.mkdir(parents=True)
        shutil.copy(trained_project.root / "images" / "far-01.bmp", folder / "one.bmp")
    links = {"a": source / "b", "c": elsewhere, "b/up": source, "above": tmp_path}
    for name, target in links.items():
        (source / name).symlink_to(target, target_is_directory=True)
    (elsewhere / "deep" / "back").symlink_to(elsewhere, target_is_directory=True)
    found = ImageFiles.of(trained_project.run(), source).listed()
    assert found["path"].tolist() == ["b/one.bmp", "c/deep/one.bmp"]


def test_threads_change_no_bit(trained_project: Project) -> None:
    one, three = (trained_project.apply(trained_project.table, "tsmobn", threads=n).table for n in (1, 3))
    torch.set_num_threads(1)
    pd.testing.assert_frame_equal(one, three, check_exact=True)


# ---- images


@pytest.mark.parametrize("steps", [[], ["macenko"]])
def test_images_are_read_as_those_of_the_run_were(trained_project: Project, tmp_path: Path, steps: list[str]) -> None:
    plan = study.load(trained_project.root / "tiny.yaml", "paper")
    first = next(iter(plan.runs.values()))
    data = first.data.model_copy(update={"prepare": tuple(registry.build("transform", s) for s in steps)})
    prepare(data, trained_project.paths.raw(trained_project.data.raw), tmp_path / "data")
    made = Prepared(tmp_path / "data")
    reader = ImageFiles.of(first.model_copy(update={"data": data}), trained_project.table)
    for path, wanted in zip(made.samples["sample"], made.images, strict=True):
        image, reduction = reader.read(path)
        np.testing.assert_array_equal(image, wanted)
        assert reduction == (10 / 8 if path.endswith(".png") else 0), "every third image is 14 pixels wide, 10 high"


def test_images_are_turned_by_exif_and_refused_where_they_would_be_black(
    trained_project: Project, tmp_path: Path
) -> None:
    """Orientation 3 is a turn by 180 degrees; 4095 >> 8 is 15."""
    exif, pixels = Image.Exif(), np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    exif[0x0112] = 3
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(tmp_path / "dark.png")
    reader = ImageFiles.of(trained_project.run(), tmp_path)
    np.testing.assert_array_equal(reader.read("turned.png")[0], pixels[::-1, ::-1])
    with pytest.raises(UserError, match=r"dark\.png: has 16 bits a pixel, but its brightest is 4095 .*; rescale it"):
        reader.read("dark.png")


def test_only_the_images_of_a_batch_are_read(trained_project: Project) -> None:
    class Noted(ImageFiles):
        def read(self, path: str) -> tuple[np.ndarray, float]:
            seen.append(path)
            return super().read(path)

    seen: list[str] = []
    reader = Noted.of(trained_project.run(), trained_project.table)
    paths = reader.listed()["path"]
    samples = FileSamples(reader, paths, trained_project.run().transforms)
    assert seen == []
    x, _ = samples.batch(np.array([7, 3]))
    assert seen == [paths.iloc[7], paths.iloc[3]]
    assert (x.shape, x.dtype, x.max() <= 1) == ((2, 3, 8, 8), torch.float32, True)
    assert np.flatnonzero(samples.reduction).tolist() == [3]


def other_data(project: Project, dataset: str) -> Run:
    """Return the run with other data."""
    data = project.data.model_copy(update={"dataset": registry.build("dataset", dataset)})
    return project.run().model_copy(update={"data": data})


def test_a_run_on_grey_images_gets_grey_ones(trained_project: Project) -> None:
    reader = ImageFiles.of(other_data(trained_project, "mnist"), trained_project.table)
    image, _ = reader.read("far-01.bmp")
    colour, _ = ImageFiles.of(other_data(trained_project, "camelyon17"), trained_project.table).read("far-01.bmp")
    assert (image.shape, colour.shape) == ((28, 28, 1), (96, 96, 3))
    weights = [0.299, 0.587, 0.114]
    pixels = np.asarray(
        Image.open(trained_project.root / "images" / "far-01.bmp").resize((28, 28), Image.Resampling.LANCZOS)
    )
    assert np.abs(image[..., 0] - pixels @ weights).max() <= 1


def test_a_run_on_no_images_is_refused(trained_project: Project) -> None:
    with pytest.raises(UserError, match=r"was trained on gaussians, not on square images"):
        ImageFiles.of(other_data(trained_project, "gaussians"), trained_project.table)


def test_a_dataset_as_the_docs_say_can_be_applied(trained_project: Project) -> None:
    text = (Path(__file__).parents[2] / "docs" / "add-a-dataset.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    here: dict[str, Any] = vars(importlib.import_module("fedshift.datasets._base")) | {"__name__": "mine"}
    exec(code, here)
    data = trained_project.data.model_copy(update={"dataset": here["TwoClinics"]()})
    run = trained_project.run().model_copy(update={"data": data})
    assert ImageFiles.of(run, trained_project.table).stored == (3, 32, 32)
    del here["TwoClinics"].shape
    with pytest.raises(UserError, match=r"dataset mine does not say what shape its images have; give .* shape = \("):
        ImageFiles.of(run, trained_project.table)


# ---- labels


def test_labels_may_be_names_numbers_or_unknown(trained_project: Project) -> None:
    table = rows(trained_project, "far")[["path"]].head(4).assign(Label=["1", CLASSES[0], "", "0"], note="x")
    found = trained_project.apply(listing(trained_project, "labels.csv", table))
    assert found.table["label"].tolist() == [1, 0, pd.NA, 0]
    written = read_table(trained_project.root / "out" / "predictions.csv")
    assert list(written) == ["path", "label", "predicted", *WRITTEN]
    assert written["label"].fillna("").tolist() == [CLASSES[1], CLASSES[0], "", CLASSES[0]]


# ---- what cannot be read


@pytest.fixture
def spoiled(trained_project: Project) -> Iterator[pd.DataFrame]:
    """A table in which lines 4 and 6 name no images."""
    text = trained_project.root / "images" / "text.png"
    text.write_text("no image")
    table = rows(trained_project, "far").head(6).reset_index(drop=True)
    table.loc[2, "path"], table.loc[4, "path"] = "text.png", "lost.png"
    yield table
    text.unlink()


def test_an_image_that_is_not_there_is_named_before_any_is_read(
    trained_project: Project, spoiled: pd.DataFrame, tmp_path: Path
) -> None:
    source = listing(trained_project, "spoiled.csv", spoiled)
    with pytest.raises(UserError, match=r"spoiled\.csv, line 6: no such image: .*lost\.png; get it again, or remove"):
        trained_project.apply(source, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_image_is_named_and_nothing_is_written(
    trained_project: Project, spoiled: pd.DataFrame, tmp_path: Path
) -> None:
    source = listing(trained_project, "spoiled.csv", spoiled.drop(index=4))
    with pytest.raises(UserError, match=r"text\.png: cannot be read as an image"):
        trained_project.apply(source, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_cannot_be_read_is_left_out_on_request(
    trained_project: Project, spoiled: pd.DataFrame, tmp_path: Path, threads: int
) -> None:
    source = listing(trained_project, "spoiled.csv", spoiled)
    found = trained_project.apply(
        source, "tsmobn", "batch_size=2", out=tmp_path / "out", skip_unreadable=True, threads=threads
    )
    torch.set_num_threads(1)
    good = listing(trained_project, "good.csv", spoiled.drop(index=[2, 4]))
    wanted = trained_project.apply(good, "tsmobn", "batch_size=2", out=tmp_path / "wanted")
    np.testing.assert_array_equal(found.table[P].to_numpy(), wanted.table[P].to_numpy())
    assert list(found.unreadable) == ["text.png", "lost.png"]
    written = read_table(tmp_path / "out" / "predictions.csv")
    assert written["path"].tolist() == spoiled["path"].tolist()
    assert written["unreadable"].notna().tolist() == [False, False, True, False, True, False]
    assert written["predicted"].isna().tolist() == written["unreadable"].notna().tolist()
    assert written["unreadable"][4] == "no such image"
    html = page.write(found).read_text()
    assert "2 files were left out" in Outline(html).text
    assert "lost.png" in html


def test_where_nothing_can_be_read_nothing_is_written(
    trained_project: Project, spoiled: pd.DataFrame, tmp_path: Path
) -> None:
    source = listing(trained_project, "none.csv", spoiled.loc[[2, 4]])
    with pytest.raises(UserError, match=r"none\.csv: no image can be read; cannot be read as an image"):
        trained_project.apply(source, out=tmp_path / "out", skip_unreadable=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("label\n1\n", "t.csv: no column 'path'; it has label"),
        ("path;label\na.png;1;2\n", "t.csv, line 2: has 3 cells, but the header has 2; put a cell that holds a"),
        ("path,label\nfar-01.bmp,1\nfar-02.tiff,2\n", "t.csv, line 3: label '2' is none of the 2 classes"),
        ("path,site\nfar-01.bmp,\nfar-02.tiff,x\n", "t.csv, line 2: site is empty"),
        ("path,site\n,x\n", "t.csv, line 2: path is empty"),
        ("path\n", "t.csv: has no rows below its header; list each image in a row"),
        ("path,site\n\nfar-01.bmp,x\n\nlost.png,x\n", "t.csv, line 5: no such image"),
        ("path,site\nfar-01.bmp,St. Mary, Boston\n", "t.csv, line 2: has 3 cells, but the header has 2"),
        ("path,site\nsub\\a.png,x\n", "sub\\a.png; write / between folders"),
        ("", "t.csv: not a readable table file"),
    ],
)
def test_a_bad_table_is_one_line(trained_project: Project, text: str, words: str) -> None:
    source = trained_project.root / "images" / "t.csv"
    source.write_text(text)
    with pytest.raises(UserError) as caught:
        trained_project.apply(source)
    assert words in str(caught.value)


def test_what_to_do_about_an_image_fits_its_source(trained_project: Project, tmp_path: Path) -> None:
    """A folder has no rows, a table has; and the command can leave files out."""
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "t.csv").write_text("path\nempty.png\n")
    skip = "leave out such files with --skip-unreadable"
    with pytest.raises(UserError) as caught:
        trained_project.apply(tmp_path)
    assert str(caught.value) == f"{tmp_path}/empty.png: the file is empty; get it again, or remove it, or {skip}"
    with pytest.raises(UserError) as caught:
        trained_project.apply(tmp_path / "t.csv")
    line = f"{tmp_path}/t.csv, line 2: the file is empty: {tmp_path}/empty.png; get it again, or remove its row, or"
    assert str(caught.value) == f"{line} {skip}"
    with pytest.raises(UserError, match=r"text\.png: cannot be read as an image .*; get it again, or remove it$"):
        ImageFiles.of(trained_project.run(), tmp_path).read("text.png")


def test_a_folder_of_dicom_files_is_predicted(trained_project: Project, tmp_path: Path) -> None:
    """They are found by the mark where they have no ending; a scan without a window or pixels is named."""
    series = tmp_path / "series"
    series.mkdir()
    for name, copy in (("MR_small.dcm", "IM1"), ("MR_small_RLE.dcm", "2.dcm")):
        shutil.copy(Path(get_testdata_file(name, download=False)), series / copy)
    (series / "notes").write_text("no image")
    found = trained_project.apply(series, out=tmp_path / "out")
    predicted = pd.read_csv(found.out / "predictions.csv")
    assert predicted["path"].tolist() == ["2.dcm", "IM1"]
    assert predicted["p_benign"].nunique() == 1, "the pixels are the same"
    (series / "3.dcm").write_bytes(bytes(128) + b"DICM")
    with pytest.raises(UserError, match=r"3\.dcm: is a DICOM file without an image"):
        trained_project.apply(series, out=tmp_path / "more")


def test_sites_that_differ_by_a_space_are_told(trained_project: Project, tmp_path: Path, capsys: Any) -> None:
    table = rows(trained_project, "far").head(4).assign(site=["x", "x ", "X", "y"])[["path", "site"]]
    ImageFiles.of(trained_project.run(), source := listing(trained_project, "spaces.csv", table)).listed()
    told = f"{source}: sites 'x', 'x ', 'X' differ only in spelling, and count as 3"
    assert told in capsys.readouterr().err


def test_images_that_are_much_too_large_are_counted(trained_project: Project, tmp_path: Path) -> None:
    """The run's images are 8 pixels wide: 16 times as many are 128."""
    for name, side in (("small", 8), ("large", 128), ("slide", 129)):
        Image.new("RGB", (side, side)).save(tmp_path / f"{name}.png")
    found = trained_project.apply(tmp_path, out=tmp_path / "out")
    assert (found.scaled, found.large) == (2, 1)
    text = Outline(page.write(found).read_text()).text
    assert "1 image is more than 16 times as wide and high as what the network sees of them" in text


def test_a_folder_without_images_and_a_source_that_is_not_there(trained_project: Project, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no images"):
        trained_project.apply(tmp_path)
    for name in ("lost.csv", "lost"):
        with pytest.raises(UserError, match=rf"{name}: no such file or folder"):
            trained_project.apply(tmp_path / name)


def test_a_file_name_that_is_no_text_is_refused(trained_project: Project, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.png")).write_bytes(b"")
    with pytest.raises(UserError, match=r"the name .* is not UTF-8; rename the file"):
        trained_project.apply(tmp_path)


# ---- runs


def test_a_run_whose_clients_trained_alone_needs_one_of_them(trained_project: Project) -> None:
    with pytest.raises(UserError, match=r"each client trains alone.*; say --client, one of north, south"):
        apply(
            trained_project.folder("local"),
            trained_project.table,
            chosen("source", [], None),
            trained_project.root / "out",
        )
    found = apply(
        trained_project.folder("local"),
        trained_project.table,
        chosen("source", [], "south"),
        trained_project.root / "out",
    )
    assert len(found.table) == sum(SITES.values())


@pytest.mark.parametrize(
    ("settings", "client", "words"),
    [
        (["momentm=0.5"], None, "--inference (tsmobn).momentm: unknown key 'momentm'; did you mean 'momentum'?"),
        (["momentum=2"], None, "--inference (tsmobn).momentum: Input should be less than or equal to 1 (got 2)"),
        (["momentum"], None, "--set: 'momentum' is not a setting; write KEY=VALUE, such as momentum=0.8"),
        (["var_center=batsch"], None, "unknown value 'batsch'; did you mean 'batch'?"),
        (
            ['personalise={"steps": 1}'],
            None,
            "--inference: tsmobn is to be adapted to labelled images of a site, and no",
        ),
        ([], "nord", "client: 'nord' is not an internal site; did you mean 'north'?"),
    ],
)
def test_a_wrong_setting_is_one_line(
    trained_project: Project, settings: Sequence[str], client: str | None, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        trained_project.apply(trained_project.table, "tsmobn", *settings, client=client)
    assert words in str(caught.value)


def test_settings_are_read_as_a_study_would() -> None:
    found = chosen("tsmobn", ["momentum=0.5", "order=null", "var_center=batch", "affine=false"], None)
    assert (found.momentum, found.order, found.var_center, found.affine) == (0.5, None, "batch", False)  # type: ignore[attr-defined]


def test_tensors_of_another_model_are_refused(trained_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_project.folder(), folder)
    state, _ = read_tensors(folder / "model.safetensors")
    whole = {k: v.round().long() for k, v in state.items()}
    for wrong in ({"a": torch.zeros(1)}, {k: v[:1] for k, v in state.items() if v.dim()}, whole):
        write_tensors(folder / "model.safetensors", wrong, {})
        with pytest.raises(UserError, match=r"run: its tensors are not those of the model in its spec\.json"):
            apply(folder, trained_project.table, chosen("source", [], None), tmp_path / "out")


def test_a_network_that_gives_no_numbers_is_refused(trained_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_project.folder(), folder)
    state, _ = read_tensors(folder / "model.safetensors")
    last = next(k for k in reversed(state) if k.endswith("weight"))
    write_tensors(folder / "model.safetensors", state | {last: torch.full_like(state[last], torch.nan)}, {})
    with pytest.raises(UserError, match=r"its network gives outputs that are not numbers"):
        apply(folder, trained_project.table, chosen("source", [], None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to_is_told_at_once(trained_project: Project, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"cannot be written to as a folder; choose another with --out"):
            trained_project.apply(trained_project.table, out=out)


# ---- where results lie


def beside(project: Project, folder: Path) -> Path:
    """A folder of its own called images, with two of the images in it."""
    (folder / "images").mkdir(parents=True)
    for name in ("far-01.bmp", "far-02.tiff"):
        shutil.copy(project.root / "images" / name, folder / "images" / name)
    return folder / "images"


def test_folders_of_one_name_do_not_meet(trained_project: Project, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (beside(trained_project, Path(name)) for name in ("a", "b"))
    places = [trained_project.apply(source, out=None).out for source in (one, two, tmp_path / "a" / "images")]
    assert places[0] == places[2] != places[1]
    for place in places:
        digest = hashlib.sha256(f'"{tmp_path / ("b" if place == places[1] else "a") / "images"}"'.encode()).hexdigest()
        assert place == Path("results", "applied", trained_project.run().id, f"images-{digest[:6]}-source")


def test_predicted_again_it_is_replaced(trained_project: Project, tmp_path: Path) -> None:
    out, source = tmp_path / "out", beside(trained_project, tmp_path)
    page.write(trained_project.apply(trained_project.table, out=out))
    found = trained_project.apply(source, out=out)
    page.write(found)
    assert len(read_table(out / "predictions.csv")) == 2
    assert sorted(p.name for p in out.iterdir()) == ["fedshift-applied.json", "page.html", "predictions.csv"]


def test_what_a_kill_left_is_swept_away(trained_project: Project, tmp_path: Path) -> None:
    trained_project.apply(trained_project.table, out=tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(PATIENCE)
    (tmp_path / f".predictions.csv{disk._mark()}{dead.pid}-0.csv").write_text("half")
    trained_project.apply(trained_project.table, out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fedshift-applied.json", "predictions.csv"]


@pytest.mark.parametrize("mine", ["predictions.csv", "page.html", "thesis.txt", "more/predictions.csv"])
def test_what_is_not_ours_is_left_as_it_is(trained_project: Project, tmp_path: Path, mine: str) -> None:
    (tmp_path / mine).parent.mkdir(exist_ok=True)
    (tmp_path / mine).write_text("years of work")
    with pytest.raises(UserError, match=rf"holds {mine.partition('/')[0]}.*; choose another folder with --out, or"):
        trained_project.apply(trained_project.table, out=tmp_path)
    assert [p.read_text() for p in tmp_path.rglob("*") if p.is_file()] == ["years of work"]


def test_the_table_given_is_not_overwritten(trained_project: Project, tmp_path: Path) -> None:
    """Nor where it is what an earlier call wrote there."""
    folder = beside(trained_project, tmp_path)
    out = tmp_path / "out"
    trained_project.apply(folder, out=out)
    shutil.move(out / "predictions.csv", out / "page.html")
    (out / "predictions.csv").write_text(before := f"path,label\n{folder / 'far-01.bmp'},1\n")
    (tmp_path / "link.csv").symlink_to(out / "predictions.csv")
    for source in (out / "predictions.csv", tmp_path / "link.csv"):
        with pytest.raises(UserError, match=r"lies there and would be overwritten; choose another folder with --out"):
            trained_project.apply(source, out=out)
    assert (out / "predictions.csv").read_text() == before


# ---- the command


def test_the_command(trained_project: Project, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(trained_project.root)
    run = trained_project.run().id
    command = ["apply", run, "images/table.csv", "--inference", "tsmobn", "--set", "batch_size=4", "--threads", "1"]
    assert cli.main(command) == 0
    name = study.inference_id(chosen("tsmobn", ["batch_size=4"], None))
    (out,) = Path("results", "applied", run).iterdir()
    assert re.fullmatch(rf"table-[0-9a-f]{{6}}-{name}", out.name)
    assert sorted(p.name for p in out.iterdir()) == ["fedshift-applied.json", "page.html", "predictions.csv"]
    assert capsys.readouterr().err.splitlines()[-1] == f"wrote {out / 'predictions.csv'} and {out / 'page.html'}"
    assert cli.main([*command[:2], "images", "--out", str(tmp_path), "--client", "south", "--no-examples"]) == 0
    assert "<img" not in (tmp_path / "page.html").read_text()
    assert len(read_table(tmp_path / "predictions.csv")) == sum(SITES.values())


def test_a_run_that_is_not_there(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["apply", "fedavg-local-0123456789", "images"]) == 2
    line = (
        "results/runs/fedavg-local-0123456789: no such run, or it is not trained; see results/runs, or train it first"
    )
    assert capsys.readouterr().err.splitlines() == [line]
    assert list(tmp_path.iterdir()) == []


# ---- numbers and page


def invented(project: Project, right: Sequence[bool], patients: Sequence[str] | None = None, **columns: Any) -> Applied:
    """Answers that are right or wrong as asked, each with 80 %; labels in turn."""
    n = len(right)
    label = np.arange(n) % 2
    predicted = np.where(right, label, 1 - label)
    table = pd.DataFrame({"path": [f"{i}.png" for i in range(n)], "label": pd.array(label, dtype="Int64"), **columns})
    if patients is not None:
        table["patient"] = patients
    p1 = np.where(predicted == 1, 0.8, 0.2)
    table = table.assign(predicted=pd.array(predicted, dtype="Int64"), p0=1 - p1, p1=p1)
    settings = project.run(), {}, chosen("source", [], None), Path("images"), project.root / "invented"
    pictures = {0: np.zeros((2, 8, 8, 3), np.uint8)}
    return Applied(*settings, table, {}, 0, pictures, np.full((n, 3), 60.0), project.folder())


def named(outcome: NewClasses, site: str | None = None) -> dict[str, Any]:
    return {m.name: v for m, v in zip(outcome.metrics, outcome.scores(site), strict=True)}


def test_metrics_are_those_of_the_labelled_images(trained_project: Project) -> None:
    right = [True] * 30 + [False] * 10
    found = named(NewClasses(invented(trained_project, right, site=["a"] * 20 + ["b"] * 20)))
    assert found["accuracy"].mean == 0.75
    assert found["brier"].mean == pytest.approx(0.75 * 0.2**2 + 0.25 * 0.8**2)
    assert found["accuracy"].low < 0.75 < found["accuracy"].high
    assert found["accuracy"].n == 40
    at = named(NewClasses(invented(trained_project, right, site=["a"] * 20 + ["b"] * 20)), "a")
    assert (at["accuracy"].mean, at["accuracy"].high) == (1, 1)
    assert at["accuracy"].low == pytest.approx(20 / (20 + 1.959964**2)), "20 of 20 are not all: Wilson's bound"


def test_patients_are_resampled_whole(trained_project: Project) -> None:
    """Ten patients, each all right or all wrong, are ten draws; images by themselves would be four hundred."""
    right = np.repeat(np.arange(10) % 2 == 0, 40)
    widths = []
    for patients in (np.repeat(np.arange(10), 40).astype(str), None):
        value = named(NewClasses(invented(trained_project, right, patients)))["accuracy"]
        widths.append(value.high - value.low)
    assert widths[0] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / (10 + 1.96**2)), rel=0.01), "Wilson's, 5 of 10 patients"
    assert widths[1] == pytest.approx(2 * 1.96 * np.sqrt(0.25 / 400), rel=0.15)


def test_too_few_patients_give_no_interval(trained_project: Project) -> None:
    value = named(NewClasses(invented(trained_project, [True, False] * 8, list("abcd") * 4)))["accuracy"]
    assert value.mean == 0.5
    assert np.isnan([value.low, value.high]).all()


def test_an_image_listed_twice_is_one_draw(trained_project: Project) -> None:
    made = invented(trained_project, np.arange(40) % 4 != 0)
    twice = Applied(**vars(made) | {"table": pd.concat([made.table] * 9, ignore_index=True)})
    one, nine = (named(NewClasses(a))["accuracy"] for a in (made, twice))
    assert (nine.mean, nine.low, nine.high) == pytest.approx((one.mean, one.low, one.high), abs=0.03)
    assert nine.n == 360


def test_intervals_of_very_many_images_are_as_wide_as_they_must_be(trained_project: Project) -> None:
    n = 20_000
    value = named(NewClasses(invented(trained_project, np.random.default_rng(0).random(n) < 0.7)))["accuracy"]
    width = 2 * 1.96 * np.sqrt(value.mean * (1 - value.mean) / n)
    assert value.high - value.low == pytest.approx(width, rel=0.1)


# ---- what a reader must know of the model and of the images


def studied(
    project: Project, folder: Path, right: Sequence[bool], role: str = "internal", several: bool = False
) -> Applied:
    """A run whose study tested so many images, each of a patient of its own. TsmoBN has the other answer to each."""
    folder.mkdir(exist_ok=True)
    made = invented(project, right)
    table = made.table.rename(columns={"path": "sample"}).drop(columns="predicted")
    table = table.assign(site="north", role=role, split="test")
    if several:  # one file has all inferences of a study
        other = table.assign(p0=1 - table["p0"], p1=1 - table["p1"], inference="tsmobn")
        table = pd.concat([other, table.assign(inference="source")])
    write_table(RunFiles(folder).predictions("2-inferences" if several else "source"), table)
    return replace(made, folder=folder, manifest={"best_value": 0.625})


def at_home_of(project: Project, folder: Path, right: Sequence[bool], **about: Any) -> Light:
    """What is said of how such a run did at home."""
    return at_home(studied(project, folder, right, **about), None)


def test_a_model_that_is_no_better_than_a_guess_at_home_is_a_problem(trained_project: Project, tmp_path: Path) -> None:
    """Labels come in turn, so that every fourth, or three of four, right answers are the same share of each class."""
    good = at_home_of(trained_project, tmp_path, [n % 8 > 1 for n in range(80)])
    assert good == at_home_of(trained_project, tmp_path / "several", [n % 8 > 1 for n in range(80)], several=True)
    assert good.status == "ok"
    assert good.detail.startswith("balanced accuracy 75.0\N{NO-BREAK SPACE}% on 80 test images (95% interval ")
    assert good.detail.endswith("over images); a guess has 50.0\N{NO-BREAK SPACE}%")
    guess = at_home_of(trained_project, tmp_path, [n % 4 > 1 for n in range(80)])
    assert guess.status == "problem"
    assert guess.detail.endswith("it is not shown to be better than that, at home or here")
    few = at_home_of(trained_project, tmp_path, [True] * 4)
    assert (few.status, few.detail.rpartition(", ")[2]) == ("unknown", "too few for an interval")


def test_without_predictions_of_its_study_only_validation_is_known(trained_project: Project, tmp_path: Path) -> None:
    made = replace(invented(trained_project, [True] * 8), folder=tmp_path, manifest={"best_value": 0.625})
    said = "how it did in its own study is not known here; on validation images at home its accuracy was 62.5"
    said += "\N{NO-BREAK SPACE}%"
    assert at_home(made, None).detail == said
    outside_only = at_home_of(trained_project, tmp_path, [True] * 80, role="external")
    assert (outside_only.status, outside_only.detail) == ("unknown", said)
    assert at_home(replace(made, manifest={}), None).detail == "how it did in its own study is not known here"


def test_what_the_study_found_where_the_model_took_no_part(trained_project: Project, tmp_path: Path) -> None:
    right = [n % 8 > 1 for n in range(80)]
    here = studied(trained_project, tmp_path / "one", right, role="external")
    good = outside(replace(here, inference=registry.build("inference", "source")), None)
    assert good is not None
    assert good.status == "ok"
    assert good.detail.startswith("balanced accuracy 75.0\N{NO-BREAK SPACE}% on 80 test images (95% interval ")
    adapted = replace(here, inference=registry.build("inference", "tsmobn"))
    fallen_back = outside(adapted, None)
    assert fallen_back is not None
    assert "75.0\N{NO-BREAK SPACE}% with the statistics of its training on 80 test images" in fallen_back.detail
    several = studied(trained_project, tmp_path / "several", right, role="external", several=True)
    worse = outside(replace(several, inference=registry.build("inference", "tsmobn")), None)
    assert worse is not None
    assert worse.status == "problem"
    assert worse.detail.startswith("balanced accuracy 25.0\N{NO-BREAK SPACE}% with TsmoBN on 80 test images")
    assert worse.detail.endswith("it is not shown to be better than that, there or here")
    assert outside(studied(trained_project, tmp_path / "home", right), None) is None, "tested at home alone"


def test_a_loss_outside_in_its_study_is_suspect(trained_project: Project, tmp_path: Path) -> None:
    """At home 95 of 100 are right; outside 75 of 100, which is better than a guess, and surely worse than at home."""
    home = studied(trained_project, tmp_path / "home", [n % 40 > 1 for n in range(400)])
    away = studied(trained_project, tmp_path / "away", [n % 8 > 1 for n in range(400)], role="external")
    files = [RunFiles(made.folder).predictions("source") for made in (home, away)]
    table = pd.concat([read_table(file) for file in files], ignore_index=True)
    write_table(files[1], table.assign(sample=table["role"] + table["sample"].astype(str)))
    light = outside(replace(away, inference=registry.build("inference", "source")), None)
    assert light is not None
    assert light.status == "suspect"
    assert light.detail.endswith("a guess has 50.0\N{NO-BREAK SPACE}%; at home 95.0\N{NO-BREAK SPACE}%")


def test_brightness_contrast_and_colour_of_an_image() -> None:
    """Half of the pixels are (10, 20, 30) and half (50, 50, 50): greys 20 and 50, channels 20 and 0 apart."""
    image = np.full((1, 2, 4, 3), 50, np.uint8)
    image[0, 0] = (10, 20, 30)
    np.testing.assert_allclose(looks(image), [[35, 15, 10]])


@pytest.mark.parametrize(
    ("moved", "status", "words"),
    [((0, 0, 0), "ok", ""), ((99, 0, 0), "suspect", "100 % have a brightness"), ((0, 0, 99), "suspect", "a colour")],
)
def test_images_unlike_those_of_training_are_suspect(
    trained_project: Project, moved: Sequence[float], status: str, words: str
) -> None:
    images = images_of_study(trained_project.run(), trained_project.folder())
    assert images is not None
    train = images.partition[images.partition["split"] == "train"]
    seen = looks(np.asarray(images.prepared.images[images.prepared.rows(train)]))
    light, table = likeness(replace(invented(trained_project, [True] * 8), looks=seen + moved), images)
    assert light.status == status
    assert words in light.detail
    assert table is not None
    median = np.median(seen[:, 0])
    assert table.rows[0][1].text.startswith(f"{median:.0f} (")
    assert table.rows[0][2].text.startswith(f"{median + moved[0]:.0f} (")


def test_where_no_training_images_are_nobody_knows_how_unlike_images_are(
    trained_project: Project, tmp_path: Path
) -> None:
    shutil.copytree(trained_project.folder(), tmp_path / "run")
    assert images_of_study(trained_project.run(), tmp_path / "run") is None
    light, table = likeness(invented(trained_project, [True] * 8), None)
    assert (light.status, table) == ("unknown", None)


@pytest.fixture(scope="module")
def html(trained_project: Project, tmp_path_factory: pytest.TempPathFactory) -> str:
    found = trained_project.apply(trained_project.table, "tsmobn", "batch_size=24", out=tmp_path_factory.mktemp("page"))
    return page.write(found).read_text(encoding="utf-8")


def test_the_page_is_one_offline_file_in_which_names_are_text(html: str) -> None:
    outline = Outline(html)
    for tag, attributes in outline.tags:
        assert tag not in ("script", "iframe", "object", "embed", "form")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert "<b>more" not in html
    assert "<i>at random" not in html
    assert CLASSES[1] in outline.text
    assert "Drawn <i>at random</i>." in outline.text


def test_the_page_is_well_formed(html: str) -> None:
    tags = Outline(html).tags
    ids = [a["id"] for _, a in tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for _, a in tags if (a.get("href") or "").startswith("#")} <= set(ids)
    levels = [int(t[1]) for t, _ in tags if re.fullmatch(r"h[1-6]", t)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(attributes.get("alt") for tag, attributes in tags if tag == "img")
    assert sum(tag == "img" for tag, _ in tags) <= 2 * job.EXAMPLES


def test_the_page_says_what_a_hospital_must_know(html: str, trained_project: Project) -> None:
    text = Outline(html).text
    for words in (
        "For research only. This is no medical device.",
        "at north, south, applied to 76 images",
        "TsmoBN: Batch norm with the test site's own statistics",
        "batch_size = 24",
        "an image's probabilities depend on the others of its site",
        "Fewer images than a batch of 24 at far: statistics of so few are rough.",
        "north and south took part in training",
        "55 of them are of north and south, where the model was trained: this is not a result for new hospitals.",
        "26 images were not of the run's size",
        "nothing was sent anywhere",
        trained_project.run().id,
    ):
        assert words in text, words


def lead_of(applied: Applied) -> str:
    first = page.context(applied)["sections"][0]
    return next(block.text for block in first.blocks if isinstance(block, Lead))


def test_the_first_sentence_follows_the_numbers(trained_project: Project) -> None:
    lead = lead_of(invented(trained_project, [True] * 30 + [False] * 10))
    assert lead.startswith(
        "40 images: the network predicts benign in 50.0\N{NO-BREAK SPACE}% and tumour & <b>more</b> in "
        "50.0\N{NO-BREAK SPACE}%. Accuracy on the 40 labelled images is 75.0\N{NO-BREAK SPACE}% (95% interval "
    )
    assert lead.endswith(" over images).")
    made = invented(trained_project, [True] * 4)
    bare = Applied(**vars(made) | {"table": made.table.drop(columns="label")})
    assert lead_of(bare).endswith("Without labels, nothing here says whether that is right.")
    assert "metrics" not in [section.id for section in page.context(bare)["sections"]]


def test_a_run_on_synthetic_images_says_so(trained_project: Project) -> None:
    made = invented(trained_project, [True] * 4)
    data = trained_project.data.model_copy(
        update={"synthetic": True, "dataset": registry.build("dataset", "camelyon17")}
    )
    synthetic = Applied(**vars(made) | {"run": made.run.model_copy(update={"data": data})})
    assert "Trained on synthetic images." in Outline(page.write(synthetic).read_text()).text
    assert "Trained on synthetic" not in Outline(page.write(made).read_text()).text


@pytest.mark.parametrize("content", ["[]", '{"versions": [1]}', '{"git": "x"}'])
def test_a_manifest_that_is_none_is_refused_before_anything_is_written(
    trained_project: Project, tmp_path: Path, content: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_project.folder(), folder)
    (folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json: is not a manifest of a run: .* mapping.*; remove it"):
        apply(folder, trained_project.table, chosen("source", [], None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_run_that_came_without_its_manifest(trained_project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained_project.folder(), folder)
    (folder / "manifest.json").unlink()
    assert load_run(folder).id == trained_project.run().id
    found = apply(folder, trained_project.table, chosen("source", [], None), tmp_path / "out")
    assert "Commit" in Outline(page.write(found).read_text()).text
