"""MNIST's raw files: their addresses, a reader, a writer, and synthetic files in their layout."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic
from ..io.download import Source
from ..io.scan import require_memory
from ..io.text import readable
from ._arrays import require_labels
from ._divide import CLASSES, digit

URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TRAIN = "train"
TEST = "t10k"
PARTS = {"train": TRAIN, "test": TEST}
# bytes, md5, sha256
FILES = {
    "train-images-idx3-ubyte.gz": (
        9_912_422,
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        28_881,
        "d53e105ee54ea40749a09fcbcd1e9432",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        1_648_877,
        "9fb629c4189551a2d022fa330f9573f3",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        4_542,
        "ec29112dd5afa0611ce80d1b7f02629c",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}


def sources() -> Sequence[Source]:
    """Return the files: images and labels of the training part, then of the test part."""
    return [Source(URL + name, name, size=size, md5=md5, sha256=sha256) for name, (size, md5, sha256) in FILES.items()]


def names(part: str) -> tuple[str, str]:
    """Return the names of the files of a part: images, labels."""
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


def pair(raw: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 28, 28) and labels (n,), uint8, of a part. Raises UserError, with the file's path."""
    images, labels = (raw / name for name in names(part))
    x = read(images, 3)
    y = read(labels, 1)
    if x.shape[1:] != (28, 28) or len(x) == 0:
        raise UserError(images, f"holds an array of shape {x.shape}, expected (n, 28, 28)", "obtain it again")
    if len(x) != len(y):
        raise UserError(labels, f"has {len(y)} labels for {len(x)} images", "obtain both files again")
    require_labels(labels, y, CLASSES, "obtain it again")
    return x, y


def read(path: Path, axes: int) -> np.ndarray:
    """Read an IDX file: magic number 0x08, number of axes, sizes as big-endian int32, and the bytes of the array."""
    start = 4 + 4 * axes
    with readable(path, "gzip", "obtain it again"), gzip.open(path) as file:
        head = file.read(start)
        if len(head) < start or head[:4] != bytes((0, 0, 8, axes)):
            raise UserError(path, f"is not an IDX file of bytes with {axes} axes", "obtain it again")
        shape = struct.unpack(f">{axes}i", head[4:])
        require_memory(path, f"an array of shape {shape}", math.prod(shape), "obtain it again")
        # a byte more than the head says shows that there are more, without reading them all
        values = np.frombuffer(file.read(max(math.prod(shape), 0) + 1), dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise UserError(path, f"has {len(values)} bytes for an array of shape {shape}", "obtain it again")
    return values.reshape(shape)


def write(path: Path, array: np.ndarray) -> None:
    """Write an array as an IDX file of bytes. Equal arrays make equal files."""
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}i", *array.shape)
    with atomic(path) as temporary:
        temporary.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))


def miniature(raw: Path, part: str, count: int) -> None:
    """Write `count` synthetic images and labels, of all classes in turn."""
    y = (np.arange(count) % CLASSES).astype(np.uint8)
    x = np.empty((count, 28, 28), dtype=np.uint8)
    for n in range(count):
        rng = stream("mnist miniature", part, n)
        seen = digit(rng, int(y[n]), 28) * rng.uniform(150, 255) + rng.normal(0, 6, (28, 28))
        x[n] = seen.clip(0, 255).round()
    for name, array in zip(names(part), (x, y), strict=True):
        write(raw / name, array)
