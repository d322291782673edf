"""Areas as pixels: even-odd, decided at the centre of each pixel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from .annotations import Points, Shape

Mask = npt.NDArray[np.bool_]
Window = tuple[slice, slice]


def inside(rings: Sequence[Points], scale: float, shape: tuple[int, int]) -> tuple[Window, Mask]:
    """Return which pixels of a grid have their centre inside an odd number of rings, and the window that holds these.

    `scale` is the side of a pixel in the units of the rings, `shape` the rows and columns of the grid. A centre on the
    left or upper edge is inside, one on the right or lower edge is not: areas that share an edge share no pixel.
    """
    # the centres of pixels are whole numbers
    start = np.concatenate(rings) / scale - 0.5
    end = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings]) / scale - 0.5
    first, last = np.sort(np.ceil([start[:, 1], end[:, 1]]).clip(0, shape[0]), axis=0).astype(np.int64)
    # number of rows whose centres an edge passes
    count = last - first
    edge = np.repeat(np.arange(len(start)), count)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    (x, y) = start[edge].T
    (dx, dy) = (end - start)[edge].T
    # an edge along a row passes no centre, so that dy is never 0 here
    column = np.ceil(x + (row - y) * dx / dy).clip(0, shape[1]).astype(np.int64)
    if not len(row):
        return (slice(0, 0), slice(0, 0)), np.zeros((0, 0), bool)
    top = int(row.min())
    left = int(column.min())
    crossed = np.zeros((int(row.max()) + 1 - top, int(column.max()) + 1 - left), np.uint8)
    # even-odd: a pixel is inside if an odd number of edges lies to its left
    np.bitwise_xor.at(crossed, (row - top, column - left), 1)
    np.bitwise_xor.accumulate(crossed, axis=1, out=crossed)
    # right of the last crossing nothing is inside
    height = crossed.shape[0]
    width = crossed.shape[1] - 1
    return (slice(top, top + height), slice(left, left + width)), crossed[:, :width].view(bool)


def area(shapes: Iterable[Shape], holes: Iterable[Shape], scale: float, shape: tuple[int, int]) -> Mask:
    """Return which pixels of a grid lie in any of the shapes and in none of the holes."""
    mask = np.zeros(shape, bool)
    for value, group in ((True, shapes), (False, holes)):
        for member in group:
            window, pixels = inside(member.rings, scale, shape)
            mask[window][pixels] = value
    return mask
