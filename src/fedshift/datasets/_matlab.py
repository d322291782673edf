"""Plain arrays from files of MATLAB 5 to 7 (the published "MAT-File Format", level 5), read without trust.

SciPy's reader ends the whole process on some damaged files.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np

MATRIX, COMPRESSED = 14, 15
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""Of stored numbers."""
CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""Of arrays, which may be stored in a smaller type."""
COMPLEX = 0x08
HEADER, HEAD = 128, 512  # bytes: of the file, and enough of a variable to know its name


def variables(path: Path, wanted: Collection[str]) -> dict[str, np.ndarray]:
    """Those of the `wanted` variables that are there, as read-only arrays in MATLAB's (Fortran's) order.

    What is not compressed stays in the file until it is used. Raises ValueError or zlib.error for what is no such file,
    ends too early, or is no array of real numbers; OSError as `open` does.
    """
    with path.open("rb") as file:
        content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    order = {b"IM": "<", b"MI": ">"}.get(bytes(content[HEADER - 2 : HEADER]))
    if order is None:
        raise ValueError("it lacks the mark of its byte order")
    found: dict[str, np.ndarray] = {}
    at = HEADER
    while at < len(content):
        kind, body, at = _element(content, at, order)
        if kind == COMPRESSED:
            if _name(zlib.decompressobj().decompress(body, HEAD), order) not in wanted:
                continue
            kind, body, _ = _element(memoryview(zlib.decompress(body)), 0, order)
        if kind == MATRIX:
            name, start = _named(body, order)
            if name in wanted:
                found[name] = _array(body, start, order, name)
    return found


def _element(content: memoryview, at: int, order: str, partial: bool = False) -> tuple[int, memoryview, int]:
    """Kind and bytes of the element at a place, and the place of the next."""
    if len(content) < at + 8:
        raise ValueError("it ends too early")
    tag = np.frombuffer(content[at : at + 8], dtype=f"{order}u4")
    kind, size = int(tag[0]), int(tag[1])
    start, end = at + 8, at + 8 + size
    following = end if kind == COMPRESSED else end + -size % 8
    if kind >> 16:  # a small one, in its own tag
        kind, size = kind & 0xFFFF, kind >> 16
        start, end, following = at + 4, at + 4 + min(size, 4), at + 8
    if end > len(content) and not partial:
        raise ValueError("it ends too early")
    return kind, content[start:end], following


def _name(head: bytes, order: str) -> str:
    """The name of a variable of which only the beginning is there; empty where it is none."""
    kind, body, _ = _element(memoryview(head), 0, order, partial=True)
    return _named(body, order)[0] if kind == MATRIX else ""


def _named(body: memoryview, order: str) -> tuple[str, int]:
    """The name in a matrix element, and where its numbers begin."""
    at = 0
    for _ in range(3):  # flags, dimensions, name
        _, name, at = _element(body, at, order)
    return bytes(name).decode("latin-1"), at


def _array(body: memoryview, start: int, order: str, name: str) -> np.ndarray:
    _, flags, at = _element(body, 0, order)
    _, sides, _ = _element(body, at, order)
    flag = int(np.frombuffer(flags[:4], dtype=f"{order}u4")[0])
    kind, numbers, _ = _element(body, start, order)
    if flag & 0xFF not in CLASSES or kind not in TYPES or flag >> 8 & COMPLEX:
        raise ValueError(f"{name!r} is no array of real numbers")
    shape = np.frombuffer(sides, dtype=f"{order}i4")
    stored = np.frombuffer(numbers, dtype=order + TYPES[kind])
    if (shape < 0).any() or np.prod(shape, dtype=object) != len(stored):
        raise ValueError(f"{name!r} has {len(stored)} numbers for the shape {tuple(shape.tolist())}")
    return stored.astype(CLASSES[flag & 0xFF], copy=False).reshape(shape, order="F")
