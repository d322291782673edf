"""Millimetres of the pixels of prepared masks: from headers and from the table, after scaling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image
from scan_files import altered

from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets import Opened
from fedshift.jobs.prepare import prepare
from fedshift.study.run import Data
from fedshift.tasks import Segmentation

HEAD = "path,mask,site,patient,spacing_y,spacing_x"


def image(path: Path, height: int, width: int) -> None:
    """An image of noise, beside its mask."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    mask(path, height, width)


def mask(path: Path, height: int, width: int) -> None:
    """A mask with a structure in the middle."""
    pixels = np.zeros((height, width), np.uint8)
    pixels[height // 2 - 4 : height // 2 + 4, width // 2 - 4 : width // 2 + 4] = 255
    Image.fromarray(pixels).save(path.with_suffix(".mask.png"))


def table(folder: Path, rows: Sequence[str], head: str = HEAD, **settings: Any) -> Data:
    (folder / "t.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    masks: dict[int | str, int] = {0: 0, 255: 1}
    spec = {"name": "own_images", "table": str(folder / "t.csv"), "size": 16, "masks": masks, **settings}
    return Data(dataset=registry.build("dataset", spec), synthetic=False, task=Segmentation())


def spacing(data: Data, i: int = 0) -> tuple[float, float] | None:
    opened: Opened = data.dataset.open(Path())
    assert opened.spacing is not None
    return opened.spacing(i)


def test_columns_of_the_table_are_scaled_with_the_image(tmp_path: Path) -> None:
    """The middle 32 x 32 of 32 x 48 pixels become 16 x 16, so that each is as large as two were."""
    image(tmp_path / "a.png", 32, 48)
    image(tmp_path / "b.png", 16, 16)
    data = table(tmp_path, ["a.png,a.mask.png,A,p,0.5,0.25", "b.png,b.mask.png,A,p,0.5,0.25"])
    assert spacing(data) == (1.0, 0.5)
    assert spacing(data, 1) == (0.5, 0.25)
    prepare(data, tmp_path / "raw", tmp_path / "out")
    prepared = Prepared(tmp_path / "out")
    assert prepared.spacing is not None
    assert prepared.spacing.tolist() == [[1.0, 0.5], [0.5, 0.25]]
    assert list(prepared.samples) == ["sample", "site", "label", "patient", "spacing_y", "spacing_x"]


def test_a_dataset_without_spacing_has_no_columns(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 32, 48)
    data = table(tmp_path, ["a.png,a.mask.png,A,p,,"])
    prepare(data, tmp_path / "raw", tmp_path / "out")
    prepared = Prepared(tmp_path / "out")
    assert prepared.spacing is None
    assert list(prepared.samples) == ["sample", "site", "label", "patient"]
    assert prepared.card["notes"] == []


def test_a_mixture_stays_in_pixels_and_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        image(tmp_path / f"{name}.png", 32, 32)
    rows = ["a.png,a.mask.png,A,p,0.5,0.5", "b.png,b.mask.png,B,q,,", "c.png,c.mask.png,B,r,,"]
    prepare(table(tmp_path, rows), tmp_path / "raw", tmp_path / "out")
    line = "Nothing says how many millimetres a pixel has in 2 images (2 at B), so distances are in pixels everywhere."
    assert Prepared(tmp_path / "out").spacing is None
    assert Prepared(tmp_path / "out").card["notes"] == [line]
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("0.5,", "spacing_y '0.5': not two lengths"),
        ("0.5,wide", "spacing_y '0.5', spacing_x 'wide': not two lengths"),
        ("0,0.5", "spacing_y '0', spacing_x '0.5': not two lengths"),
        ("nan,0.5", "spacing_y 'nan', spacing_x '0.5': not two lengths"),
    ],
)
def test_cells_that_are_no_lengths_have_their_line(tmp_path: Path, cells: str, words: str) -> None:
    image(tmp_path / "a.png", 32, 32)
    remedy = "write the millimetres of a pixel, such as 0.35, in spacing_y and spacing_x, or leave both empty"
    with pytest.raises(UserError) as caught:
        table(tmp_path, [f"a.png,a.mask.png,A,p,{cells}"]).dataset.open(Path())
    assert str(caught.value) == f"{tmp_path / 't.csv'}, line 2: {words}; {remedy}"


def test_one_column_alone_is_a_fault(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 32, 32)
    with pytest.raises(UserError, match=r"spacing_y '0\.5': not two lengths"):
        table(tmp_path, ["a.png,a.mask.png,A,p,0.5"], HEAD.removesuffix(",spacing_x")).dataset.open(Path())


def test_dicom_of_pixels_that_are_not_square(tmp_path: Path) -> None:
    """128 x 128 pixels of 0.6 x 0.3 mm become 256 x 128 of 0.3 mm; 128 of them become 16, of 2.4 mm each."""
    altered("CT_small.dcm", tmp_path / "a.dcm", PixelSpacing=[0.6, 0.3])
    mask(tmp_path / "a.dcm", 256, 128)
    row = "a.dcm,a.mask.png,A,p,,"
    data = table(tmp_path, [row], window=(-160, 240))
    assert spacing(data) == pytest.approx((2.4, 2.4))
    assert data.dataset.open(Path()).image(0).shape == (16, 16, 3)
    cut = table(tmp_path, [row], window=(-160, 240), spacing=1.2)
    assert spacing(cut) == pytest.approx((1.2, 1.2)), "scaled to 64 x 32, of which the middle is cut out"


def test_the_header_of_a_scan_goes_before_the_table(tmp_path: Path) -> None:
    altered("CT_small.dcm", tmp_path / "a.dcm", PixelSpacing=[0.5, 0.5])
    altered("CT_small.dcm", tmp_path / "b.dcm", PixelSpacing=None)
    rows = [f"{name}.dcm,{name}.mask.png,A,p,7,7" for name in "ab"]
    data = table(tmp_path, rows, window=(-160, 240))
    for name in "ab":
        mask(tmp_path / f"{name}.dcm", 128, 128)
    assert spacing(data) == (4.0, 4.0)
    assert spacing(data, 1) == (56.0, 56.0)


def test_nifti(tmp_path: Path) -> None:
    """Slices of 24 x 20 voxels of 0.8 x 0.4 mm: 48 x 20 pixels of 0.4 mm, of which 20 become 16, of 0.5 mm each."""
    volume = np.arange(20 * 24 * 4, dtype=np.int16).reshape(20, 24, 4)
    nibabel.save(nibabel.Nifti1Image(volume, np.diag([-0.4, -0.8, 3.0, 1.0])), tmp_path / "v.nii.gz")
    mask(tmp_path / "v.nii", 48, 20)
    data = table(tmp_path, ["v.nii.gz#2,v.mask.png,A,p,,"], window=(0, 2000))
    assert spacing(data) == pytest.approx((0.5, 0.5))


def test_classification_keeps_the_columns_as_text(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 32, 32)
    (tmp_path / "t.csv").write_text("path,label,site,spacing_y,spacing_x\na.png,0,A,0.50,0.5\n", encoding="utf-8")
    data = Data(
        dataset=registry.build("dataset", {"name": "own_images", "table": str(tmp_path / "t.csv")}), synthetic=False
    )
    prepare(data, tmp_path / "raw", tmp_path / "out")
    assert Prepared(tmp_path / "out").samples["spacing_y"].tolist() == ["0.50"]
