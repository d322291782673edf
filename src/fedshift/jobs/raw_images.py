"""Findings of preparation about raw images: which cannot be read, are much too large, or have names that differ.

The page shows it as notes on the data, so that no image is left out or shrunk beyond recognition without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..core.console import Progress
from ..core.errors import UserError, UserErrors, shortened
from ..core.spelling import groups
from ..data.inspection import respelt

if TYPE_CHECKING:
    import pandas as pd

LARGE = 16
"""Pixels along a side for each pixel that is kept, above which an image is much too large."""
WHOLE_SLIDES = (
    "as wide and high as what the network sees of them, which shows little of their detail. If they are whole slides, "
    "cut them into patches first"
)
"""Remark for the reader of a page about images that are much too large."""


def readable_rows(image: Callable[[int], object], number: int, threads: int) -> np.ndarray:
    """Return the rows (n,), in order, of the images that can be read, among `number`: each is read once.

    Raises UserErrors where none of them can be.
    """
    with Progress("check", number, "images") as bar:
        faults: list[UserError] = []
        rows = list[int]()
        for i, fault in enumerate(each(lambda i: _fault(image, i), range(number), threads)):
            bar.update(1)
            if fault is None:
                rows.append(i)
            else:
                faults.append(fault)
    if not rows:
        raise UserErrors(shortened(faults, len(faults), "images"))
    return np.array(rows)


def _fault(image: Callable[[int], object], i: int) -> UserError | None:
    """Return why an image cannot be read; None if it can."""
    try:
        image(i)
    except UserError as error:
        return error
    return None


def notes(
    samples: pd.DataFrame, rows: np.ndarray, reduction: Callable[[int], float] | None, threads: int
) -> Iterator[str]:
    """Yield the notes of the page on `samples`, of which `rows` are read.

    They name images that are left out, images that are too large, and names that are spelt in several ways. `reduction`
    returns how many times smaller than in its file an image is kept, along a side.
    """
    sites = samples["site"].to_numpy()
    lost = np.delete(sites, rows)
    if len(lost):
        yield f"{_images(lost, 'could not be read and', 'is', 'are')} left out."
    if reduction is not None:
        large = np.fromiter(each(lambda i: reduction(i) > LARGE, rows, threads), dtype=bool, count=len(rows))
        if large.any():
            yield f"{_images(sites[rows[large]], '', 'is', 'are')} more than {LARGE} times {WHOLE_SLIDES}."
    for column in ("site", "patient"):
        names = samples[column].dropna().astype(str).unique()
        yield from (f"{text[:1].upper()}{text[1:]}." for text in respelt(column, groups(names)))


def _images(sites: np.ndarray, before: str, singular: str, plural: str) -> str:
    """Return a clause about images at these sites, such as `3 images (2 at A, 1 at B) are`."""
    names, first, counts = np.unique(sites.astype(str), return_index=True, return_counts=True)
    at = ", ".join(f"{counts[k]:,} at {names[k]}" for k in np.argsort(first))
    subject = f"1 image ({at})" if len(sites) == 1 else f"{len(sites):,} images ({at})"
    verb = singular if len(sites) == 1 else plural
    return " ".join(filter(None, [subject, before, verb]))


T = TypeVar("T")
PIECE = 16
"""Number of images that a thread takes at once: few enough that all threads end together."""


def each(function: Callable[[Any], T], items: Sequence[Any] | np.ndarray, threads: int) -> Iterator[T]:
    """Yield what `function` returns for each item, in order, from up to `threads` threads.

    For one thread that is the caller's own. Threads take items in pieces: handing one image over takes longer than
    reading a small one.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pieces = [items[start : start + PIECE] for start in range(0, len(items), PIECE)]
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(lambda piece: list(map(function, piece)), pieces):
            yield from found
