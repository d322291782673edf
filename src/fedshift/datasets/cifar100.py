"""CIFAR-100: small colour photographs of a hundred classes, divided among clients as in FedTAN."""

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
from ._cifar import SIDE, read_records, write_records
from ._divide import CAVEAT, Divided, digit

FOLDER = "cifar-100-binary"
TRAIN, TEST = "train.bin", "test.bin"
COARSE, FINE = 20, 100
WORDS = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
NAMES = tuple(WORDS.split())


class Cifar100(Divided):
    """32x32 RGB, 50,000 training and 10,000 test images; sites = clients made from the training images, and test.

    Read from the official binary version, which has no pickles. A record has 3,074 bytes: the coarse label (not used),
    the fine label (0 to 99), and the red, green and blue planes. MD5 as on the official page.
    """

    many: ClassVar[int] = FINE
    shape: ClassVar[tuple[int, ...] | None] = (3, 32, 32)
    classes: tuple[str, ...] = Field(
        NAMES, min_length=FINE, max_length=FINE, description="names of the (fine) labels 0 to 99"
    )
    classes_per_client: int | None = Field(
        None, ge=1, le=FINE, description="number of classes that each client holds; by default, clients are iid"
    )
    images: int = Field(
        10, ge=5, description="training images of each class in the miniature, which has a fifth as many test images"
    )

    def card(self) -> Card:
        return Card(
            title="CIFAR-100",
            version="binary version, fine labels",
            source="https://www.cs.toronto.edu/~kriz/cifar.html",
            licence="none stated",
            citation="Krizhevsky 2009 (Learning Multiple Layers of Features from Tiny Images, University of Toronto)",
            caveat=CAVEAT,
        )

    def sources(self) -> Sequence[Source]:
        return [
            Source(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "cifar-100-binary.tar.gz",
                sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
                md5="03b5dce01913d631647c71ecec9e9cb8",
                size=168_513_733,
                unpack=True,
            )
        ]

    def open(self, raw: Path) -> Opened:
        (y, x), (y_test, x_test) = (read_records(self._folder(raw) / name, (COARSE, FINE)) for name in (TRAIN, TEST))
        images = np.concatenate([x, x_test])
        return Opened(self.samples(y[:, 1], y_test[:, 1]), lambda i: images[i])

    def miniature(self, raw: Path) -> None:
        """Write synthetic numbers of two digits for the hundred classes, in two random colours."""
        with atomic_folder(self._folder(raw).parent) as new:
            (new / FOLDER).mkdir()
            _write(new / FOLDER / TRAIN, FINE * self.images)
            _write(new / FOLDER / TEST, FINE * (self.images // 5))
            (new / FOLDER / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")

    def _folder(self, raw: Path) -> Path:
        return raw / self.sources()[0].unpacked_name / FOLDER


def _write(path: Path, count: int) -> None:
    """Write `count` records of synthetic images, of all classes in turn; five fine labels share a coarse one."""
    fine = np.arange(count) % FINE
    images = np.empty((count, SIDE, SIDE, 3), dtype=np.uint8)
    for n in range(count):
        rng = stream("cifar100 miniature", path.name, n)
        ink = np.zeros((SIDE, SIDE, 1))
        ink[SIDE // 4 : -SIDE // 4, :, 0] = np.hstack([digit(rng, int(d), SIDE // 2) for d in divmod(fine[n], 10)])
        ground, pen = rng.permuted([rng.uniform(0, 110, 3), rng.uniform(145, 255, 3)], axis=0)
        seen = ground + (pen - ground) * ink + rng.normal(0, 10, images[n].shape)
        images[n] = seen.clip(0, 255).round()
    write_records(path, np.stack([fine // (FINE // COARSE), fine], axis=1), images)
