"""Which files are scans, and how a table names one of their frames."""

from __future__ import annotations

import re
from pathlib import Path

from .dicom import DicomFile
from .images import PLAIN, is_dicom
from .nifti import NiftiVolume
from .scan import Reading, Scan

NIFTI = (".nii", ".nii.gz")
"""Endings of NIfTI files of one part."""
FRAME = re.compile(r"(.+)#(\d{1,9})")
"""A path with the number of a frame behind it: `cine.dcm#12`."""


def is_scan(path: Path) -> bool:
    """Return whether a file is a scan: by its ending, or, without the ending of an image, by the mark of DICOM."""
    return is_nifti(path.name) or (not path.name.lower().endswith(PLAIN) and is_dicom(path))


def is_nifti(name: str) -> bool:
    """Return whether a name ends as that of a NIfTI file does."""
    return name.lower().endswith(NIFTI)


def open_scan(path: Path, reading: Reading, remedy: str) -> Scan:
    """Return a scan whose header is read. Raises UserError, with `remedy` for a damaged file."""
    if is_nifti(path.name):
        return NiftiVolume.opened(path, reading, remedy)
    return DicomFile.opened(path, remedy)


def located(folder: Path, cell: str) -> tuple[Path, int | None]:
    """Return the file that the cell `path` of a table names, and the number of the frame, None if it names none.

    A file whose own name ends like a number of a frame is taken as it is.
    """
    named = FRAME.fullmatch(cell) if "#" in cell else None
    if named is None or (folder / cell).is_file():
        return folder / cell, None
    return folder / named[1], int(named[2])
