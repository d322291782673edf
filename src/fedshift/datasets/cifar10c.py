"""CIFAR-10-C: the test images of CIFAR-10 under 15 corruptions. Each corruption is a site."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from ..core.errors import UserError
from ..core.registry import build
from ..io.arrays import map_array
from ..io.disk import atomic_folder
from ..io.download import Source
from ._base import Card, Dataset, Opened, listed, names_of, read_npz, require_labels
from ._corruptions import CHUNK, EXTRA, NAMES, SIDE, corrupt
from ._divided import CIFAR10 as CLASSES
from ._divided import FOLDER as CLEAN
from ._divided import TEST, read_records

FOLDER = "CIFAR-10-C"
SIZE = 2_918_471_680
SEVERITIES = 5
THREADS = 4  # at most; each makes one part
AGAIN = "obtain the archive again"
SHARED = (
    "All sites show the same images, so they must share one split. A site that is left out has images that were also "
    "used for training, under a different corruption; the page shows how the other images fare."
)


class Cifar10C(Dataset):
    """10,000 test images of CIFAR-10 under each of 15 corruptions (19 with `extra`) at one severity; site = corruption.

    The official files have an array (50000, 32, 32, 3) uint8 for each corruption, with 10,000 rows for each severity.
    With `source: generated`, the images of CIFAR-10's own archive, or of the user's file, are corrupted here, when they
    are prepared (see `fedshift.datasets._corruptions`). All sites show the same images in the same order, and `base` is
    the number of the image.

    Hendrycks and Dietterich 2019 (ICLR). Size and MD5 of the archive are those of its Zenodo record.
    """

    site_kind = "domain"
    miniature_fields = frozenset({"bases"})
    reading_fields = frozenset({"severity", "extra", "seed"})
    shape: ClassVar[tuple[int, int, int] | None] = (3, SIDE, SIDE)
    classes: tuple[str, ...] = names_of(CLASSES)
    severity: int = Field(
        1, ge=1, le=SEVERITIES, description="severity of all corruptions, from 1 (weak) to 5 (strong)"
    )
    extra: bool = Field(False, description=f"whether the sites {', '.join(EXTRA)} are added")
    source: Literal["official", "generated"] = Field(
        "official", description="the published files, or corruptions generated here from the images of CIFAR-10"
    )
    images: Path | None = Field(
        None,
        description="with source: generated, a .npz file to corrupt instead of CIFAR-10's archive, from the working "
        "folder: x (n, 32, 32, 3) uint8 and y (n,), labels 0 to 9",
    )
    seed: int = Field(0, ge=0, description="with source: generated, seed of the random corruptions")
    bases: int = Field(60, ge=20, multiple_of=10, description="number of images that the miniature corrupts")

    @model_validator(mode="after")
    def _images_need_generated(self) -> Cifar10C:
        if self.images is not None and self.source != "generated":
            raise UserError("images", "are given, but the official files are asked for", "say source: generated")
        return self

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the corruptions that are sites, in the order of the paper."""
        return NAMES + EXTRA if self.extra else NAMES

    @property
    def has_miniature(self) -> bool:
        """Return whether a miniature exists; the user's own images have none and are used in full at every scale."""
        return self.images is None

    def card(self) -> Card:
        generated = (
            f"Corrupted by fedshift (seed {self.seed}), not the published files: random corruptions differ from them "
            "in every pixel, and frost uses drawn textures instead of photographs. "
        )
        official = Card(
            title="CIFAR-10-C",
            version=f"severity {self.severity}",
            source="https://zenodo.org/records/2535967",
            licence="CC BY 4.0",
            citation="Hendrycks & Dietterich 2019 (Benchmarking Neural Network Robustness to Common Corruptions and "
            "Perturbations, ICLR)",
            caveat=SHARED,
        )
        if self.source == "official":
            return official
        return dataclasses.replace(
            official,
            title="CIFAR-10-C, generated",
            source=str(self.images or _clean().card().source),
            licence="none stated for CIFAR-10 (CIFAR-10-C: CC BY 4.0)",
            caveat=generated + SHARED,
        )

    def sources(self) -> Sequence[Source]:
        if self.images is not None:
            return ()
        if self.source == "generated":
            return _clean().sources()
        return [
            Source(
                "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
                "CIFAR-10-C.tar",
                md5="56bf5dcef84df0e2308c6dcbcbbd8499",
                size=SIZE,
                unpack=True,
                unpacked_size=SIZE,
            )
        ]

    def inputs(self) -> Sequence[Path]:
        return () if self.images is None else (self.images,)

    def open(self, raw: Path) -> Opened:
        if self.source == "official":
            labels, image = self._official(raw / FOLDER / FOLDER)
        else:
            x, labels = _test_images(raw) if self.images is None else _from_npz(self.images)
            image = _Corrupted(x, self.sites, self.severity, self.seed)
        n = len(labels)
        names = [f"{site}/{i:05}" for site in self.sites for i in range(n)]
        samples = listed(names, np.repeat(self.sites, n), np.tile(labels, len(self.sites)))
        samples["base"] = np.tile(np.arange(n), len(self.sites))
        return Opened(samples, image)

    def _official(self, folder: Path) -> tuple[np.ndarray, Callable[[int], np.ndarray]]:
        """Return the labels (n,) of the images, and the function that reads image i, which counts over all sites."""
        labels = _labels(folder / "labels.npy")
        expected = (SEVERITIES * len(labels), SIDE, SIDE, 3)
        arrays = []
        for path in (folder / f"{site}.npy" for site in self.sites):
            # memory-mapped: the images of a corruption at all severities
            images = map_array(path, AGAIN)
            if images.dtype != np.uint8 or images.shape != expected:
                raise UserError(path, f"is {images.dtype} {images.shape}, expected uint8 {expected}", AGAIN)
            arrays.append(images)
        start = (self.severity - 1) * len(labels)

        def image(i: int) -> np.ndarray:
            site, base = divmod(i, len(labels))
            return arrays[site][start + base]

        return labels, image

    def miniature(self, raw: Path) -> None:
        """Write the digits of CIFAR-10's miniature under all corruptions at all severities, as the official files.

        With `source: generated`, write CIFAR-10's miniature itself.
        """
        # its test part has a fifth as many images of each class
        clean = _clean(images=self.bases // 2)
        if self.source == "generated":
            clean.miniature(raw)
            return
        with tempfile.TemporaryDirectory() as folder:
            clean.miniature(Path(folder))
            x, y = _test_images(Path(folder))
        with atomic_folder(raw / FOLDER) as new:
            (new / FOLDER).mkdir()
            np.save(new / FOLDER / "labels.npy", np.tile(y, SEVERITIES))
            for name in NAMES + EXTRA:
                parts = [corrupt(x, name, severity) for severity in range(1, SEVERITIES + 1)]
                np.save(new / FOLDER / f"{name}.npy", np.concatenate(parts))


class _Corrupted:
    """A function that corrupts image i on demand, where i counts over all sites, which share the same `images`.

    Images are corrupted in parts of CHUNK images. A call for the first image of a part starts threads that make this
    part and the next ones in the background, and the parts nearest to it are cached. An image outside of the cached
    parts is corrupted alone. Several threads may call it.
    """

    def __init__(self, images: np.ndarray, sites: Sequence[str], severity: int, seed: int) -> None:
        self.images = images
        self.sites = sites
        self.severity = severity
        self.seed = seed
        # parts of a site, the last of which may be smaller
        self.parts = -(-len(images) // CHUNK)
        self.ahead = min(THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(self.ahead)
        self._made: dict[int, Future[np.ndarray]] = {}
        self._lock = threading.Lock()

    def __call__(self, i: int) -> np.ndarray:
        site, base = divmod(i, len(self.images))
        part, row = divmod(base, CHUNK)
        k = site * self.parts + part
        with self._lock:
            if row == 0:
                for n in range(k, min(k + self.ahead, self.parts * len(self.sites))):
                    if n not in self._made:
                        self._made[n] = self._pool.submit(self._make, n)
                for n in sorted(self._made, key=lambda n: abs(n - k))[4 * THREADS :]:
                    del self._made[n]
            made = self._made.get(k)
        if made is not None:
            return made.result()[row]
        return corrupt(self.images[base : base + 1], self.sites[site], self.severity, self.seed, base)[0]

    def _make(self, k: int) -> np.ndarray:
        site, part = divmod(k, self.parts)
        start = part * CHUNK
        return corrupt(self.images[start : start + CHUNK], self.sites[site], self.severity, self.seed, start)


def _clean(**settings: int) -> Dataset:
    """Return the dataset CIFAR-10, without corruptions; found by name since plug-ins do not import each other."""
    cifar10: Dataset = build("dataset", {"name": "cifar10", **settings})
    return cifar10


def _test_images(raw: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the test images (n, 32, 32, 3) and labels (n,) of CIFAR-10's archive, or of its miniature."""
    archive = raw / _clean().sources()[0].unpacked_name
    labels, images = read_records(archive / CLEAN / TEST, (len(CLASSES),))
    return images, labels[:, 0].astype(np.int64)


def _from_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 32, 32, 3) uint8 and labels (n,) of the user's .npz file. Raises UserError for other arrays."""
    x, y = read_npz(path, ("x", "y"), "correct dataset.images: a file of x and y, as numpy.savez writes it")
    if x.dtype != np.uint8 or x.shape[1:] != (SIDE, SIDE, 3) or not len(x):
        raise UserError(path, f"x is {x.dtype} {x.shape}, expected uint8 (n, {SIDE}, {SIDE}, 3)", "correct the file")
    if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
        raise UserError(path, f"y is {y.dtype} {y.shape}, expected whole numbers ({len(x)},)", "correct the file")
    require_labels(path, y, len(CLASSES), "correct the file")
    return x, y


def _labels(path: Path) -> np.ndarray:
    """Read the labels (n,) of the images, which the file has once a severity. Raises UserError if severities differ."""
    labels = map_array(path, AGAIN)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels) or len(labels) % SEVERITIES:
        problem = f"is {labels.dtype} {labels.shape}, expected whole numbers (n,), n a multiple of {SEVERITIES}"
        raise UserError(path, problem, AGAIN)
    require_labels(path, labels, len(CLASSES), AGAIN)
    by_severity = labels.reshape(SEVERITIES, -1)
    differ = (by_severity != by_severity[0]).any(axis=1)
    if differ.any():
        severity = int(differ.argmax()) + 1
        problem = f"the labels of severity {severity} are not those of severity 1, but images are the same"
        raise UserError(path, problem, AGAIN)
    return np.array(by_severity[0])
