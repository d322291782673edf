"""CIFAR-10: small colour photographs of ten classes, divided among clients as in FedTAN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..io.download import Source
from ._base import names_of
from ._digit_drawing import digit
from ._divided import CIFAR10, CLASSES, FOLDER, SIDE, TEST, Cifar


class Cifar10(Cifar):
    """50,000 training images (32x32 RGB) of CIFAR-10, divided among clients, and 10,000 test images at the site test.

    Images are read from the official binary version, which has no pickles. A record has 3,073 bytes: the label, then
    the red, green and blue planes.
    """

    title: ClassVar[str] = "CIFAR-10"
    version: ClassVar[str] = "binary version"
    archive: ClassVar[Source] = Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        size=170_052_171,
        unpack=True,
    )
    folder: ClassVar[str] = FOLDER
    training_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
    test_file: ClassVar[str] = TEST
    names_file: ClassVar[str] = "batches.meta.txt"
    label_bytes: ClassVar[tuple[int, ...]] = (CLASSES,)
    classes: tuple[str, ...] = names_of(CIFAR10)

    def drawn(self, rng: np.random.Generator, label: int) -> np.ndarray:
        ink = digit(rng, label, SIDE)
        paper = rng.uniform(0, 110, (3, 1, 1))
        pen = rng.uniform(145, 255, (3, 1, 1))
        if rng.random() >= 0.5:
            paper, pen = pen, paper
        seen = paper + (pen - paper) * ink + rng.normal(0, 10, (3, SIDE, SIDE))
        return seen.clip(0, 255).round().astype(np.uint8).transpose(1, 2, 0)
