"""Arrays in files: .npy files that grow block by block and continue after a kill, and tensors as safetensors."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import UserError
from .disk import atomic, disk_errors
from .text import read_json, readable, write_json

if TYPE_CHECKING:
    import torch


class GrowingArray:
    """A .npy file of known final `shape` to which blocks of rows are appended; `rows` counts the rows written so far.

    `identity` is a text that stands for the content, such as a digest of its sources. If an earlier process gave the
    same `identity` and was killed, its rows are kept; else the file begins anew. A row counts once it has reached the
    disk. Rows are plain writes, not a memory map: of 12 GB of images no page stays in memory.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype, identity: str) -> None:
        self.path = path
        self.total = shape[0]
        self.shape, self.dtype = shape[1:], np.dtype(dtype)
        self.row = np.dtype(dtype).itemsize * int(np.prod(shape[1:], dtype=np.int64))
        self.state = path.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors(path):
            self.identity = identity
            self.rows = self._whole(identity)
            write_json(self.state, {"identity": identity, "rows": self.rows})
            self._file = path.open("r+b" if self.rows else "w+b")
            header = np.lib.format.header_data_from_array_1_0(np.empty((0, *shape[1:]), dtype))
            # of a continued file, these are the bytes that are there already
            np.lib.format.write_array_header_1_0(self._file, header | {"shape": shape})
            self.start = self._file.tell()
            self._file.truncate(self.start + self.rows * self.row)

    def _whole(self, identity: str) -> int:
        """Return the number of rows that are safely written; 0 if the file has another identity or does not exist."""
        with contextlib.suppress(UserError, OSError, KeyError, TypeError, ValueError):
            state = read_json(self.state)
            if state["identity"] == identity and self.path.is_file():  # to open a pipe would wait for ever
                rows = int(state["rows"])
                with self.path.open("rb") as file:
                    np.lib.format.read_magic(file)
                    np.lib.format.read_array_header_1_0(file)
                    # a file that somebody shortened would be filled up with zeros
                    if file.tell() + rows * self.row <= self.path.stat().st_size:
                        return rows
        return 0

    def append(self, block: np.ndarray) -> None:
        """Write the rows of `block` (number, ...) after the last row, and wait until they are on the disk."""
        with disk_errors(self.path):
            self._file.seek(self.start + self.rows * self.row)
            self._file.write(block.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
            self.rows += len(block)
            write_json(self.state, {"identity": self.identity, "rows": self.rows})

    def written(self) -> Iterator[np.ndarray]:
        """Yield each row that is already on the disk, in order, with one row in memory at a time."""
        with disk_errors(self.path):
            self._file.seek(self.start)
            for _ in range(self.rows):
                yield np.frombuffer(self._file.read(self.row), self.dtype).reshape(self.shape)

    def close(self) -> None:
        """Close the file. Its rows stay on the disk, so that a later process can continue after them."""
        self._file.close()

    def move(self, target: Path) -> None:
        """Move the complete array to `target`. Raises RuntimeError if rows are missing."""
        self.close()
        if self.rows != self.total:
            raise RuntimeError(f"{self.path}: {self.rows} of {self.total} rows")
        self.path.replace(target)
        self.state.unlink()


def map_array(path: Path, remedy: str = "") -> np.ndarray:
    """Return the array in a .npy file, memory-mapped for reading.

    Raises UserError, with `remedy` as its advice, for any other file, and for an array of Python objects: to load it
    would run code.
    """
    with readable(path, "array", remedy):
        # without allow_pickle it refuses Python objects, which would run code
        array: np.ndarray = np.load(path, mmap_mode="r")
        if not hasattr(array, "shape"):
            raise ValueError("it is an archive of several arrays")
        return array


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write tensors by name, and text metadata, as a safetensors file with a checksum.

    Equal input gives equal bytes.
    """
    with atomic(path) as temporary, temporary.open("wb") as file:
        for part in _parts(tensors, metadata):
            file.write(part)


def packed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """Return the bytes of the safetensors file that `write_tensors` writes for the same tensors and metadata."""
    return b"".join(_parts(tensors, metadata))


def _parts(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return the header and the data of a safetensors file; the metadata in its header include a checksum of both."""
    import torch
    from safetensors.torch import save

    # safetensors refuses tensors that share memory: copies do not
    layout = {"memory_format": torch.contiguous_format}
    content = save({k: tensors[k].detach().cpu().clone(**layout) for k in sorted(tensors)})
    # metadata are added here, since the library's order of them differs from process to process
    end = 8 + int.from_bytes(content[:8], "little")
    data = memoryview(content)[end:]
    header = json.loads(content[8:end]) | {_META: dict(sorted(metadata.items()))}
    header[_META][_SUM] = _checksum(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, data


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return tensors (on the CPU) and metadata that `write_tensors` wrote. Raises UserError for a damaged file."""
    with readable(path, "safetensors"):
        return unpacked(Path(path).read_bytes(), path)


def unpacked(content: bytes, where: object) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors, on the CPU, and the metadata from the bytes that `packed` returned.

    Raises UserError, which names `where` the bytes come from, if they are damaged or have no checksum, and an error of
    the library if they are not safetensors.
    """
    from safetensors.torch import load

    tensors = load(content)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata = header.get(_META, {})
    if _SUM not in metadata:
        raise UserError(where, "has no checksum: another program, or an old version, wrote it", "write it again")
    if metadata.pop(_SUM) != _checksum(header, memoryview(content)[end:]):
        raise UserError(
            where, "is damaged: its checksum does not agree", "remove it, and repeat the command that wrote it"
        )
    return {k: tensors[k] for k in sorted(tensors)}, metadata


_META = "__metadata__"
_SUM = "crc32"


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    """Return the CRC-32, in hex digits, of a safetensors file's header and data, without the checksum in the header."""
    return f"{zlib.crc32(data, zlib.crc32(json.dumps(header, sort_keys=True).encode())):08x}"
