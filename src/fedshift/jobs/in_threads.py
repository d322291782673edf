"""Work on many images in threads, which take them in pieces: handing one over takes longer than reading a small one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
PIECE = 16
"""Number of images that a thread takes at once: few enough that all threads end together."""


def each(function: Callable[[Any], T], items: Sequence[Any] | np.ndarray, threads: int) -> Iterator[T]:
    """Yield what `function` returns for each item, in order, from up to `threads` threads.

    For one thread that is the caller's own.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pieces = [items[start : start + PIECE] for start in range(0, len(items), PIECE)]
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(lambda piece: list(map(function, piece)), pieces):
            yield from found
