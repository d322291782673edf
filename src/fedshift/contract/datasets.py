"""Checks of datasets: their data card, and their miniature (a small synthetic set in the layout of the raw files)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import listdir, scandir
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pandas as pd

from ..datasets import Dataset, Opened, SiteKind
from .case import Case, made, require

SMALL: dict[str, dict[str, Any]] = {
    "camelyon17": {"patches": 40},
    "cifar10c": {"bases": 20},
    "digits_five": {"images": 10},
}
"""Settings, by name of a dataset of this package, that make its miniature small. Other datasets have their defaults."""
MOST = 100
"""About how many images of a miniature are read."""
Kind = type[Dataset]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield the checks that a dataset class must pass."""
    yield Case("its card, classes and nouns are complete", partial(says_where_it_is_from, cls))
    yield Case("its miniature is read as documented", partial(miniature_is_read, cls))


def _listed_backwards(place: Any = ".") -> list[str]:
    """Return `os.listdir(place)` in reverse order, as another file system may list a folder."""
    return listdir(place)[::-1]  # noqa: PTH208 - it stands for that function


class _Backwards(Iterator[Any]):
    """A stand-in for `os.scandir` that yields a folder's entries in reverse order, as another file system may do."""

    def __init__(self, place: Any = ".") -> None:
        with scandir(place) as entries:
            self._entries = iter([*entries][::-1])

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Backwards:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the folder was closed when its entries had been listed."""

    close = __exit__


def says_where_it_is_from(cls: Kind) -> None:
    """Check the data card, the number of classes, and the nouns for sites (`site_kind`) and samples (`sample_noun`)."""
    dataset = made(cls)
    card = dataset.card()
    require(all((card.title, card.source, card.licence)), "its card needs title, source and licence")
    require(len(dataset.classes) >= 2, "it needs two classes at least")
    require(dataset.site_kind in get_args(SiteKind), f"site_kind is one of {', '.join(get_args(SiteKind))}")
    plain = dataset.sample_noun.isalpha() and dataset.sample_noun.islower()
    require(plain, "sample_noun is one word in small letters, such as image")


def miniature_is_read(cls: Kind) -> None:
    """Check the miniature, if the dataset has one: its sample table, its images, and equal bytes when written twice."""
    dataset = made(cls, **SMALL.get(cls.name, {}))
    if dataset.has_miniature:
        with tempfile.TemporaryDirectory() as folder:
            _check_miniature(dataset, Path(folder, "one"), Path(folder, "two"))


def _check_miniature(dataset: Dataset, one: Path, two: Path) -> None:
    """Write the miniature into two folders and check that their files are equal, and that `open` reads them correctly.

    The sample table must not depend on the order of a folder's files, and `open` must write no file.
    """
    for folder in (one, two):
        folder.mkdir()
        dataset.miniature(folder)
    files = [f.relative_to(one) for f in sorted(one.rglob("*")) if f.is_file()]
    require(bool(files), "its miniature writes no file")
    for file in files:
        require((one / file).read_bytes() == (two / file).read_bytes(), f"a second miniature has other bytes in {file}")
    opened = dataset.open(one)
    samples = opened.samples
    with mock.patch("os.scandir", _Backwards), mock.patch("os.listdir", _listed_backwards):
        again = dataset.open(one).samples
    words = (
        "the table differs where the system lists files in another order, or each time; sort files, and draw nothing"
    )
    require(samples.equals(again), words)
    require(len(dataset.examine(one).samples) == len(samples), "examine finds other samples than open")
    written = {f.relative_to(one) for f in one.rglob("*") if f.is_file()}.difference(files)
    require(not written, f"open writes {sorted(map(str, written))} into the raw folder, which may be read-only")
    _check_table(dataset, opened)
    _check_images(dataset, opened)


def _check_table(dataset: Dataset, opened: Opened) -> None:
    """Check the sample table: unique text names, sites, patients, class numbers, and the columns named in `further`."""
    samples = opened.samples
    require(bool(samples["sample"].is_unique), "names of samples occur twice")
    whole = samples["label"].dtype.kind in "iu"
    require(whole, f"labels are {samples['label'].dtype}, and must be whole numbers (int)")
    require(
        bool(samples["label"].between(0, len(dataset.classes) - 1).all()),
        "a label is no number of a class, which count from 0",
    )
    require(bool(samples["site"].value_counts().min() > 1), "a site has a single sample")
    require("patient" in samples, "the table of samples has no column patient")
    for column in ("sample", "site", "patient"):
        wrong = [v for v in samples[column] if not isinstance(v, str) and not (column == "patient" and pd.isna(v))]
        require(not wrong, f"{column} must be text, and holds {wrong[:1]!r}")
    absent = set(range(len(dataset.classes))) - set(samples["label"])
    require(
        not absent or opened.mask is not None, f"no sample has the class {absent and dataset.classes[min(absent)]!r}"
    )
    missing = set(opened.further) - set(samples)
    require(not missing, f"`further` names columns that are not there: {sorted(missing)}")


def _check_images(dataset: Dataset, opened: Opened) -> None:
    """Check dtype, shape and values of images and masks, and that each read of an image returns the same pixels.

    Images are read twice, one after another, and by several threads at once.
    """
    first = opened.image(0).copy()
    form = (first.dtype, first.ndim)
    require(form in ((np.dtype(np.uint8), 3), (np.dtype(np.float32), 1)), f"an image is {form[0]} of {form[1]} axes")
    require(np.array_equal(opened.image(0), first), "an image differs when it is read again")
    rows = range(0, len(opened.samples), len(opened.samples) // MOST + 1)
    held = [(image, image.copy()) for image in map(opened.image, rows)]
    overwritten = any(not np.array_equal(image, copy) for image, copy in held)
    require(not overwritten, "an image changes when another is read; give each an array of its own")
    shapes = {image.shape for image, _ in held}
    require(shapes == {first.shape}, f"its images have several shapes: {sorted(shapes)}")
    words = f"all grey levels of {len(held)} images lie from 0 to 1, of 255; scale them before they become uint8"
    require(first.dtype != np.uint8 or max(int(image.max()) for image, _ in held) > 1, words)
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(opened.image, rows))
    same = all(np.array_equal(image, copy) for image, (_, copy) in zip(together, held, strict=True))
    require(same, "several threads read other images than one; share no place of reading between calls of `image`")
    if dataset.has_masks:
        require(opened.mask is not None, "`has_masks` is true, and `Opened` has no mask")
        assert opened.mask is not None
        for mask, (image, _) in zip(map(opened.mask, rows), held, strict=True):
            fits = mask.dtype == np.uint8 and mask.shape == image.shape[:2]
            words = f"a mask is {mask.dtype} of shape {mask.shape}, and must be uint8 of the shape of its image"
            require(fits, f"{words}, {image.shape[:2]}")
            words = f"a mask holds {int(mask.max())}, and there are {len(dataset.classes)} classes, from 0"
            require(int(mask.max()) < len(dataset.classes), words)
    if dataset.shape:
        expected = (*dataset.shape[1:], dataset.shape[0])
        require(first.shape == expected, f"an image has the shape {first.shape}, and `shape` says {expected}")
