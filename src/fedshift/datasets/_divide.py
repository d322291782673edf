"""Small images without real sites: their division among clients, and the digits of their miniatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.rng import stream
from ._arrays import listed
from ._base import Dataset

if TYPE_CHECKING:
    import pandas as pd

CLASSES = 10
CAVEAT = "The clients are parts of one set, divided by label or at random: no real site stands behind them."


class Divided(Dataset):
    """Training images divided among the sites client1, client2, ...; the official test images are the site test.

    The divisions are those of FedTAN: iid, or client i (from 0) holds `classes_per_client` consecutive classes in equal
    parts. Its first class is i times the number of classes over the number of clients; after the last class comes
    class 0 again.
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
        """Return the table of `Opened` for these labels: training images, then test images, in stored order."""
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


LINES = {
    "a": (0, 0, 1, 0),
    "b": (1, 0, 1, 1),
    "c": (1, 1, 1, 2),
    "d": (0, 2, 1, 2),
    "e": (0, 1, 0, 2),
    "f": (0, 0, 0, 1),
    "g": (0, 1, 1, 1),
}
"""Segments of a seven-segment display: x and y of both ends, y downwards."""
DIGITS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")


def digit(rng: np.random.Generator, label: int, size: int) -> np.ndarray:
    """Draw a seven-segment digit of random place, size, slant and pen: (size, size) float64, ink from 0 to 1."""
    unit = size * rng.uniform(0.24, 0.32)
    slant = rng.uniform(-0.25, 0.25)
    pen = size * rng.uniform(0.03, 0.06)
    middle = size / 2 + size * rng.uniform(-0.08, 0.08, 2)
    y, x = np.mgrid[:size, :size] + 0.5
    v = (y - middle[1]) / unit + 1
    u = (x - middle[0]) / unit + 0.5 + slant * (v - 1)
    distance = np.full((size, size), np.inf)
    for name in DIGITS[label]:
        x0, y0, x1, y1 = LINES[name]
        # segments run along the axes, so that the nearest point is found by clipping both coordinates
        nearest = np.clip(u, x0, x1), np.clip(v, y0, y1)
        distance = np.minimum(distance, np.hypot(u - nearest[0], v - nearest[1]))
    return np.clip(pen - unit * distance + 0.5, 0, 1)
