"""CIFAR-100: small colour photographs of a hundred classes, divided among clients as in FedTAN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from ..io.download import Source
from ._base import names_of
from ._digit_drawing import digit
from ._divided import SIDE, Cifar

COARSE = 20
FINE = 100
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


class Cifar100(Cifar):
    """50,000 training images (32x32 RGB) of CIFAR-100, divided among clients, and 10,000 test images at the site test.

    Images are read from the official binary version, which has no pickles. A record has 3,074 bytes: the coarse label
    (not used), the fine label (0 to 99), and the red, green and blue planes. MD5 as on the official page.
    """

    title: ClassVar[str] = "CIFAR-100"
    version: ClassVar[str] = "binary version, fine labels"
    archive: ClassVar[Source] = Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "cifar-100-binary.tar.gz",
        sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        size=168_513_733,
        unpack=True,
    )
    folder: ClassVar[str] = "cifar-100-binary"
    training_files: ClassVar[tuple[str, ...]] = ("train.bin",)
    test_file: ClassVar[str] = "test.bin"
    names_file: ClassVar[str] = "fine_label_names.txt"
    label_bytes: ClassVar[tuple[int, ...]] = (COARSE, FINE)
    many: ClassVar[int] = FINE
    classes: tuple[str, ...] = names_of(NAMES, "(fine) labels")
    classes_per_client: int | None = Field(
        None, ge=1, le=FINE, description="number of classes that each client holds; by default, clients are iid"
    )
    images: int = Field(
        10, ge=5, description="training images of each class in the miniature, which has a fifth as many test images"
    )

    def drawn(self, rng: np.random.Generator, label: int) -> np.ndarray:
        # a number of two digits side by side
        ink = np.zeros((SIDE, SIDE, 1))
        ink[SIDE // 4 : -SIDE // 4, :, 0] = np.hstack([digit(rng, d, SIDE // 2) for d in divmod(label, 10)])
        ground, pen = rng.permuted([rng.uniform(0, 110, 3), rng.uniform(145, 255, 3)], axis=0)
        seen = ground + (pen - ground) * ink + rng.normal(0, 10, (SIDE, SIDE, 3))
        return seen.clip(0, 255).round().astype(np.uint8)
