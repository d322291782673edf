"""Small files that promise much: what their headers say would fill the memory, or keep a reader busy for minutes."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import nibabel
import numpy as np
from PIL import Image

TURNED = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]])
"""An affine by which axial slices lie along the axis that is stored fastest."""


def nifti(shape: tuple[int, ...], dtype: str, affine: np.ndarray = TURNED, extension: int = 0) -> bytes:
    """The header of a volume; with an extension, one that claims that many bytes."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.dtype(dtype))
    header.set_data_shape(shape)
    header.set_sform(affine, 1)
    header["magic"] = b"n+1"
    header["vox_offset"] = 368 if extension else 352
    flag = b"\1\0\0\0" + struct.pack("<2i", extension, 6) if extension else b"\0" * 4
    return header.binaryblock + flag


def gzipped(head: bytes, zeros: int) -> bytes:
    """A gzip file of some bytes and at least so many zeros, in members that are alike."""
    return gzip.compress(head, 9) + gzip.compress(b"\0" * (1 << 24), 9) * (1 + (zeros >> 24))


def png(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A black PNG; `colour` as in its header: 0 grey, 2 RGB, 6 RGB and alpha."""
    row = b"\0" * (1 + (width * depth * {0: 1, 2: 3, 6: 4}[colour] + 7) // 8)
    packer = zlib.compressobj(1)
    data = b"".join([packer.compress(row) for _ in range(height)] + [packer.flush()])
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def in_icon(content: bytes) -> bytes:
    """A Windows icon of 16x16 pixels, whose only image is a PNG of another size."""
    return struct.pack("<3H4B2H2I", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(content), 22) + content


def in_apple_icon(content: bytes) -> bytes:
    """An Apple icon of 128x128 pixels, whose only image is a PNG of another size."""
    return b"icns" + struct.pack(">I", 16 + len(content)) + b"ic07" + struct.pack(">I", 8 + len(content)) + content


def written(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def enlarged(content: bytes, places: dict[int, bytes]) -> bytes:
    """The content with other bytes at some places."""
    changed = bytearray(content)
    for place, value in places.items():
        changed[place : place + len(value)] = value
    return bytes(changed)


def deflated_dicom(size: int) -> bytes:
    """A DICOM file whose deflated elements are zeros."""
    syntax = b"1.2.840.10008.1.2.1.99\0"[:22]
    element = struct.pack("<2H2sH", 2, 16, b"UI", len(syntax)) + syntax
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # a long element of bytes, (0008,0000) and what follows are all zeros behind its head
    head = struct.pack("<2H2s2xI", 0x0009, 0x1001, b"OB", size)
    parts = [packer.compress(head)] + [packer.compress(b"\0" * (1 << 20)) for _ in range(size >> 20)] + [packer.flush()]
    length = struct.pack("<2H2sHI", 2, 0, b"UL", 4, len(element))
    return b"\0" * 128 + b"DICM" + length + element + b"".join(parts)


def dicom(rows: int, columns: int) -> bytes:
    """A DICOM file of grey pixels whose header says more than it holds."""

    def short(element: int, value: int) -> bytes:
        return struct.pack("<2H2s2H", 0x0028, element, b"US", 2, value)

    syntax = b"1.2.840.10008.1.2.1\0"
    element = struct.pack("<2H2sH", 2, 16, b"UI", len(syntax)) + syntax
    meta = struct.pack("<2H2sHI", 2, 0, b"UL", 4, len(element)) + element
    about = short(2, 1) + struct.pack("<2H2sH", 0x0028, 4, b"CS", 12) + b"MONOCHROME2 "
    about += short(0x10, rows) + short(0x11, columns) + short(0x100, 16) + short(0x101, 16) + short(0x103, 0)
    return b"\0" * 128 + b"DICM" + meta + about + struct.pack("<2H2s2xI", 0x7FE0, 0x10, b"OW", 8) + b"\0" * 8


FILES = {
    "small.nii": lambda: nifti((2000, 13000, 13000), "i2") + b"\0" * 128,
    "plane.nii": lambda: nifti((32000, 32000), "u1") + b"\0" * 128,
    "five.nii": lambda: nifti((30000, 30000, 30000, 30000), "f8") + b"\0" * 128,
    "small.nii.gz": lambda: gzipped(nifti((2000, 13000, 13000), "i2"), 128),
    "float64.nii.gz": lambda: gzipped(nifti((640, 640, 640), "f8"), 640**3 * 8),
    "int16.nii.gz": lambda: gzipped(nifti((1000, 1000, 1000), "i2"), 2 * 1000**3),
    "extension.nii.gz": lambda: gzipped(nifti((4, 4, 4), "i2", extension=2_000_000_000), 2_000_000_000),
    "bits.png": lambda: png(13000, 13000, 1, 0),
    "rgb.png": lambda: png(8100, 8100),
    "over.png": lambda: png(60000, 60000, 1, 0),
    "icon.ico": lambda: in_icon(png(13000, 13000, 1, 0)),
    "icon.icns": lambda: in_apple_icon(png(13000, 13000, 1, 0)),
    "deflate.tif": lambda: written(Image.new("1", (13000, 13000)), "TIFF", compression="tiff_deflate"),
    "fax.tif": lambda: written(Image.new("1", (13000, 13000)), "TIFF", compression="group4"),
    "head.bmp": lambda: enlarged(written(Image.new("RGB", (4, 4)), "BMP"), {18: struct.pack("<2i", 13000, 13000)}),
    "head.ppm": lambda: b"P6 13000 13000 255\n" + b"\0" * 99,
    "screen.gif": lambda: enlarged(written(Image.new("L", (4, 4)), "GIF"), {6: struct.pack("<2H", 13000, 13000)}),
    "head.tga": lambda: enlarged(written(Image.new("RGB", (4, 4)), "TGA"), {12: struct.pack("<2H", 13000, 13000)}),
    "deflated.dcm": lambda: deflated_dicom(1_000_000_000),
    "head.dcm": lambda: dicom(65535, 65535),
}
"""Files by their names, whose endings say how they are read."""


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(FILES[name]())
    return path
