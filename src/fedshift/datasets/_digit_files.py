"""Readers and writers of digits: IDX (MNIST), MATLAB (SVHN, SynthDigits), libsvm text (USPS), NumPy (MNIST-M).

A reader returns images (n, ...) uint8 and labels (n,) from 0 to 9. It raises UserError, with the path, for a file that
differs from its documentation.
"""

from __future__ import annotations

import bz2
import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic
from ..io.download import Source
from ..io.scan import require_memory
from ..io.text import readable
from ._base import read_npz, require_labels
from ._digit_drawing import digit
from ._folders import resized

MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TRAIN = "train"
TEST = "t10k"
MNIST_PARTS = {"train": TRAIN, "test": TEST}
# bytes, md5, sha256
MNIST_FILES = {
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
CLASSES = 10
AGAIN = "obtain it again"
Digits = tuple[np.ndarray, np.ndarray]


def mnist_sources() -> Sequence[Source]:
    """Return the files of MNIST: images and labels of the training part, then of the test part."""
    return [
        Source(MNIST + name, name, size=size, md5=md5, sha256=sha256)
        for name, (size, md5, sha256) in MNIST_FILES.items()
    ]


def mnist_names(part: str) -> tuple[str, str]:
    """Return the names of MNIST's file of images and file of labels. `part` is "train", or "t10k" for the test part."""
    return f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"


def read_mnist(raw: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 28, 28) and labels (n,), uint8, of MNIST from the folder `raw`.

    `part` is "train", or "t10k" for the test part. Raises UserError, with the path, for a file that is damaged, or has
    another shape or labels other than 0 to 9.
    """
    images, labels = (raw / name for name in mnist_names(part))
    x = read_idx(images, 3)
    y = read_idx(labels, 1)
    if x.shape[1:] != (28, 28) or len(x) == 0:
        raise UserError(images, f"holds an array of shape {x.shape}, expected (n, 28, 28)", AGAIN)
    if len(x) != len(y):
        raise UserError(labels, f"has {len(y)} labels for {len(x)} images", "obtain both files again")
    require_labels(labels, y, CLASSES, AGAIN)
    return x, y


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Read an array (uint8, with `axes` dimensions) from a gzip-compressed IDX file.

    The file has the magic number 0x08, the number of axes, the sizes as big-endian int32, and the bytes of the array.
    Raises UserError for any other file.
    """
    start = 4 + 4 * axes
    with readable(path, "gzip", AGAIN), gzip.open(path) as file:
        head = file.read(start)
        if len(head) < start or head[:4] != bytes((0, 0, 8, axes)):
            raise UserError(path, f"is not an IDX file of bytes with {axes} axes", AGAIN)
        shape = struct.unpack(f">{axes}i", head[4:])
        require_memory(path, f"an array of shape {shape}", math.prod(shape), AGAIN)
        # a byte more than the head says shows that there are more, without reading them all
        values = np.frombuffer(file.read(max(math.prod(shape), 0) + 1), dtype=np.uint8)
    if len(values) != math.prod(shape):
        raise UserError(path, f"has {len(values)} bytes for an array of shape {shape}", AGAIN)
    return values.reshape(shape)


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an array as a gzip-compressed IDX file of uint8, without a time: equal arrays make equal files."""
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}i", *array.shape)
    with atomic(path) as temporary:
        temporary.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))


def write_mnist(raw: Path, part: str, count: int) -> None:
    """Write `count` synthetic digits, of the classes 0 to 9 in turn, as MNIST's files of `part` ("train" or "t10k")."""
    y = (np.arange(count) % CLASSES).astype(np.uint8)
    x = np.empty((count, 28, 28), dtype=np.uint8)
    for n in range(count):
        rng = stream("mnist miniature", part, n)
        seen = digit(rng, int(y[n]), 28) * rng.uniform(150, 255) + rng.normal(0, 6, (28, 28))
        x[n] = seen.clip(0, 255).round()
    for name, array in zip(mnist_names(part), (x, y), strict=True):
        write_idx(raw / name, array)


def read_mat(path: Path, lowest: int) -> Digits:
    """Read images (n, 32, 32, 3) uint8 and digits (n,) from the arrays `X` and `y` of a MATLAB 5 file.

    `lowest` is the lowest label in the file: 0, or 1 if 10 stands for the digit 0. The whole file is in memory, which
    takes 1.5 GB for SynthDigits. Raises UserError for arrays of other shapes, types or labels.
    """
    x, y = _mat(path, ("X", "y"))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] == 0:
        problem = f"'X' is {x.dtype} of shape {x.shape}, expected uint8 of shape (32, 32, 3, n)"
        raise UserError(path, problem, AGAIN)
    return np.moveaxis(x, 3, 0), _labels(path, y, x.shape[3], lowest)


def read_mnistm(path: Path) -> Digits:
    """Read images (n, side, side, 3) uint8, of side 28 or 32, and digits (n,) from the arrays `x` and `y` of an npz."""
    x, y = read_npz(path, ("x", "y"), AGAIN)
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] not in ((28, 28, 3), (32, 32, 3)) or len(x) == 0:
        problem = f"'x' is {x.dtype} of shape {x.shape}, expected uint8 of shape (n, 28, 28, 3) or (n, 32, 32, 3)"
        raise UserError(path, problem, AGAIN)
    return x, _labels(path, y, len(x), 0)


def read_usps(path: Path) -> Digits:
    """Read USPS: images (n, 16, 16) uint8 and digits (n,), from libsvm's text format compressed by bz2.

    A line is an image: a label from 1 to 10 (digit + 1) and 256 pairs position:value. A value from -1 to 1 becomes
    (value + 1) / 2 * 255, rounded down to uint8 as in torchvision.
    """
    with readable(path, "bz2", AGAIN):
        lines = bz2.decompress(path.read_bytes()).splitlines()
    if not lines:
        raise UserError(path, "holds no images", AGAIN)
    rows = np.empty((len(lines), 513), dtype=np.float32)
    for n, line in enumerate(lines):
        fields = line.decode("latin-1").replace(":", " ").split()
        try:
            rows[n] = fields
        except ValueError:
            problem = f"line {n + 1} must be a label and 256 pairs place:value; it has {len(fields)} numbers or words"
            raise UserError(path, problem, AGAIN) from None
    values = rows[:, 2::2]
    wrong = ~((rows[:, 1::2] == np.arange(1, 257)) & (np.abs(values) <= 1)).all(axis=1)
    if wrong.any():
        problem = f"line {wrong.argmax() + 1} has places other than 1 to 256, or values beyond -1 and 1"
        raise UserError(path, problem, AGAIN)
    pixels = ((values + 1) / 2 * 255).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), (_labels(path, rows[:, 0], len(rows), 1) - 1) % CLASSES


def place(mirror: Path | None, folder: str, filename: str) -> Path | None:
    """Return the folder in which to look for a file: the mirror, or its subfolder `folder` if that has the file.

    In the subfolder's name, case, _ and - do not count. Other subfolders are ignored, because several datasets have a
    file such as t10k-images-idx3-ubyte.gz. Return `mirror` as it is if neither has the file.
    """
    if mirror is None or not mirror.is_dir() or (mirror / filename).is_file():
        return mirror

    def plain(name: str) -> str:
        return name.casefold().replace("_", "").replace("-", "")

    folders = (f for f in sorted(mirror.iterdir()) if plain(f.name) == plain(folder))
    return next((f for f in folders if (f / filename).is_file()), mirror)


def shown(image: np.ndarray) -> np.ndarray:
    """Resize an image (side, side) or (side, side, 3), uint8, to (28, 28, 3); grey becomes three equal channels."""
    if image.ndim == 2:
        image = np.repeat(image[..., None], 3, axis=2)
    return resized(image, 28)


def count(path: Path) -> int:
    """Return the number of labels in a MATLAB or NumPy file, without reading its images."""
    if path.suffix == ".mat":
        (y,) = _mat(path, ("y",))
    else:
        (y,) = read_npz(path, ("y",), AGAIN)
    return int(y.size)


def _labels(path: Path, y: np.ndarray, count: int, lowest: int) -> np.ndarray:
    """Return the labels `y` of a file, `lowest` to `lowest` + 9, as digits (n,): 10 becomes 0.

    Raises UserError for other labels, and unless there are `count` of them, one for each image.
    """
    y = y.ravel()
    if len(y) != count:
        raise UserError(path, f"has {len(y)} labels for {count} images", AGAIN)
    if y.dtype.kind not in "uif":
        raise UserError(path, f"its labels are of type {y.dtype}, expected numbers", AGAIN)
    require_labels(path, y, CLASSES, AGAIN, lowest)
    return y.astype(np.int64) % CLASSES


def _mat(path: Path, keys: Sequence[str]) -> list[np.ndarray]:
    from scipy.io import loadmat

    with readable(path, "MATLAB 5", AGAIN), path.open("rb") as file:
        content: dict[str, Any] = loadmat(file, variable_names=keys)
    lacking = [key for key in keys if key not in content]
    if lacking:
        raise UserError(path, f"has no array {lacking[0]!r}", f"expected {' and '.join(map(repr, keys))}")
    return [np.asarray(content[key]) for key in keys]


def write_mat(path: Path, x: np.ndarray, y: np.ndarray, lowest: int) -> None:
    """Write images `x` (n, 32, 32, 3) uint8 and digits `y` as a MATLAB 5 file for `read_mat`.

    If `lowest` is 1, the digit 0 becomes the label 10. Equal arrays make equal files.
    """
    from scipy.io import savemat

    content = {"X": np.moveaxis(x, 0, 3), "y": np.where(y < lowest, CLASSES, y).astype(np.uint8)[:, None]}
    with atomic(path) as temporary:
        savemat(temporary, content, appendmat=False)
        # the head of the file holds the time of writing: without it, equal arrays make equal bytes
        with temporary.open("r+b") as file:
            file.write(b"MATLAB 5.0 MAT-file, written by fedshift".ljust(116))


def write_npz(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write images `x` (n, side, side, 3) uint8 and digits `y` (n,) as an npz file for `read_mnistm`."""
    with atomic(path) as temporary:
        np.savez(temporary, x=x, y=y.astype(np.uint8))


def write_usps(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write images `x` (n, 16, 16) uint8 and digits `y` (n,) as libsvm's text, compressed by bz2, for `read_usps`."""
    values = (x.reshape(len(x), 256) / 255 * 2 - 1).round(3)
    lines = (
        f"{label + 1} " + " ".join(f"{k}:{v:g}" for k, v in enumerate(row, 1)) + "\n"
        for label, row in zip(y, values, strict=True)
    )
    with atomic(path) as temporary:
        temporary.write_bytes(bz2.compress("".join(lines).encode()))
