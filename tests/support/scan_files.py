"""Real scans that pydicom and nibabel bring, and changed copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import nibabel
import pydicom
from pydicom.data import get_testdata_file

VOLUMES = Path(nibabel.__file__).parent / "tests" / "data"


def dicom(name: str) -> Path:
    """A DICOM file of pydicom's wheel; none is downloaded."""
    found = get_testdata_file(name, download=False)
    assert found, name
    return Path(str(found))


def copied(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return target


def altered(source: str, target: Path, **elements: Any) -> Path:
    """A copy of a DICOM file with other elements; None removes one."""
    content = pydicom.dcmread(dicom(source))
    for name, value in elements.items():
        if value is None:
            delattr(content, name)
        else:
            setattr(content, name, value)
    target.parent.mkdir(parents=True, exist_ok=True)
    content.save_as(target)
    return target
