"""MNIST: handwritten digits, divided among clients as in FedTAN."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..io.download import Source
from . import _digit_files as digits
from ._base import Card, Opened, names_of
from ._divided import CAVEAT, CLASSES, Divided


class Mnist(Divided):
    """60,000 training images (28x28 grey) of MNIST, divided among clients, and 10,000 test images at the site test.

    Read from the official IDX files (those of torchvision's first source), which stay compressed.
    """

    shape: ClassVar[tuple[int, int, int] | None] = (1, 28, 28)
    classes: tuple[str, ...] = names_of("0123456789")

    def card(self) -> Card:
        return Card(
            title="MNIST",
            version="1998",
            source="http://yann.lecun.com/exdb/mnist/",
            licence="CC BY-SA 3.0",
            citation="LeCun et al. 1998 (Proceedings of the IEEE 86(11):2278-2324)",
            caveat=CAVEAT,
        )

    def sources(self) -> Sequence[Source]:
        return digits.mnist_sources()

    def open(self, raw: Path) -> Opened:
        (x, y), (x_test, y_test) = (digits.read_mnist(raw, part) for part in (digits.TRAIN, digits.TEST))
        images = np.concatenate([x, x_test])[..., None]
        return Opened(self.samples(y, y_test), lambda i: images[i])

    def miniature(self, raw: Path) -> None:
        """Write synthetic digits like those of a digital display."""
        raw.mkdir(parents=True, exist_ok=True)
        digits.write_mnist(raw, digits.TRAIN, CLASSES * self.images)
        digits.write_mnist(raw, digits.TEST, CLASSES * (self.images // 5))
