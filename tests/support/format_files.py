"""Files of every format, written byte by byte where a library would not write them, and what is made of them."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, generate_uid

from fedshift.core.units import IGNORED
from fedshift.datasets._mask_files import read_classes, read_slice
from fedshift.datasets.own_images import OwnImages
from fedshift.io.images import is_nifti, located
from fedshift.io.scan import Percentiles


def shown(folder: Path, cell: str, **reading: Any) -> np.ndarray:
    """The image (height, width, 3), uint8, that a cell of a table names, before it is scaled."""
    if reading.get("window") == "0-100":
        reading["window"] = Percentiles(percentiles=(0, 100))
    return OwnImages(table=folder / "t.csv", size=8, **reading)._image(folder, cell)


def classes(folder: Path, cell: str, values: dict[int | str, int | str]) -> np.ndarray:
    """The class of each pixel (height, width), uint8, of the mask of an image of 4 x 4 pixels."""
    dataset = OwnImages(table=folder / "t.csv", size=8, masks=values)
    numbers = {value: IGNORED if number == "ignore" else number for value, number in (dataset.masks or {}).items()}
    file, number = located(folder, cell)
    if is_nifti(file.name):
        return np.asarray(read_slice(dataset._volume(file), number, (4, 4), numbers))
    return np.asarray(read_classes(file, (4, 4), numbers, "", number))


def png16(values: np.ndarray, kind: int) -> bytes:
    """A PNG of 16 bits from values (height, width, samples), uint16; `kind` is its type of colour."""
    height, width, _ = values.shape
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def tiff(values: np.ndarray, order: str, white_is_zero: bool = False) -> bytes:
    """A TIFF of one strip from grey values (height, width) or colours (height, width, 3), of a byte order < or >."""
    height, width = values.shape[:2]
    samples = 1 if values.ndim == 2 else values.shape[2]
    bits = 8 * values.dtype.itemsize
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    form = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    photometric = 2 if samples > 1 else int(not white_is_zero)
    lists = {258: [bits] * samples, 339: [form] * samples}
    tags = {
        256: width,
        257: height,
        258: 0,
        259: 1,
        262: photometric,
        273: 0,
        277: samples,
        278: height,
        279: len(data),
    }
    tags[339] = 0
    place = 8 + 2 + 12 * len(tags) + 4
    behind = b""
    entries = b""
    for tag in sorted(tags):
        values_of = lists.get(tag)
        kind = 3 if tag in (258, 259, 262, 277, 339) else 4
        if values_of and samples > 2:
            field = struct.pack(f"{order}I", place + len(behind))
            behind += struct.pack(f"{order}{samples}H", *values_of)
        elif values_of:
            field = struct.pack(f"{order}HH", values_of[0], 0)
        elif tag == 273:
            field = b"DATA"
        else:
            field = struct.pack(f"{order}HH", tags[tag], 0) if kind == 3 else struct.pack(f"{order}I", tags[tag])
        entries += struct.pack(f"{order}HHI", tag, kind, samples if values_of else 1) + field
    entries = entries.replace(b"DATA", struct.pack(f"{order}I", place + len(behind)))
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IH", 8, len(tags)) + entries + struct.pack(f"{order}I", 0) + behind + data


def dicom(
    path: Path,
    pixels: np.ndarray,
    *,
    big_endian: bool = False,
    voi_lut: np.ndarray | None = None,
    cut: int | None = None,
    **elements: Any,
) -> None:
    """Write pixels (height, width), (frames, height, width) or (height, width, 3) as DICOM with further elements."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRBigEndian if big_endian else ExplicitVRLittleEndian
    order = {"is_implicit_VR": False, "is_little_endian": not big_endian}
    header = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128, **order)
    header.SOPClassUID, header.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    header.PatientID = "X"
    colours = pixels.shape[-1] == 3
    header.Rows, header.Columns = pixels.shape[:2] if colours else pixels.shape[-2:]
    header.SamplesPerPixel, header.PhotometricInterpretation = (3, "RGB") if colours else (1, "MONOCHROME2")
    if colours:
        header.PlanarConfiguration = 0
    header.BitsAllocated = header.BitsStored = 8 * pixels.dtype.itemsize
    header.PixelRepresentation = int(pixels.dtype.kind == "i")
    header.PixelData = pixels.astype(pixels.dtype.newbyteorder(">" if big_endian else "<")).tobytes()
    header["PixelData"].VR = "OB" if pixels.dtype.itemsize == 1 else "OW"
    if voi_lut is not None:
        item = Dataset()
        item.LUTDescriptor = [len(voi_lut), 0, 12]
        item["LUTDescriptor"].VR = "US"
        item.LUTData = voi_lut.tobytes()
        item["LUTData"].VR = "OW"
        header.VOILUTSequence = Sequence([item])
    for name, value in elements.items():
        setattr(header, name, value)
    header.HighBit = header.BitsStored - 1
    header.save_as(path, enforce_file_format=True)
    if cut is not None:
        path.write_bytes(path.read_bytes()[:cut])


def nifti(
    path: Path,
    values: np.ndarray,
    *,
    affine: np.ndarray | None = None,
    big_endian: bool = False,
    slope: float | None = None,
    packed: bool = False,
    cut: int | None = None,
    claims: tuple[int, ...] | None = None,
) -> None:
    """Write values as NIfTI; with `claims`, the header states another shape than there are values for."""
    header = nibabel.Nifti1Header(endianness=">" if big_endian else "<")
    header.set_data_dtype(values.dtype)
    image = nibabel.Nifti1Image(values, np.eye(4) if affine is None else affine, header)
    content = bytearray(image.to_bytes())
    order = ">" if big_endian else "<"
    if slope is not None:
        content[112:120] = struct.pack(f"{order}ff", slope, 0)
    if claims is not None:
        content[40:48] = struct.pack(f"{order}4h", 3, *claims)
    path.write_bytes(gzip.compress(bytes(content)) if packed else bytes(content[:cut]))
