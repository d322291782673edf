"""Small files that promise much are refused in one line, and what is read stays below the limit of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bombs
import nibabel
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import PATIENCE

from fedshift.core.errors import UserError
from fedshift.datasets import _base, _digit_files, _mask_files
from fedshift.io.images import open_scan, read_image
from fedshift.io.scan import MOST_BYTES, Reading
from fedshift.io.tables import read_table

READ = """
import resource, sys
from pathlib import Path
import nibabel, numpy, pydicom
from PIL import Image
from fedshift.core.errors import UserError
from fedshift.io.images import read_image
from fedshift.io.scan import Reading
from fedshift.io.images import is_scan, open_scan
Image.init()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for path in map(Path, sys.argv[1:]):
    before = peak()
    try:
        if is_scan(path):
            scan = open_scan(path, Reading(window=(0, 1)), "get it again")
            shape = scan.image((scan.frames + 1) // 2, Reading(window=(0, 1))).shape
        else:
            shape = read_image(path, own=True).shape
        said = f"read {shape}"
    except UserError as error:
        said = str(error)
    print(path.name, peak() - before, said, sep="|", flush=True)
"""


def read(*paths: Path) -> dict[str, tuple[int, str]]:
    """Read images in a new process; return by how many bytes each raised its peak of memory, and what was said."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not done.stderr
    return {name: (int(grown), said) for name, grown, said in (line.split("|") for line in done.stdout.splitlines())}


WORDS = {
    **dict.fromkeys(("small.nii", "plane.nii", "five.nii", "small.nii.gz"), "or is cut short; get it again"),
    "float64.nii.gz": "has 640x640x640 voxels and would take 2.11 GB of memory, more than the 0.9 GB",
    "int16.nii.gz": "has 1000x1000x1000 voxels and would take 2.02 GB of memory, more than the 0.9 GB",
    "extension.nii.gz": "read (4, 4, 3)",
    "rgb.png": "has 8100x8100 pixels and would take 0.92 GB of memory, more than the 0.9 GB",
    "over.png": "has too many pixels to be read at once",
    "icon.ico": "cannot be read as an image",
    "icon.icns": "cannot be read as an image",
    "deflated.dcm": "has deflated elements and would take 0.90 GB",
    "head.dcm": "has 65535x65535 pixels and would take 103.08 GB",
}
"""What is said of each; of all others that they have 13000x13000 pixels. Gigabytes are 14 bytes a pixel of an image, 24
of a scan, and those of the voxels as stored."""


def test_small_files_that_promise_much_are_refused_with_little_memory(tmp_path: Path) -> None:
    found = read(*(bombs.write(tmp_path, name) for name in bombs.FILES))
    assert found.keys() == bombs.FILES.keys()
    for name, (_, said) in found.items():
        assert WORDS.get(name, "has 13000x13000 pixels and would take 2.37 GB of memory") in said, name
    assert sum(grown for grown, _ in found.values()) < 100e6


def test_what_is_within_the_limit_takes_no_more_than_it_says(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(bombs.png(8000, 8000))
    (tmp_path / "large.nii.gz").write_bytes(bombs.gzipped(bombs.nifti((900, 900, 900), "u1"), 900**3))
    found = read(tmp_path / "large.png", tmp_path / "large.nii.gz")
    assert [said for _, said in found.values()] == ["read (8000, 8000, 3)", "read (900, 900, 3)"]
    assert sum(grown for grown, _ in found.values()) < MOST_BYTES


@pytest.mark.parametrize("scale", [(1.0, 0.0), (0.5, -3.0)])
@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
@pytest.mark.parametrize("number", [1, 3])
def test_every_slice_has_the_values_that_nibabel_reads(
    tmp_path: Path, scale: tuple[float, float], ending: str, number: int
) -> None:
    """All turns of the axes, and the third of four volumes; the affine turns and mirrors what is stored."""
    values = np.arange(4 * 5 * 6 * 4, dtype=np.int16).reshape(4, 5, 6, 4)
    made = nibabel.Nifti1Image(values, bombs.TURNED)
    made.header.set_slope_inter(*scale)
    path = tmp_path / f"v.{ending}"
    nibabel.save(made, path)
    volume = nibabel.as_closest_canonical(nibabel.load(path)).get_fdata()[..., 2]
    for axis, across in (("sagittal", 0), ("coronal", 1), ("axial", 2)):
        scan = open_scan(path, Reading(axis=axis, volume=3), "get it again")
        wanted = np.take(volume, number - 1, axis=across)
        np.testing.assert_array_equal(scan.frame(number).values, wanted.T[::-1, ::-1])


def test_masks_have_the_same_limit(tmp_path: Path) -> None:
    path = bombs.write(tmp_path, "bits.png")
    with pytest.raises(UserError, match="has 13000x13000 pixels and would take"):
        _mask_files.read_classes(path, (13000, 13000), {0: 0}, "get it again")


@pytest.mark.parametrize("shape", [(60000, 28000, 28000), (2**31 - 1,) * 3, (-1, 28, 28)])
def test_bytes_of_an_array_are_compared_with_its_head(tmp_path: Path, shape: tuple[int, ...]) -> None:
    head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big", signed=True) for n in shape)
    (tmp_path / "x.gz").write_bytes(bombs.gzipped(head, 1 << 24))
    with pytest.raises(UserError, match=r"x\.gz: has (an array of shape .* and would take|1 bytes for an array)"):
        _digit_files.read_idx(tmp_path / "x.gz", 3)


def test_an_archive_of_arrays_is_compared_with_its_heads(tmp_path: Path) -> None:
    """Neither 8 TB nor the memory of this machine are taken for three numbers."""
    np.savez(tmp_path / "x.npz", x=np.zeros(3))
    head = b"'shape': (3,), }"
    content = (tmp_path / "x.npz").read_bytes()
    assert head in content
    longer = b"'shape': (999999999999,), }"
    (tmp_path / "x.npz").write_bytes(content.replace(head + b" " * (len(longer) - len(head)), longer))
    with pytest.raises(UserError, match=r"x\.npz: (not a readable npz file|this npz file does not fit)"):
        _base.read_npz(tmp_path / "x.npz", ["x"], "obtain it again")


def test_a_table_of_one_value_in_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    ones = pa.table({"x": pa.array(np.ones(1 << 22, dtype=np.int8))})
    with pq.ParquetWriter(path, ones.schema) as file:
        for _ in range(65):
            file.write_table(ones)
    assert path.stat().st_size < 1e6
    with pytest.raises(UserError, match=r"its 272,629,760 rows of 1 columns would fill the memory"):
        read_table(path)
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "one.parquet")
    assert read_table(tmp_path / "one.parquet")["x"].tolist() == [1]


def test_an_image_that_is_turned_is_read_as_its_exif_says(tmp_path: Path) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read_image(tmp_path / "turned.png", own=True), np.rot90(pixels, -1))
    assert np.array_equal(read_image(tmp_path / "turned.png"), pixels)
