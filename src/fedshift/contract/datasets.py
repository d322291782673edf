"""The contract of datasets: of their card and of their miniature."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets import Dataset
from .case import Case, made, require

SMALL: dict[str, dict[str, Any]] = {"camelyon17": {"patches": 40}, "digits_five": {"images": 10}}
"""Settings of known datasets that make their miniatures small; others are drawn with their defaults."""
Kind = type[Dataset]


def cases(cls: Kind) -> Iterator[Case]:
    """Yield what datasets must satisfy."""
    yield Case("it says where it is from", partial(says_where_it_is_from, cls))
    yield Case("its miniature is read as documented", partial(miniature_is_read, cls))


def says_where_it_is_from(cls: Kind) -> None:
    """Check the card and the classes."""
    dataset = made(cls)
    card = dataset.card()
    require(all((card.title, card.source, card.licence)), "its card needs title, source and licence")
    require(len(dataset.classes) >= 2, "it needs two classes at least")


def miniature_is_read(cls: Kind) -> None:
    """Check the table of samples, images of one form, and the same bytes each time."""
    dataset = made(cls, **SMALL.get(cls.name, {}))
    if dataset.has_miniature:
        with tempfile.TemporaryDirectory() as folder:
            _check_miniature(dataset, Path(folder, "one"), Path(folder, "two"))


def _check_miniature(dataset: Dataset, one: Path, two: Path) -> None:
    for folder in (one, two):
        folder.mkdir()
        dataset.miniature(folder)
    files = [f.relative_to(one) for f in sorted(one.rglob("*")) if f.is_file()]
    require(bool(files), "its miniature writes no file")
    for file in files:
        require((one / file).read_bytes() == (two / file).read_bytes(), f"its miniature has other bytes in {file}")
    opened = dataset.open(one)
    samples = opened.samples
    require(bool(samples["sample"].is_unique), "names of samples are there twice")
    require(bool(samples["label"].between(0, len(dataset.classes) - 1).all()), "a label is not the number of a class")
    require(bool(samples["site"].value_counts().min() > 1), "a site has a single sample")
    require("patient" in samples, "the table of samples has no column patient")
    # Images are read in any order, by several threads, and again after a kill.
    first = opened.image(0).copy()
    form = (first.dtype, first.ndim)
    require(form in ((np.dtype(np.uint8), 3), (np.dtype(np.float32), 1)), f"an image is {form[0]} of {form[1]} axes")
    require(np.array_equal(opened.image(0), first), "an image differs when it is read again")
    shapes = {opened.image(i).shape for i in (0, len(samples) // 2, len(samples) - 1)}
    require(shapes == {first.shape}, f"its images have several shapes: {sorted(shapes)}")
    if dataset.shape:
        expected = (*dataset.shape[1:], dataset.shape[0])
        require(first.shape == expected, f"an image has the shape {first.shape}, and `shape` says {expected}")
