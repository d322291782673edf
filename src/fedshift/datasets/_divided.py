"""Small benchmark images divided among clients as in FedTAN: the division, and CIFAR's binary files.

A record of a CIFAR file is one image: one or two bytes of labels, then the red, green and blue planes of 32x32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic_folder
from ..io.download import Source
from ._base import Card, Dataset, Opened, listed, require_labels

if TYPE_CHECKING:
    import pandas as pd

CLASSES = 10
CAVEAT = "The clients are parts of one set, divided by label or at random: no real site stands behind them."
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDER = "cifar-10-batches-bin"
TEST = "test_batch.bin"
"""File with the test images of CIFAR-10, in the folder FOLDER of its archive."""
SIDE = 32
PLANES = (3, SIDE, SIDE)
AGAIN = "obtain the archive again"


class Divided(Dataset):
    """Training images divided among the sites client1, client2, ...; the official test images are the site test.

    The divisions are those of FedTAN: iid by default. With `classes_per_client`, each client holds that many
    consecutive classes, in equal parts. The first class of client i (from 0) is i * classes / clients; after the last
    class, class 0 follows.
    """

    site_kind = "client"
    many: ClassVar[int] = CLASSES
    """Number of classes."""
    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"clients", "classes_per_client", "seed"})
    clients: int = Field(5, ge=1, le=100, description="number of sites that share the training images")
    classes_per_client: int | None = Field(
        None, ge=1, le=CLASSES, description="number of classes that each client holds; by default, clients are iid"
    )
    seed: int = Field(0, ge=0, description="seed of the shuffle before the training images are divided")
    images: int = Field(
        50, ge=10, description="training images of each class in the miniature, which has a fifth as many test images"
    )

    @model_validator(mode="after")
    def _even(self) -> Divided:
        if self.classes_per_client is None:
            return self
        if self.many % self.clients:
            problem = f"{self.clients} clients do not divide {self.many} classes evenly"
            *even, last = [str(k) for k in range(1, self.many + 1) if self.many % k == 0]
            raise UserError("clients", problem, f"take {', '.join(even)} or {last}, or leave out classes_per_client")
        step = self.many // self.clients
        if self.classes_per_client % step:
            problem = f"{self.classes_per_client} classes for each of {self.clients} clients make unequal parts"
            raise UserError("classes_per_client", problem, f"take a multiple of {step}")
        return self

    def samples(self, train: np.ndarray, test: np.ndarray) -> pd.DataFrame:
        """Return the table of samples (see `Opened`), in stored order, for the labels (n,) of training and test images.

        The site of a training image is its client.
        """
        client = divide(train, self.clients, self.classes_per_client, stream(self.seed, "divide"), self.many)
        names = [*(f"train{n:05}" for n in range(len(train))), *(f"test{n:05}" for n in range(len(test)))]
        sites = [*(f"client{k + 1}" for k in client), *["test"] * len(test)]
        return listed(names, sites, np.concatenate([train, test]))


def divide(
    labels: np.ndarray, clients: int, per_client: int | None, rng: np.random.Generator, classes: int = CLASSES
) -> np.ndarray:
    """Return the number of the client, from 0, that holds each image: (n,) int64.

    Without `per_client`, the images are shuffled and cut into parts whose sizes differ by at most one. With it, the
    images are sorted by label and cut into one block for each client, which has step = `classes` / clients classes if
    all classes have the same size. Each block is shared evenly by per_client / step clients, so that client i holds
    parts of the blocks i, i + 1, ... (FedTAN, supplement). `rng` draws which images of a class go to which client.
    """
    # the permutation comes first: the stable sort below keeps its random order within each class
    order = rng.permutation(len(labels))
    sharers = 1
    if per_client is not None:
        order = order[np.argsort(labels[order], kind="stable")]
        sharers = per_client * clients // classes
    client = np.empty(len(labels), dtype=np.int64)
    for b, block in enumerate(np.array_split(order, clients)):
        for k in range(sharers):
            client[block[k::sharers]] = (b - k) % clients
    return client


def read_records(path: Path, classes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Read labels (n, len(classes)) and images (n, 32, 32, 3), uint8, from a binary file of CIFAR.

    `classes` is the number of classes of each label byte of a record. Raises UserError if the file is missing, does not
    consist of whole records, or has a label out of bounds.
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
    """Write labels (n, bytes) and images (n, 32, 32, 3) uint8 as a binary file of CIFAR, for `read_records`."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    path.write_bytes(np.hstack([labels.astype(np.uint8), planes]).tobytes())


class Cifar(Divided):
    """Base class of CIFAR-10 and CIFAR-100, which are read from the official binary files."""

    shape: ClassVar[tuple[int, ...] | None] = (3, SIDE, SIDE)
    title: ClassVar[str]
    version: ClassVar[str]
    archive: ClassVar[Source]
    folder: ClassVar[str]
    training_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]
    names_file: ClassVar[str]
    label_bytes: ClassVar[tuple[int, ...]]
    """Number of classes of each label byte of a record. The last byte is the label that is used."""

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
        """Write images of drawn class numbers, in a dark and a light random colour, in place of the photographs."""
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
        """Draw an image of class `label` for the miniature, (32, 32, 3) uint8."""
        raise NotImplementedError
