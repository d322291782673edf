"""Tensors as safetensors: written whole or not at all (see `disk`), and verified by a checksum when they are read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from .disk import atomic
from .text import readable

if TYPE_CHECKING:
    import torch


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write tensors as safetensors with a checksum. Equal tensors and metadata give equal bytes."""
    with atomic(path) as temporary, temporary.open("wb") as file:
        for part in _parts(tensors, metadata):
            file.write(part)


def packed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    """Return the bytes of the file that `write_tensors` writes."""
    return b"".join(_parts(tensors, metadata))


def _parts(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """Return header and data of safetensors with a checksum."""
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
    """Return the tensors (on the CPU) and the metadata of a file that `write_tensors` wrote.

    Raises UserError for a file that is not safetensors, or that is damaged.
    """
    with readable(path, "safetensors"):
        return unpacked(Path(path).read_bytes(), path)


def unpacked(content: bytes, where: object) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors (on the CPU) and the metadata of what `packed` returned.

    Raises UserError, which names `where` the bytes come from, if they are damaged; and other errors if they are not
    safetensors.
    """
    from safetensors.torch import load

    tensors = load(content)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata = header.get(_META, {})
    if _SUM not in metadata:
        raise UserError(where, "has no checksum: another program, or an earlier version, wrote it", "make it again")
    if metadata.pop(_SUM) != _checksum(header, memoryview(content)[end:]):
        raise UserError(where, "is damaged: its checksum does not agree", "remove it and make it again")
    return {k: tensors[k] for k in sorted(tensors)}, metadata


_META = "__metadata__"
_SUM = "crc32"


def _checksum(header: dict[str, Any], data: memoryview) -> str:
    """Return the CRC-32, in hex digits, of a safetensors file's header and data, without the checksum in the header."""
    return f"{zlib.crc32(data, zlib.crc32(json.dumps(header, sort_keys=True).encode())):08x}"
