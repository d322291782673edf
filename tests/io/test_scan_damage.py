"""Scans with changed bytes: each becomes an image or one line, and never another error."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from scan_files import VOLUMES, dicom

from fedshift.core.errors import UserError
from fedshift.io.images import open_scan
from fedshift.io.scan import Reading

FILES = [
    *map(dicom, ("MR_small.dcm", "MR_small_RLE.dcm", "MR_small_jp2klossless.dcm", "examples_palette.dcm")),
    *map(dicom, ("image_dfl.dcm", "SC_rgb_small_odd_jpeg.dcm", "MR_small_bigendian.dcm", "liver_1frame.dcm")),
    *(VOLUMES / name for name in ("anatomical.nii", "standard.nii.gz", "functional.nii", "example_nifti2.nii.gz")),
]
EACH = 60
HEAD = 1500
"""Bytes that hold most of a header."""


def changed(data: bytes, rng: np.random.Generator) -> bytes:
    """Up to 40 other bytes, most of them in the header; one file of five is cut short as well."""
    spoiled = bytearray(data)
    for _ in range(rng.choice([1, 1, 3, 10, 40])):
        place = rng.integers(min(len(data), rng.choice([352, HEAD, len(data)])))
        spoiled[place] = rng.choice([0, 255, rng.integers(256), spoiled[place] ^ (1 << rng.integers(8))])
    if rng.random() < 0.2:
        del spoiled[rng.integers(len(data)) :]
    return bytes(spoiled)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_changed_bytes_give_an_image_or_one_line(file: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    reading = Reading(window=(0, 1000), volume=1)
    path = tmp_path / file.name
    refused = 0
    for _ in range(EACH):
        path.write_bytes(changed(file.read_bytes(), rng))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scan = open_scan(path, reading, "get it again")
                frame = None if scan.frames == 1 else 1
                scan.require(frame, reading)
                image = scan.image(frame, reading)
        except UserError as error:
            refused += 1
            assert error.where == str(path)
            assert "\n" not in str(error)
        else:
            assert image.dtype == np.uint8
            assert image.shape[2] == 3
    assert 0 < refused < EACH
