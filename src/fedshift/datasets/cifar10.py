"""CIFAR-10: small colour photographs of ten classes, divided among clients as in FedTAN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from ..core.rng import stream
from ..io.disk import atomic_folder
from ..io.download import Source
from ._base import Card, Opened
from ._cifar import CIFAR10, FOLDER, TEST, read_records, write_records
from ._divide import CAVEAT, CLASSES, Divided, digit

TRAIN = tuple(f"data_batch_{n}.bin" for n in range(1, 6))


class Cifar10(Divided):
    """32x32 RGB, 50,000 training and 10,000 test images; sites = clients made from the training images, and test.

    Read from the official binary version, which has no pickles. A record has 3,073 bytes: the label, then the red,
    green and blue planes.
    """

    shape: ClassVar[tuple[int, int, int] | None] = (3, 32, 32)
    classes: tuple[str, ...] = Field(
        CIFAR10, min_length=CLASSES, max_length=CLASSES, description="names of the labels 0 to 9"
    )

    def card(self) -> Card:
        return Card(
            title="CIFAR-10",
            version="binary version",
            source="https://www.cs.toronto.edu/~kriz/cifar.html",
            licence="none stated",
            citation="Krizhevsky 2009 (Learning Multiple Layers of Features from Tiny Images, University of Toronto)",
            caveat=CAVEAT,
        )

    def sources(self) -> Sequence[Source]:
        return [
            Source(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "cifar-10-binary.tar.gz",
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                size=170_052_171,
                unpack=True,
            )
        ]

    def open(self, raw: Path) -> Opened:
        folder = self._folder(raw)
        parts = [read_records(folder / name, (CLASSES,)) for name in (*TRAIN, TEST)]
        labels, images = [y[:, 0] for y, _ in parts], np.concatenate([x for _, x in parts])
        return Opened(self.samples(np.concatenate(labels[:-1]), labels[-1]), lambda i: images[i])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits for the ten classes, in two random colours, one much lighter than the other."""
        with atomic_folder(self._folder(raw).parent) as new:
            (new / FOLDER).mkdir()
            for name in TRAIN:
                _write(new / FOLDER / name, 2 * self.images)
            _write(new / FOLDER / TEST, CLASSES * (self.images // 5))
            (new / FOLDER / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n", encoding="utf-8")

    def _folder(self, raw: Path) -> Path:
        return raw / self.sources()[0].unpacked_name / FOLDER


def _write(path: Path, count: int) -> None:
    """Write `count` records of synthetic images, of all classes in turn."""
    labels, images = np.arange(count) % CLASSES, np.empty((count, 32, 32, 3), dtype=np.uint8)
    for n, label in enumerate(labels):
        rng = stream("cifar10 miniature", path.name, n)
        ink = digit(rng, int(label), 32)
        dark, light = rng.uniform(0, 110, (3, 1, 1)), rng.uniform(145, 255, (3, 1, 1))
        paper, pen = (dark, light) if rng.random() < 0.5 else (light, dark)
        seen = paper + (pen - paper) * ink + rng.normal(0, 10, (3, 32, 32))
        images[n] = seen.clip(0, 255).round().transpose(1, 2, 0)
    write_records(path, labels[:, None], images)
