"""CIFAR-10 and CIFAR-100: binary files of one or two bytes of labels, then red, green and blue planes of 32x32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic_folder
from ..io.download import Source
from ._arrays import require_labels
from ._base import Card, Opened
from ._divide import CAVEAT, Divided

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-bin"
TEST = "test_batch.bin"
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
    # one read of the whole file: records have a fixed size, and no head
    content = np.fromfile(path, dtype=np.uint8)
    if not len(content) or len(content) % record:
        raise UserError(path, f"has {len(content)} bytes, which are not whole records of {record}", AGAIN)
    labels, planes = np.split(content.reshape(-1, record), [len(classes)], axis=1)
    for k, count in enumerate(classes):
        require_labels(path, labels[:, k], count, AGAIN)
    return labels, planes.reshape(-1, *PLANES).transpose(0, 2, 3, 1)


def write_records(path: Path, labels: np.ndarray, images: np.ndarray) -> None:
    """Write a file that `read_records` reads."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(np.hstack([labels.astype(np.uint8), planes]).tobytes())


class Cifar(Divided):
    """A version of CIFAR, read from the official binary files."""

    shape: ClassVar[tuple[int, ...] | None] = (3, SIDE, SIDE)
    title: ClassVar[str]
    version: ClassVar[str]
    archive: ClassVar[Source]
    folder: ClassVar[str]
    training_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]
    names_file: ClassVar[str]
    label_bytes: ClassVar[tuple[int, ...]]
    """Number of classes of each byte of labels; the last one is used."""

    def card(self) -> Card:
        return Card(
            title=self.title,
            version=self.version,
            source="https://www.cs.toronto.edu/~kriz/cifar.html",
            licence="none stated",
            citation="Krizhevsky 2009 (Learning Multiple Layers of Features from Tiny Images, University of Toronto)",
            caveat=CAVEAT,
        )

    def sources(self) -> Sequence[Source]:
        return [self.archive]

    def open(self, raw: Path) -> Opened:
        folder = raw / self.archive.unpacked_name / self.folder
        parts = [read_records(folder / name, self.label_bytes) for name in (*self.training_files, self.test_file)]
        labels = [y[:, -1] for y, _ in parts]
        images = np.concatenate([x for _, x in parts])
        return Opened(self.samples(np.concatenate(labels[:-1]), labels[-1]), lambda i: images[i])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the classes, in two random colours, one much lighter than the other."""
        per_file = {name: self.many * self.images // len(self.training_files) for name in self.training_files}
        per_file[self.test_file] = self.many * (self.images // 5)
        with atomic_folder(raw / self.archive.unpacked_name) as new:
            (new / self.folder).mkdir()
            for name, count in per_file.items():
                labels = np.arange(count) % self.many
                images = np.stack(
                    [self.drawn(stream(f"{self.name} miniature", name, n), int(k)) for n, k in enumerate(labels)]
                )
                # an earlier byte has a coarser label: consecutive classes share one
                coarse = [labels // (self.many // count) for count in self.label_bytes]
                write_records(new / self.folder / name, np.stack(coarse, axis=1), images)
            names = "\n".join(type(self).model_fields["classes"].default) + "\n"
            (new / self.folder / self.names_file).write_text(names, encoding="utf-8")

    def drawn(self, rng: np.random.Generator, label: int) -> np.ndarray:
        """Draw an image of the miniature, (32, 32, 3) uint8."""
        raise NotImplementedError
