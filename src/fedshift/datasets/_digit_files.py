"""Readers and writers of digits: MATLAB (SVHN, SynthDigits), libsvm text (USPS), NumPy (MNIST-M).

A reader returns images (n, ...) uint8 and labels (n,) int64 from 0 to 9. It raises UserError, with the path, for a file
that differs from its documentation.
"""

from __future__ import annotations

import bz2
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..io.disk import atomic

CLASSES = 10
AGAIN = "obtain it again"
Digits = tuple[np.ndarray, np.ndarray]
_BROKEN: tuple[type[Exception], ...] = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    NotImplementedError,
    MemoryError,
    SyntaxError,
    tokenize.TokenError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
)
"""Errors that NumPy and SciPy raise for damaged files and files of another format."""


def read_mat(path: Path, lowest: int) -> Digits:
    """Read MATLAB 5: `X` (32, 32, 3, n) uint8 and `y` with n labels; with `lowest` 1, label 10 is the digit 0.

    The whole file is in memory: 1.5 GB for SynthDigits.
    """
    x, y = _mat(path, ("X", "y"))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] == 0:
        what = f"'X' is {x.dtype} of shape {x.shape}, expected uint8 of shape (32, 32, 3, n)"
        raise UserError(path, what, AGAIN)
    return np.moveaxis(x, 3, 0), _labels(path, y, x.shape[3], lowest)


def read_npz(path: Path) -> Digits:
    """Read NumPy's npz without pickles: `x` (n, side, side, 3) uint8, side 28 or 32, and `y` with n labels."""
    x, y = _npz(path, ("x", "y"))
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[1:] not in ((28, 28, 3), (32, 32, 3)) or len(x) == 0:
        what = f"'x' is {x.dtype} of shape {x.shape}, expected uint8 of shape (n, 28, 28, 3) or (n, 32, 32, 3)"
        raise UserError(path, what, AGAIN)
    return x, _labels(path, y, len(x), 0)


def read_usps(path: Path) -> Digits:
    """Read libsvm text, bz2: one line for each image, with a label from 1 to 10 (digit + 1) and 256 pairs place:value.

    The images are (n, 16, 16). A value from -1 to 1 becomes (value + 1) / 2 * 255, rounded down to uint8 as in
    torchvision.
    """
    try:
        lines = bz2.decompress(path.read_bytes()).splitlines()
    except FileNotFoundError:
        raise UserError(path, "no such file", AGAIN) from None
    except (OSError, EOFError, ValueError) as error:
        raise UserError(path, f"damaged, or no bz2: {error}", AGAIN) from None
    if not lines:
        raise UserError(path, "holds no images", AGAIN)
    rows = np.empty((len(lines), 513), dtype=np.float32)
    for n, line in enumerate(lines):
        fields = line.decode("latin-1").replace(":", " ").split()
        try:
            rows[n] = fields
        except ValueError:
            what = f"line {n + 1} is no label with 256 pairs place:value ({len(fields)} numbers or words, expected 513)"
            raise UserError(path, what, AGAIN) from None
    values = rows[:, 2::2]
    wrong = ~((rows[:, 1::2] == np.arange(1, 257)) & (np.abs(values) <= 1)).all(axis=1)
    if wrong.any():
        what = f"line {wrong.argmax() + 1} has places other than 1 to 256, or values beyond -1 and 1"
        raise UserError(path, what, AGAIN)
    pixels = ((values + 1) / 2 * 255).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), (_labels(path, rows[:, 0], len(rows), 1) - 1) % CLASSES


def count(path: Path) -> int:
    """Return the number of labels in a MATLAB or NumPy file, without reading its images."""
    (y,) = _mat(path, ("y",)) if path.suffix == ".mat" else _npz(path, ("y",))
    return int(y.size)


def _labels(path: Path, y: np.ndarray, count: int, lowest: int) -> np.ndarray:
    """Return labels `lowest` to `lowest` + 9 as digits, where 10 becomes 0."""
    y = y.ravel()
    if len(y) != count:
        raise UserError(path, f"has {len(y)} labels for {count} images", AGAIN)
    if y.dtype.kind not in "uif":
        raise UserError(path, f"its labels are of type {y.dtype}, expected numbers", AGAIN)
    if (wrong := ~np.isin(y, np.arange(lowest, lowest + CLASSES))).any():
        at = int(wrong.argmax())
        what = f"image {at} has label {y[at]:g}, expected {lowest} to {lowest + CLASSES - 1}"
        raise UserError(path, what, AGAIN)
    return y.astype(np.int64) % CLASSES


def _mat(path: Path, keys: Sequence[str]) -> list[np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with path.open("rb") as file:
            content = loadmat(file, variable_names=keys)
    except FileNotFoundError:
        raise UserError(path, "no such file", AGAIN) from None
    except (MatReadError, *_BROKEN) as error:
        raise UserError(path, f"damaged, or no file of MATLAB 5: {error}", AGAIN) from None
    return _arrays(path, content, keys)


def _npz(path: Path, keys: Sequence[str]) -> list[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            content = {key: file[key] for key in keys if key in file}
    except FileNotFoundError:
        raise UserError(path, "no such file", AGAIN) from None
    except _BROKEN as error:
        raise UserError(path, f"damaged, or no npz file of plain arrays: {error}", AGAIN) from None
    return _arrays(path, content, keys)


def _arrays(path: Path, content: dict[str, Any], keys: Sequence[str]) -> list[np.ndarray]:
    if lacking := [key for key in keys if key not in content]:
        raise UserError(path, f"has no array {lacking[0]!r}", f"expected {' and '.join(map(repr, keys))}")
    return [np.asarray(content[key]) for key in keys]


def write_mat(path: Path, x: np.ndarray, y: np.ndarray, lowest: int) -> None:
    """Write a file that `read_mat` reads, of x (n, 32, 32, 3) and digits y. Equal arrays make equal bytes."""
    from scipy.io import savemat

    content = {"X": np.moveaxis(x, 0, 3), "y": np.where(y < lowest, CLASSES, y).astype(np.uint8)[:, None]}
    with atomic(path) as temporary:
        savemat(temporary, content, appendmat=False)
        with temporary.open("r+b") as file:  # replaces the time of writing
            file.write(b"MATLAB 5.0 MAT-file, written by fedshift".ljust(116))


def write_npz(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write a file that `read_npz` reads."""
    with atomic(path) as temporary:
        np.savez(temporary, x=x, y=y.astype(np.uint8))


def write_usps(path: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write a file that `read_usps` reads, of x (n, 16, 16) uint8."""
    values = (x.reshape(len(x), 256) / 255 * 2 - 1).round(3)
    lines = (
        f"{label + 1} " + " ".join(f"{k}:{v:g}" for k, v in enumerate(row, 1)) + "\n"
        for label, row in zip(y, values, strict=True)
    )
    with atomic(path) as temporary:
        temporary.write_bytes(bz2.compress("".join(lines).encode()))
