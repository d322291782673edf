"""A trained run of masks on new images: masks and overlays in the images' own sizes, areas, and a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import disc_study
import numpy as np
import pandas as pd
import pytest
import torch
from fake_study import predictions_of
from outline import Outline
from PIL import Image

import fedshift
from fedshift.cli import parser as cli
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.data.prepared import Prepared
from fedshift.io.arrays import read_tensors, write_tensors
from fedshift.io.images import LARGEST, decoded, overlay
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.jobs.apply import Applied, apply, chosen
from fedshift.jobs.image_files import ImageFiles
from fedshift.page import applied as page
from fedshift.study.plan import Plan
from fedshift.study.run import Run

PARTITION = disc_study.STUDY["partition"] | {"external": ["west"]}
LEARNT = {"rounds": 12, "batch_size": 4, "lr": 0.1, "momentum": 0.9}
ORANGE = (207, 92, 0)


class Discs:
    """A finished study of discs, all of whose predicted masks are kept."""

    def __init__(self, root: Path) -> None:
        self.plan: Plan
        self.paths: Paths
        task = {"name": "segmentation", "keep": "masks"}
        self.plan, self.paths = disc_study.finished(root, task=task, partition=PARTITION, training=LEARNT)
        (self.run,) = self.plan.runs.values()
        self.folder = self.paths.run(self.run.id)

    def predicted(self, inference: str) -> pd.DataFrame:
        """What the study predicted for the external site."""
        table = read_table(predictions_of(self.plan, self.paths, self.run.id))
        if "inference" in table:
            table = table[table["inference"] == inference]
        return table[table["site"] == "west"].reset_index(drop=True)

    def image(self, sample: str) -> np.ndarray:
        prepared = Prepared(self.paths.data(self.run.data.id))
        (row,) = np.flatnonzero(prepared.samples["sample"] == sample)
        return np.asarray(prepared.images[row])[..., 0]

    def apply(self, source: Path, out: Path, inference: str = "source", *settings: str, **options: Any) -> Applied:
        return apply(self.folder, source, chosen(inference, settings, None), out, **options)


@pytest.fixture(scope="module")
def discs(tmp_path_factory: pytest.TempPathFactory) -> Discs:
    return Discs(tmp_path_factory.mktemp("discs"))


def hospital(discs: Discs, folder: Path, number: int = 20) -> Path:
    """Write the first images of the external site as files, with their table."""
    folder.mkdir()
    samples = discs.predicted("source")["sample"].head(number)
    names = [f"{sample.replace('/', '-')}.png" for sample in samples]
    for sample, name in zip(samples, names, strict=True):
        Image.fromarray(discs.image(sample)).save(folder / name)
    write_table(folder / "images.csv", pd.DataFrame({"path": names, "label": "unclear"}))
    return folder


def read_mask(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        assert (image.mode, image.format) == ("L", "PNG")
        return np.asarray(image)


@pytest.mark.parametrize("inference", ["source", "tsmobn"])
def test_a_site_of_the_study_gets_its_masks_and_their_areas(discs: Discs, tmp_path: Path, inference: str) -> None:
    known = discs.plan.inferences[inference]
    settings = [f"{k}={v}" for k, v in known.model_dump(exclude_defaults=True).items()]
    source = hospital(discs, tmp_path / "west") / "images.csv"
    found = discs.apply(source, tmp_path / "out", inference, *settings)
    table = read_table(tmp_path / "out" / "predictions.csv")
    assert list(table) == ["path", "pixels_disc", "share_disc", "mask", "overlay"], "a label says nothing of a mask"
    wanted = discs.predicted(inference)
    assert len(wanted) == 20
    masks = [decoded(content, (16, 16), "x") for content in wanted["mask"]]
    for file, mask in zip(table["mask"], masks, strict=True):
        np.testing.assert_array_equal(read_mask(tmp_path / "out" / file), mask)
    areas = [int(mask.sum()) for mask in masks]
    assert sum(area > 0 for area in areas) > 0, "the network has learnt something"
    assert table["pixels_disc"].tolist() == areas
    assert table["share_disc"].tolist() == [area / 256 for area in areas]
    assert found.scaled == 0


def test_an_image_of_another_size_has_a_mask_of_that_size(discs: Discs, tmp_path: Path) -> None:
    """Each pixel becomes three by three, and four columns are added at each side, which the centre leaves out."""
    source = hospital(discs, tmp_path / "west", 6)
    (source / "images.csv").unlink()
    wide = tmp_path / "wide"
    wide.mkdir()
    for file in source.iterdir():
        pixels = np.kron(np.asarray(Image.open(file)), np.ones((3, 3), np.uint8))
        Image.fromarray(np.pad(pixels, ((0, 0), (4, 4)))).save(wide / file.name)
    found = discs.apply(wide, tmp_path / "out")
    assert found.scaled == 6
    files = ImageFiles.of(discs.run, wide)
    model = fedshift.open_run(discs.folder).model()
    for row in found.table.to_dict("records"):
        square, _ = files.read(row["path"])
        x = torch.from_numpy(square.copy()).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            small = model(x).argmax(1)[0].numpy().astype(np.uint8)
        expected = np.pad(np.kron(small, np.ones((3, 3), np.uint8)), ((0, 0), (4, 4)))
        np.testing.assert_array_equal(read_mask(tmp_path / "out" / row["mask"]), expected)
        assert row["pixels_disc"] == expected.sum()
        assert row["share_disc"] == expected.sum() / (48 * 56)
        assert Image.open(tmp_path / "out" / row["overlay"]).size == (56, 48)


def reader(run: Run, **settings: Any) -> ImageFiles:
    return ImageFiles.of(run, Path()).model_copy(update=settings)


@pytest.mark.parametrize("shape", [(16, 16), (40, 23), (23, 40), (7, 31), (11, 9), (64, 64), (16, 50)])
@pytest.mark.parametrize("settings", [{}, {"padding": True}, {"spacing": 1.0}], ids=["cut", "padded", "spacing"])
def test_a_mask_comes_back_to_the_pixels_that_it_was_predicted_for(
    discs: Discs, tmp_path: Path, shape: tuple[int, int], settings: dict[str, Any]
) -> None:
    """Rows and columns are painted as ramps; the square says which of them each of its pixels shows."""
    files = reader(discs.run, table=tmp_path, **settings | {"spacing": None})
    Image.fromarray(np.zeros(shape, np.uint8)).save(tmp_path / "image.png")
    original = files.original("image.png")
    if "spacing" in settings:
        files = reader(discs.run, table=tmp_path, **settings)
        original = type(original)(original.pixels, files._place(shape))
    for axis in (0, 1):
        ramp = np.indices(shape)[axis].astype(np.float32) + 1
        # as the image is placed, but in floats, and by the nearest pixel
        square = files._square(ramp, Image.Resampling.NEAREST)
        if settings.get("padding"):
            from PIL import ImageOps

            square = np.asarray(ImageOps.pad(Image.fromarray(ramp), (16, 16), Image.Resampling.NEAREST))
        back = original.restored(square)
        seen = back > 0
        step = max(shape) / 16 if settings.get("padding") else min(shape) / 16
        if "spacing" in settings:
            step = 1e-6
        assert np.abs(back - ramp)[seen].max() <= max(step, 1e-6)
        if settings.get("padding"):
            assert seen.all(), "nothing was cut off"
        else:
            side = 16 if "spacing" in settings else min(shape)
            assert seen.sum() == min(side, shape[0]) * min(side, shape[1])


@pytest.mark.parametrize("name", ["polyps", "fundus_sites", "retina_vessels", "prostate_sites"])
def test_images_are_padded_where_those_of_the_run_were(discs: Discs, name: str) -> None:
    data = discs.run.data.model_copy(update={"dataset": registry.build("dataset", name)})
    files = ImageFiles.of(discs.run.model_copy(update={"data": data}), Path())
    assert files.padding
    tall = np.full((200, 100, 3), 200, np.uint8)
    square = files._square(tall)
    assert square.shape == (files.size, files.size, 3)
    quarter = files.size // 4
    assert not square[:, : quarter - 1].any() and not square[:, 1 - quarter :].any()
    assert (square[:, quarter + 1 : -quarter - 1] == 200).all()
    assert not ImageFiles.of(discs.run, Path()).padding


def test_middles_of_scans_are_refused(discs: Discs) -> None:
    dataset = registry.build("dataset", {"name": "prostate_sites", "centre": 32})
    data = discs.run.data.model_copy(update={"dataset": dataset})
    with pytest.raises(
        UserError, match=r"the middle 32 pixels of scans, which are not cut out here; choose another run"
    ):
        ImageFiles.of(discs.run.model_copy(update={"data": data}), Path())


# ---- overlays


def edge(mask: np.ndarray) -> np.ndarray:
    """The pixels of a mask with a neighbour outside of it, by loops."""
    height, width = mask.shape
    found = np.zeros_like(mask)
    for i, j in zip(*np.nonzero(mask), strict=True):
        around = [(i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)]
        found[i, j] = any(not (0 <= a < height and 0 <= b < width and mask[a, b]) for a, b in around)
    return found


def test_an_overlay_is_the_image_with_the_edge_of_its_mask(discs: Discs, tmp_path: Path) -> None:
    source = hospital(discs, tmp_path / "west")
    found = discs.apply(source, tmp_path / "out")
    (names,) = {
        tuple(sorted(path.name for path in (tmp_path / "out" / kind).iterdir())) for kind in ("masks", "overlays")
    }
    assert names == tuple(f"{n:02}-west-{n - 1:04}.png" for n in range(1, 21))
    outlined = 0
    for row in found.table.to_dict("records"):
        grey = np.asarray(Image.open(source / row["path"]))
        drawn = np.asarray(Image.open(tmp_path / "out" / row["overlay"]))
        line = edge(read_mask(tmp_path / "out" / row["mask"]) > 0)
        outlined += int(line.any())
        expected = np.repeat(grey[..., None], 3, axis=2)
        expected[line] = ORANGE
        np.testing.assert_array_equal(drawn, expected)
    assert outlined > 0


def test_structures_have_colours_and_large_images_are_made_smaller() -> None:
    both = np.zeros((2, 100, 100), dtype=bool)
    both[0, 10:90, 10:90] = True
    both[1, 30:60, 30:60] = True
    drawn = overlay(np.full((100, 100, 3), 50, np.uint8), both)
    assert drawn[10, 50].tolist() == list(ORANGE)
    assert drawn[30, 50].tolist() == [31, 127, 196]
    assert (drawn == 50).all(axis=2).sum() == 100**2 - edge(both[0]).sum() - edge(both[1]).sum()
    large = np.zeros((1, 1500, 2048), dtype=bool)
    large[0, 200:1300, 200:1800] = True
    drawn = overlay(np.zeros((1500, 2048, 3), np.uint8), large)
    assert drawn.shape == (750, LARGEST, 3)
    column = drawn[:, 512].any(axis=1)
    assert np.flatnonzero(column).tolist() == [*range(100, 103), *range(647, 650)], "lines of 1024 / 400 pixels"


# ---- sites, files and faults


def test_sites_adapt_by_themselves_and_stand_in_the_table(discs: Discs, tmp_path: Path) -> None:
    source = hospital(discs, tmp_path / "west")
    table = read_table(source / "images.csv").assign(site=["a", "b"] * 10)
    write_table(source / "images.csv", table)
    write_table(source / "a.csv", table[table["site"] == "a"].drop(columns="site"))
    both = discs.apply(source / "images.csv", tmp_path / "both", "tsmobn")
    alone = discs.apply(source / "a.csv", tmp_path / "alone", "tsmobn")
    at_a = both.table[both.table["site"] == "a"]
    for one, other in zip(at_a["mask"], alone.table["mask"], strict=True):
        np.testing.assert_array_equal(read_mask(tmp_path / "both" / one), read_mask(tmp_path / "alone" / other))
    text = Outline(page.write(both).read_text(encoding="utf-8")).text
    assert "Predicted structures at each site" in text


def test_files_that_are_no_images_have_no_mask(discs: Discs, tmp_path: Path) -> None:
    source = hospital(discs, tmp_path / "west", 3)
    (source / "a-text.png").write_text("no image")
    with pytest.raises(UserError, match=r"a-text\.png: cannot be read as an image"):
        discs.apply(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    found = discs.apply(source, tmp_path / "out", skip_unreadable=True)
    table = read_table(tmp_path / "out" / "predictions.csv")
    assert table["mask"].isna().tolist() == [True, False, False, False]
    assert table["pixels_disc"].isna().tolist() == [True, False, False, False]
    assert table["unreadable"].notna().tolist() == [True, False, False, False]
    assert len(found.table) == 3
    assert len(list((tmp_path / "out" / "masks").iterdir())) == 3


def test_predicted_again_no_mask_of_before_is_left(discs: Discs, tmp_path: Path) -> None:
    out = tmp_path / "out"
    page.write(discs.apply(hospital(discs, tmp_path / "west", 4), out))
    page.write(discs.apply(hospital(discs, tmp_path / "less", 1), out))
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    picture = "1-west-0000.png"
    assert files == [
        "fedshift-applied.json",
        f"masks/{picture}",
        f"overlays/{picture}",
        "page.html",
        "predictions.csv",
    ]
    assert sorted(json.loads((out / "fedshift-applied.json").read_text())["files"]) == sorted(
        ["masks", "overlays", *(name for name in files if name != "fedshift-applied.json")]
    )
    (out / "masks" / "corrected.png").write_text("years of work")
    with pytest.raises(UserError, match=r"holds masks/corrected\.png.*; choose another folder with --out"):
        discs.apply(tmp_path / "less", out)
    assert (out / "masks" / "corrected.png").read_text() == "years of work"


def test_what_is_written_never_becomes_an_image_to_predict(discs: Discs, tmp_path: Path) -> None:
    source = hospital(discs, tmp_path / "west", 2)
    with pytest.raises(UserError, match=r"lies in .*west: the next call would read .* as images; choose another"):
        discs.apply(source, source / "results")
    assert not (source / "results").exists()


def test_a_network_of_nan_writes_nothing(discs: Discs, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(discs.folder, folder)
    (folder / "manifest.json").unlink()
    tensors, about = read_tensors(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("conv.weight"))
    write_tensors(folder / "model.safetensors", tensors | {name: torch.full_like(tensors[name], torch.nan)}, about)
    with pytest.raises(UserError, match=r"its network gives outputs that are not numbers; train it anew"):
        apply(folder, hospital(discs, tmp_path / "west", 2), chosen("source", [], None), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "nowhere: no such file or folder"),
        (["empty"], "empty: holds no images; name a folder with DICOM files, "),
        (["west", "--inference", "t3a"], "--inference: inference t3a is for classification, and this is segmentation"),
        (["west", "--client", "east"], "east"),
    ],
)
def test_bad_input_is_one_line(
    discs: Discs, tmp_path: Path, monkeypatch: Any, capsys: Any, words: Sequence[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    hospital(discs, tmp_path / "west", 2)
    Path("empty").mkdir()
    assert cli.main(["apply", str(discs.folder), *words, "--out", "out"]) == 2
    (fault,) = capsys.readouterr().err.splitlines()[-1:]
    assert line in fault
    assert not Path("out").exists()


# ---- the page


def test_the_page_of_masks(discs: Discs, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    hospital(discs, tmp_path / "west")
    command = ["apply", str(discs.folder), "west", "--inference", "tsmobn", "--out", "out"]
    assert cli.main(command) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "wrote out/predictions.csv and out/page.html"
    html = Path("out/page.html").read_text(encoding="utf-8")
    outline = Outline(html)
    table = read_table(Path("out/predictions.csv"))
    share = table["share_disc"][table["share_disc"] > 0]
    for words in (
        f"20 images: the network outlines disc in {100 * len(share) / 20:.1f} % (in the median, "
        f"{100 * share.median():.1f} % of such an image).",
        "Without masks drawn by a reader, nothing here says whether that is right.",
        "an image's outlines depend on the others of its site",
        "disc orange",
        "For research only.",
    ):
        assert words in outline.text, words
    for word in ("probabilit", "confidence", "Labelled"):
        assert word not in outline.text
    images = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert 0 < len(images) <= 8
    assert all(attributes["alt"] for attributes in images)
    assert cli.main([*command, "--no-examples"]) == 0
    assert "<img" not in Path("out/page.html").read_text(encoding="utf-8")


def test_class_probabilities_of_a_run_of_masks_are_refused(discs: Discs) -> None:
    run = fedshift.open_run(discs.folder)
    with pytest.raises(
        UserError, match=r"was trained for segmentation, and only class probabilities .* fedshift apply"
    ):
        run.predict(run.images("west")[0])
