"""Files of MATLAB 5: what SciPy writes, what MATLAB does besides, and what is no such file."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from fedshift.datasets._matlab import variables


@pytest.mark.parametrize("packed", [True, False])
def test_what_scipy_writes_is_read(tmp_path: Path, packed: bool) -> None:
    rng = np.random.default_rng(0)
    content = {"a": rng.normal(size=(3, 2)), "X": rng.integers(0, 256, (4, 3, 2, 5), dtype=np.uint8)}
    content |= {"y": np.arange(5.0)[:, None], "c": np.array([[1, -2]], dtype=np.int16), "words": np.array(["x"])}
    savemat(tmp_path / "a.mat", content, do_compression=packed)
    found = variables(tmp_path / "a.mat", ("X", "y", "a", "c", "none"))
    assert set(found) == {"X", "y", "a", "c"}
    for name, array in found.items():
        np.testing.assert_array_equal(array, content[name])
        assert array.dtype == content[name].dtype
    with pytest.raises(ValueError, match="'words' is no array of real numbers"):
        variables(tmp_path / "a.mat", ("words",))


def element(order: str, kind: int, content: bytes) -> bytes:
    return struct.pack(f"{order}II", kind, len(content)) + content + bytes(-len(content) % 8)


def by_hand(order: str, packed: bool, numbers: bytes = bytes((10, 1, 9)), count: int = 3) -> bytes:
    """`y` (3, 1), double, whose numbers are stored as bytes, as MATLAB does where they fit."""
    flags, sides = struct.pack(f"{order}II", 6, 0), struct.pack(f"{order}ii", count, 1)
    parts = [element(order, 6, flags), element(order, 5, sides), element(order, 1, b"y"), element(order, 2, numbers)]
    matrix = element(order, 14, b"".join(parts))
    if packed:
        matrix = zlib.compress(matrix)
        matrix = struct.pack(f"{order}II", 15, len(matrix)) + matrix
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100)
    return head + (b"IM" if order == "<" else b"MI") + matrix


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("packed", [True, False])
def test_doubles_may_be_stored_as_bytes_in_either_order(tmp_path: Path, order: str, packed: bool) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(by_hand(order, packed))
    found = variables(path, ("y",))["y"]
    assert (found.dtype, found.tolist()) == (np.float64, [[10], [1], [9]])
    np.testing.assert_array_equal(found, loadmat(path)["y"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"short", "byte order"),
        (bytes(200), "byte order"),
        (by_hand("<", False)[:-4], "ends too early"),
        (by_hand("<", True)[:-4], "ends too early"),
        (by_hand("<", False) + b"xyz", "ends too early"),
        (by_hand("<", False, count=4), r"'y' has 3 numbers for the shape \(4, 1\)"),
        (by_hand("<", True, count=-3), r"'y' has 3 numbers for the shape \(-3, 1\)"),
    ],
)
def test_what_is_no_such_file_or_damaged_is_an_error(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        variables(path, ("y",))
