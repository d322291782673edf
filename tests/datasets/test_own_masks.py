"""Own images with masks: what is said of each fault, and that images and masks stay aligned."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scan_files import copied, dicom

from fedshift import study
from fedshift.cli import main
from fedshift.core import registry
from fedshift.core.errors import UserError, UserErrors
from fedshift.data.prepared import Prepared
from fedshift.data.samples import MappedSamples, Pooled, TensorSamples, class_counts, labels_of
from fedshift.datasets._mask_files import read_classes
from fedshift.datasets.own_images import OwnImages
from fedshift.io.images import read_image
from fedshift.jobs.prepare import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

SIDE = 16
HALF = np.zeros((SIDE, SIDE), np.uint8)
HALF[:, 4:] = 255
"""A mask whose structure are all columns but the first four."""
VALUES: dict[int | str, int] = {0: 0, 255: 1}


def saved(path: Path, pixels: Any = HALF, **options: Any) -> str:
    """The name of an image that was written beside the table."""
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path.name


def own(folder: Path, rows: Sequence[tuple[str, str]], **settings: Any) -> Data:
    """A table of images and masks, a site and a patient for each."""
    lines = [f"{path},{mask},{'AB'[n % 2]},p{n}" for n, (path, mask) in enumerate(rows)]
    (folder / "t.csv").write_text("\n".join(["path,mask,site,patient", *lines]) + "\n", encoding="utf-8")
    spec = {"name": "own_images", "table": str(folder / "t.csv"), "size": SIDE, "masks": VALUES, **settings}
    return Data(dataset=registry.build("dataset", spec), synthetic=False, task=Segmentation())


def said(data: Data) -> list[str]:
    """The faults that `fedshift check` prints, without the folder."""
    assert isinstance(data.dataset, OwnImages)
    folder = data.dataset.table.parent
    return [str(fault).replace(f"{folder}{os.sep}", "") for fault in data.dataset.examine(Path()).faults]


def prepared(data: Data, folder: Path) -> Prepared:
    prepare(data, folder / "raw", folder / "out")
    return Prepared(folder / "out")


def test_outside_of_the_field_of_view_nothing_counts(tmp_path: Path) -> None:
    """Where `valid` is 0; any other value lies inside. An empty cell leaves the whole image."""
    fields = np.zeros((3, SIDE, SIDE), np.uint8)
    fields[0, :10], fields[1, 3:] = 255, 1
    lines = ["path,mask,valid,site,patient"]
    for k, field in enumerate(fields):
        names = [saved(tmp_path / f"{kind}{k}.png", of) for kind, of in (("i", HALF), ("m", HALF), ("f", field))]
        lines.append(f"{names[0]},{names[1]},{names[2] if k < 2 else ''},{'AB'[k % 2]},p{k}")
    data = own(tmp_path, [])
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    masks = prepared(data, tmp_path / "out").masks
    for k, inside in enumerate((fields[0] > 0, fields[1] > 0, np.ones((SIDE, SIDE), bool))):
        np.testing.assert_array_equal(masks[k], np.where(inside, HALF > 0, 255))


def test_a_field_of_view_that_does_not_fit_is_a_line(tmp_path: Path) -> None:
    for name, pixels in (("i.png", HALF), ("m.png", HALF), ("f.png", HALF[1:])):
        saved(tmp_path / name, pixels)
    data = own(tmp_path, [])
    rows = {
        "lost.png": "no such mask of the field of view: lost.png; correct the path in valid, or leave the cell empty"
    }
    rows["i.png"] = "the field of view 'i.png' is the image itself; correct the path in valid, or leave the cell empty"
    for valid, fault in rows.items():
        (tmp_path / "t.csv").write_text(f"path,mask,valid,site\ni.png,m.png,{valid},A\n", encoding="utf-8")
        assert said(data) == [f"t.csv, line 2: {fault}"]
    (tmp_path / "t.csv").write_text("path,mask,valid,site\ni.png,m.png,f.png,A\n", encoding="utf-8")
    with pytest.raises(UserErrors, match=r"f\.png: has 16x15 pixels, and its image 16x16; give both the same size"):
        prepared(data, tmp_path / "out")


def images(folder: Path, number: int) -> list[str]:
    """Images whose red channel is that of HALF, and whose others tell them apart."""
    return [saved(folder / f"{n}.png", np.stack([HALF, HALF * 0 + n, HALF * 0], 2)) for n in range(number)]


# ---- faults of the table


def test_each_fault_of_a_column_of_masks_has_its_line(tmp_path: Path) -> None:
    first, second, third, fourth, fifth = images(tmp_path, 5)
    mask = saved(tmp_path / "m.png")
    rows = [(first, mask), (second, ""), (third, third), (fourth, mask), (fifth, "lost.png")]
    faults = said(own(tmp_path, rows))
    assert [fault.partition(", line ")[2] for fault in faults] == [
        "3: mask is empty; name the mask of the image, or remove the row",
        "4: the mask '2.png' is the image itself; name its mask",
        "5: 'm.png' is the mask of line 2 too; give each image its own mask",
        "6: no such mask: lost.png; correct the path, or remove the row",
    ]


def test_a_table_without_a_column_mask_is_named(tmp_path: Path) -> None:
    data = own(tmp_path, [(images(tmp_path, 1)[0], "m.png")])
    (tmp_path / "t.csv").write_text("path,label,site\n0.png,0,A\n", encoding="utf-8")
    assert said(data) == ["t.csv: no column 'mask'; it has path, label, site"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"masks": {"red": 1}}, "'red' is neither a grey value nor a colour such as '#ff0000'"),
        ({"masks": {0: 0, "#ff0000": 1}}, "give grey values or colours, not both"),
    ],
)
def test_settings_that_do_not_fit_masks_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        own(tmp_path, [("a.png", "m.png")], **settings)


@pytest.mark.parametrize("masks", [VALUES, {-1: 0, 1: 1}, {"#000000": 0, "#ff0000": 1}])
def test_grey_values_and_colours_come_back_from_the_file_of_a_run(masks: dict[int | str, int]) -> None:
    dataset = registry.build("dataset", {"name": "own_images", "table": "t.csv", "masks": masks})
    again = registry.build("dataset", json.loads(json.dumps(dataset.spec())))
    assert again == dataset
    assert again.masks == masks


# ---- faults of a file


def refused(path: Path, pixels: Any, values: dict[int | str, int] = VALUES, **options: Any) -> str:
    """What is said of a mask for an image of SIDE x SIDE pixels, without the path."""
    saved(path, pixels, **options)
    with pytest.raises(UserError) as caught:
        read_classes(path, (SIDE, SIDE), values, "get it again")
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_mask_of_another_size_is_named_width_first(tmp_path: Path) -> None:
    words = refused(tmp_path / "m.png", HALF[:8])
    assert words == "has 16x8 pixels, and its image 16x16; give both the same size"


def test_values_without_a_class_are_counted(tmp_path: Path) -> None:
    wrong = HALF.copy()
    wrong[0, :3] = 7
    assert refused(tmp_path / "m.png", wrong).startswith("has values without a class: 7 (3 pixels); name each value")
    many = np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE)
    words = refused(tmp_path / "many.png", many)
    assert "1 (1 pixels), 2 (1 pixels), 3 (1 pixels), 4 (1 pixels), 5 (1 pixels) and 249 more" in words


def test_a_mask_that_was_saved_as_jpeg_says_so(tmp_path: Path) -> None:
    """The edge is inside a block of 8 pixels, so that compression changes its values."""
    words = refused(tmp_path / "m.jpg", HALF, quality=75)
    assert words.endswith(
        "name each value in dataset.masks, or ignore it, as in 255: ignore; JPEG changes values: save masks as PNG"
    )


def test_colours_without_a_class_are_named_as_colours(tmp_path: Path) -> None:
    colours = np.zeros((SIDE, SIDE, 3), np.uint8)
    colours[:2, :, 0] = 255
    values: dict[int | str, int] = {"#000000": 0, "#00ff00": 1}
    assert refused(tmp_path / "m.png", colours, values).startswith("has values without a class: #ff0000 (32 pixels)")
    # Grey values do not name colours, and the message says what the file has.
    assert "#ff0000 (32 pixels)" in refused(tmp_path / "n.png", colours)


def test_files_that_are_no_masks_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.png").write_bytes(b"no image")
    with pytest.raises(UserError, match="cannot be read as a mask"):
        read_classes(tmp_path / "m.png", (SIDE, SIDE), VALUES, "get it again")
    with pytest.raises(UserError, match="no such mask; get it again"):
        read_classes(tmp_path / "lost.png", (SIDE, SIDE), VALUES, "get it again")


# ---- kinds of files


def test_masks_of_one_bit_sixteen_bits_a_palette_and_colours_are_read(tmp_path: Path) -> None:
    expected = (HALF > 0).astype(np.uint8)
    palette = Image.fromarray(expected, mode="P")
    palette.putpalette([0, 0, 0, 255, 0, 0])
    red = np.zeros((SIDE, SIDE, 3), np.uint8)
    red[HALF > 0, 0] = 255
    by_colour: dict[int | str, int] = {"#000000": 0, "#FF0000": 1}
    kinds: dict[str, tuple[Any, dict[int | str, int]]] = {
        "bit.png": (Image.fromarray(HALF > 0), VALUES),
        "deep.png": (HALF.astype(np.uint16) * 256, {0: 0, 65280: 1}),
        "palette.png": (palette, {0: 0, 1: 1}),
        "palette-by-colour.png": (palette, by_colour),
        "colours.png": (red, by_colour),
        "opaque.png": (Image.fromarray(red).convert("RGBA"), by_colour),
    }
    for name, (pixels, values) in kinds.items():
        saved(tmp_path / name, pixels)
        found = read_classes(tmp_path / name, (SIDE, SIDE), values, "")
        np.testing.assert_array_equal(np.asarray(found), expected, err_msg=name)


# ---- preparation


def test_a_mask_is_cut_and_scaled_as_its_image_is(tmp_path: Path) -> None:
    """Of 64x32 pixels the centre is cut out and halved: blocks of 2x2 pixels become one, in both."""
    blocks = np.random.default_rng(0).integers(0, 2, (SIDE, 2 * SIDE)).astype(np.uint8) * 255
    pixels = blocks.repeat(2, 0).repeat(2, 1)
    rows = [(saved(tmp_path / "i.png", pixels), saved(tmp_path / "m.png", pixels))]
    made = prepared(own(tmp_path, rows), tmp_path)
    expected = blocks[:, SIDE // 2 : -SIDE // 2] > 0
    assert made.masks.shape == (1, SIDE, SIDE)
    np.testing.assert_array_equal(made.masks[0], expected)
    # Lanczos mixes pixels, but keeps them on their side of the middle.
    np.testing.assert_array_equal(made.images[0, ..., 0] > 127, expected)


def test_with_a_spacing_the_centre_of_a_mask_is_cut_out_as_that_of_its_scan(tmp_path: Path) -> None:
    """MR_small has 64x64 pixels of 0.3125 mm."""
    copied(dicom("MR_small.dcm"), tmp_path / "a.dcm")
    mask = np.zeros((64, 64), np.uint8)
    mask[24:30, 24:40] = 255
    data = own(tmp_path, [("a.dcm", saved(tmp_path / "m.png", mask))], spacing=0.3125, window=(1, 2000))
    np.testing.assert_array_equal(prepared(data, tmp_path).masks[0], mask[24:40, 24:40] > 0)


def test_preparation_names_masks_and_counts_odd_ones_by_site(tmp_path: Path) -> None:
    small = np.zeros((SIDE, SIDE), np.uint8)
    small[2:4, 2:4] = 255
    kinds = (small, 0 * small, 0 * small, 255 - small)
    rows = [(path, saved(tmp_path / f"m{n}.png", kinds[n])) for n, path in enumerate(images(tmp_path, 4))]
    made = prepared(own(tmp_path, rows), tmp_path)
    assert made.samples["label"].tolist() == [1, 0, 0, 1]
    shares = pd.read_parquet(made.folder / "pixels.parquet")["structure"]
    np.testing.assert_allclose(shares, [4 / SIDE**2, 0, 0, 1 - 4 / SIDE**2])
    assert made.card["notes"] == [
        "2 masks without a structure, where all that is predicted is wrong (1 at B, 1 at A).",
    ]


@pytest.mark.parametrize("content", [b"", b"no array", np.zeros((1, 2, 3), dtype=np.uint8), np.zeros(4)])
def test_damaged_masks_end_in_one_line(tmp_path: Path, content: Any) -> None:
    names = images(tmp_path, 2)
    made = prepared(own(tmp_path, [(name, saved(tmp_path / f"mask{k}.png")) for k, name in enumerate(names)]), tmp_path)
    path = made.folder / "masks.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(UserError, match=r"masks\.npy"):
        Prepared(made.folder)


def test_preparation_names_all_faulty_masks_at_once(tmp_path: Path) -> None:
    kinds = (HALF[:8], HALF // 2, HALF)
    rows = [(path, saved(tmp_path / f"m{n}.png", kinds[n])) for n, path in enumerate(images(tmp_path, 3))]
    with pytest.raises(UserErrors) as caught:
        prepared(own(tmp_path, rows), tmp_path)
    first, second = str(caught.value).splitlines()
    assert "m0.png: has 16x8 pixels, and its image 16x16" in first
    assert "m1.png: has values without a class: 127 (192 pixels)" in second


def test_a_class_that_is_not_named_is_refused(tmp_path: Path) -> None:
    rows = [(images(tmp_path, 1)[0], saved(tmp_path / "m.png"))]
    with pytest.raises(UserError, match="has class 2, and there are 2 classes"):
        prepared(own(tmp_path, rows, masks={0: 0, 255: 2}), tmp_path)


# ---- batches


def test_image_and_mask_stay_aligned_through_random_chains() -> None:
    """The mask is the image: after transforms that move pixels, both are equal; values are never mixed."""
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 4, (40, 13, 17)).astype(np.uint8)
    names = ("flip", "rotate90", "rotate", "random_crop")
    square = {chain for n in (1, 2, 3) for chain in itertools.permutations(names, n)}
    for chain in sorted(square):
        stack = masks[:, :, :13] if "rotate90" in chain else masks
        transforms = [registry.build("transform", name) for name in chain]
        samples = MappedSamples(stack[..., None], np.arange(40), np.zeros(40), transforms, masks=stack)
        x, y = samples.batch(np.arange(40), np.random.default_rng(1))
        assert y.dtype == torch.int64
        np.testing.assert_array_equal(x[:, 0], y, err_msg=str(chain))
        assert not np.array_equal(y, stack), chain
        assert set(np.unique(y)) <= {0, 1, 2, 3}


def test_a_transform_of_values_leaves_masks_alone() -> None:
    masks = np.random.default_rng(0).integers(0, 2, (5, 8, 8)).astype(np.uint8)
    chain = [registry.build("transform", name) for name in ("scale_intensity", "flip")]
    x, y = MappedSamples(masks[..., None] * 255, np.arange(5), np.zeros(5), chain, masks=masks).batch(np.arange(5))
    np.testing.assert_array_equal(y, masks)
    np.testing.assert_array_equal(x[:, 0] > x.mean(), masks > 0)


def test_pixels_of_masks_are_counted_by_class() -> None:
    masks = np.zeros((300, 4, 4), np.uint8)
    masks[:, 0] = 1
    masks[7] = 2
    stored = MappedSamples(np.zeros((300, 4, 4, 1), np.uint8), np.arange(300), np.zeros(300), masks=masks)
    held = TensorSamples(torch.zeros(300, 1, 4, 4), torch.from_numpy(masks))
    for samples in (stored, held):
        np.testing.assert_array_equal(labels_of(samples), masks)
        assert class_counts(samples, 4).tolist() == [299 * 12, 299 * 4, 16, 0]
    assert class_counts(Pooled([stored, held])).tolist() == [2 * 299 * 12, 2 * 299 * 4, 32]


# ---- studies

STUDY = """
title: Masks
task: segmentation
dataset: discs
partition: { internal: [north, south], external: [east] }
model: unet_small
training: { rounds: 2, batch_size: 8 }
runs: [{ algorithm: fedavg }]
headline: dice
metrics: [dice]
inferences: [source]
control: false
figures: []
"""


def test_a_check_says_nothing_of_classes_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(path, saved(tmp_path / f"m{n}.png")) for n, path in enumerate(images(tmp_path, 40))]
    own(tmp_path, rows)
    table = "dataset: { name: own_images, table: t.csv, masks: { 0: 0, 255: 1 }, classes: [ground, disc], size: 16 }"
    sites = STUDY.replace("dataset: discs", table).replace("[north, south], external: [east]", "[A], external: [B]")
    (tmp_path / "s.yaml").write_text(sites, encoding="utf-8")
    assert main(["check", str(tmp_path / "s.yaml"), "--scale", "paper"]) == 0
    out = capsys.readouterr().out
    assert "A (internal): 20 images, 20 patients\n" in out
    assert not any(word in out for word in ("disc", "positive class", "no image of class", "classes go with sites"))


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            "dataset: discs",
            "dataset: { name: gaussians }",
            "task: segmentation needs masks, and gaussians has none; choose a dataset with masks, or leave task out",
        ),
        (
            "task: segmentation",
            "",
            "task: discs has masks, and classification needs a class of each image; say task: segmentation, or leave "
            "out masks",
        ),
        (
            "model: unet_small",
            "model: mlp",
            "runs.0.model: model mlp is for classification, and this is segmentation; choose another model",
        ),
        (
            "headline: dice",
            "headline: accuracy",
            "headline: metric accuracy is for classification, and this is segmentation; choose another metric",
        ),
        (
            "metrics: [dice]",
            "metrics: [dice, auc]",
            "metrics: metric auc is for classification, and this is segmentation; choose another metric",
        ),
        (
            "control: false",
            "transforms: [{ name: resize, size: 64 }]\ncontrol: false",
            "transforms: resize may move pixels in a way that a mask cannot follow; leave it out, or resize images "
            "when they are read",
        ),
    ],
    ids=["no masks", "no task", "network", "headline", "metric", "resize"],
)
def test_what_does_not_fit_the_task_of_a_study_is_one_clear_line(
    tmp_path: Path, before: str, after: str, line: str
) -> None:
    path = tmp_path / "s.yaml"
    assert before in STUDY
    path.write_text(STUDY.replace(before, after), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        study.load(path, "paper")
    assert str(caught.value).replace(f"{path}.", "") == line


def test_the_shape_of_discs_is_stated(tmp_path: Path) -> None:
    dataset = registry.build("dataset", "discs")
    dataset.download(tmp_path, None)
    height, width, channels = dataset.open(tmp_path).image(0).shape
    assert dataset.shape == (channels, height, width)


def test_an_image_is_not_read_again_for_its_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preparation that goes on has masks of images that it has not read itself."""
    mask = saved(tmp_path / "m.png")
    dataset = own(tmp_path, [(images(tmp_path, 1)[0], mask)]).dataset
    read: list[str] = []

    def counted(path: Path, **options: Any) -> np.ndarray:
        read.append(path.name)
        return read_image(path, **options)

    monkeypatch.setattr("fedshift.datasets.own_images.read_image", counted)
    for first in (True, False):
        opened = dataset.open(tmp_path)
        assert opened.mask is not None
        if first:
            opened.image(0)
        np.testing.assert_array_equal(opened.mask(0), HALF > 0)
        assert read == ["0.png"]
        read.clear()
