"""Binary files of CIFAR-10 and CIFAR-100: one or two bytes of labels, then red, green and blue planes of 32x32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.errors import UserError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER, TEST = "cifar-10-batches-bin", "test_batch.bin"
"""Folder and test file of CIFAR-10's archive."""
SIDE = 32
PLANES = (3, SIDE, SIDE)
AGAIN = "obtain the archive again"


def read_records(path: Path, classes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Read labels (n, len(classes)) and images (n, 32, 32, 3), uint8, of a file; `classes` bounds each label byte.

    Raises UserError if the file is missing, does not consist of whole records, or has a label out of bounds.
    """
    record = len(classes) + 3 * SIDE * SIDE
    if not path.is_file():
        raise UserError(path, "no such file", AGAIN)
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % record:
        raise UserError(path, f"has {len(content)} bytes, which are not whole records of {record}", AGAIN)
    labels, planes = np.split(content.reshape(-1, record), [len(classes)], axis=1)
    for k, count in enumerate(classes):
        if (wrong := labels[:, k] >= count).any():
            at = int(wrong.argmax())
            raise UserError(path, f"image {at} has label {labels[at, k]}, expected 0 to {count - 1}", AGAIN)
    return labels, planes.reshape(-1, *PLANES).transpose(0, 2, 3, 1)


def write_records(path: Path, labels: np.ndarray, images: np.ndarray) -> None:
    """Write a file that `read_records` reads."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(np.hstack([labels.astype(np.uint8), planes]).tobytes())
