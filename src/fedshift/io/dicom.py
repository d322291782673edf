"""DICOM files: their frames as arrays, their segmentations, and a few elements of their headers.

Only the elements in PIXELS are read for an image, and those in PERSON, SERIES, DEVICE and CODES for a table of scans.
No error message repeats the text of an element, or words of a library that could hold it: it may name a patient.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.errors import UserError
from .scan import BLOCK, Curve, Frame, Reading, Scan, Spacing, Window, require_memory, sound
from .text import require_regular

if TYPE_CHECKING:
    from pydicom import Dataset
    from pydicom.uid import UID

PALETTE = tuple(
    f"{colour}PaletteColorLookupTable{part}" for colour in ("Red", "Green", "Blue") for part in ("Descriptor", "Data")
)
SEGMENTED = tuple(f"Segmented{colour}PaletteColorLookupTableData" for colour in ("Red", "Green", "Blue"))
PIXELS = (
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation", "BitsStored"),
    *("BitsAllocated", "PixelRepresentation", "PixelSpacing", "ImagerPixelSpacing", "RescaleSlope", "RescaleIntercept"),
    *("ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence", "BurnedInAnnotation"),
    *("PixelAspectRatio", "NominalScannedPixelSpacing", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence", *PALETTE, *SEGMENTED),
)
"""Elements of a header that say how its pixels are shown: sizes, scale of values, display window, palettes."""
DATA = ("PlanarConfiguration", "PixelData", "FloatPixelData", "DoubleFloatPixelData")
"""Elements with the pixel values and their layout, which are read only when a frame is decoded."""
PERSON = ("PatientID", "StudyInstanceUID", "AccessionNumber")
"""Elements from which a table of scans takes pseudonyms and labels; their own text is never written."""
DEVICE = {"manufacturer": "Manufacturer", "model": "ManufacturerModelName", "protocol": "ProtocolName"}
"""Columns of a table of scans, by name, and the elements whose text they hold."""
CODES = {"modality": "Modality", "image_type": "ImageType"}
"""Columns of a table of scans, by name, and the elements whose codes they hold. Text that is no code is left out."""
SERIES = "SeriesInstanceUID"
"""The element of which a table of scans holds a pseudonym in the column series; its own text is never written."""
VOI = "FrameVOILUTSequence"
"""The functional group that holds the display window of a frame (VOI stands for values of interest)."""
CODEC = re.compile(r"\b(pylibjpeg(?:-\w+)?|pyjpegls)\b")
"""Pattern of those decoder packages, in the messages of pydicom, that pip can install on every system."""


class DicomFile(Scan):
    """An open DICOM image file. Only its header has been read; a frame is decoded when it is asked for."""

    kind = "DICOM"

    def __init__(self, path: Path, header: Dataset, remedy: str) -> None:
        from pydicom.uid import AllTransferSyntaxes

        self.header = header
        with sound(path, "is a DICOM file without an image, such as a report or a plan", remedy):
            frames = int(header.get("NumberOfFrames") or 1)
            size = int(header.Rows), int(header.Columns)
            self.bits = int(header.BitsStored)
            self.colours = int(header.SamplesPerPixel) > 1 or header.PhotometricInterpretation == "PALETTE COLOR"
        syntax = header.file_meta.get("TransferSyntaxUID")
        self.syntax: UID | None = syntax if syntax in AllTransferSyntaxes else None
        """The transfer syntax (how pixels are encoded) if the DICOM standard defines it, else None."""
        super().__init__(path, frames, size, remedy)
        self.burnt_in = str(header.get("BurnedInAnnotation")) == "YES"
        self.windowed = self.colours or self.window(1) is not None or self._curve(1) is not None

    @classmethod
    def opened(cls, path: Path, remedy: str) -> DicomFile:
        """Open the DICOM image at `path` and read its header.

        Raises UserError, with `remedy` as its advice, for a file that is damaged or has no image.
        """
        return cls(path, read_header(path, PIXELS, remedy), remedy)

    def frame(self, number: int) -> Frame:
        """Return frame `number`, from 1: grey values after slope and intercept, or RGB colours as uint8.

        Raises UserError for pixels that are damaged or cannot be decompressed.
        """
        from pydicom.pixels import apply_color_lut, apply_modality_lut

        values = self._decoded(number)
        with sound(self.path, "has a damaged table of values or colours in its header", self.remedy):
            if self.header.PhotometricInterpretation == "PALETTE COLOR":
                values = apply_color_lut(values, self.header)
                return Frame(upper_bits(values, 8 * values.dtype.itemsize))
            if self.colours:
                return Frame(upper_bits(values, self.bits))
            padding = self._padding(values)
            if "ModalityLUTSequence" in self.header:
                values = apply_modality_lut(values, self.header)
            else:
                slope, intercept = self._rescale(number)
                if slope == 0:
                    raise UserError(self.path, "has a RescaleSlope of 0, so that all its values are equal", self.remedy)
                values = values * slope + intercept
            if padding.any():
                values = np.where(padding, np.nan, values)
        inverted = self.header.PhotometricInterpretation == "MONOCHROME1"
        return Frame(values, self.window(number), inverted, self._curve(number))

    def require(self, named: int | None, reading: Reading) -> None:
        """Raise UserError if the header shows that a frame cannot be shown, or if no installed package decodes it.

        `named` is the number of the frame that a row of a table names, from 1; None if it names none.
        """
        if self.syntax is not None and self.syntax.is_compressed and not _decoded_here(self.syntax):
            raise self._undecoded()
        super().require(named, reading)

    def window(self, number: int) -> Window | None:
        """Return the display window of frame `number`, from 1: the values that become black and white.

        It is the first window of the file, from its centre and width as in DICOM PS3.3, C.11.2.1.2, in values after
        slope and intercept. Without one it is the full range of an image of up to 8 bits. Return None for deeper
        images, and for a window whose function is not linear.
        """
        centre, width = (self._number(number, VOI, key) for key in ("WindowCenter", "WindowWidth"))
        function = self._element(number, VOI, "VOILUTFunction") or "LINEAR"
        if centre is not None and width is not None:
            if function == "LINEAR" and width >= 1:
                return centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
            if function == "LINEAR_EXACT" and width > 0:
                return centre - width / 2, centre + width / 2
            return None
        if self.bits > 8 or self._rescale(number) != (1, 0) or "ModalityLUTSequence" in self.header:
            return None
        least = -(2 ** (self.bits - 1)) if self.header.get("PixelRepresentation") == 1 else 0
        return least, least + 2**self.bits - 1

    def _curve(self, number: int) -> Curve | None:
        """Return the function from values to shades that a file states in place of a linear window, or else None.

        The function is a table, or a sigmoid. A table comes before a window, as in most viewers (PS3.3, C.11.2).
        `number` is that of the frame, from 1.
        """
        from pydicom.pixels import apply_voi

        if self.header.get("VOILUTSequence"):
            with sound(self.path, "has a damaged VOI LUT in its header", self.remedy):
                table = self.header.VOILUTSequence[0].LUTDescriptor
            most = 2 ** int(table[2]) - 1

            def looked_up(values: np.ndarray) -> np.ndarray:
                with sound(self.path, "has a damaged VOI LUT in its header", self.remedy):
                    found = apply_voi(np.rint(np.nan_to_num(values)).astype(np.int64), self.header)
                return found / most

            return looked_up
        if (self._element(number, VOI, "VOILUTFunction") or "") != "SIGMOID":
            return None
        centre, width = (self._number(number, VOI, key) for key in ("WindowCenter", "WindowWidth"))
        if centre is None or not width:
            return None
        # clipped, since the exponential of a large number is infinite
        return lambda values: 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -50, 50)))

    def _padding(self, stored: np.ndarray) -> np.ndarray:
        """Return a mask (height, width), bool, of stored values that the header marks as padding, not a measurement.

        Such pixels are shown black (PS3.3, C.7.5.1.1.2).
        """
        value, limit = (self.header.get(key) for key in ("PixelPaddingValue", "PixelPaddingRangeLimit"))
        if not isinstance(value, int):
            return stored != stored
        low, high = sorted((value, limit if isinstance(limit, int) else value))
        return (stored >= low) & (stored <= high)

    def _rescale(self, number: int) -> tuple[float, float]:
        """Return slope and intercept that turn stored values of a frame into the file's units; by default 1 and 0."""
        group = "PixelValueTransformationSequence"
        slope, intercept = (self._number(number, group, key) for key in ("RescaleSlope", "RescaleIntercept"))
        return 1 if slope is None else slope, 0 if intercept is None else intercept

    def _spacing(self, number: int) -> Spacing | None:
        """Return the pixel spacing of a frame in the patient or, failing that, at the detector; None without both."""
        with sound(self.path, "has a damaged header: its PixelSpacing is not two numbers", self.remedy):
            in_patient = self._element(number, "PixelMeasuresSequence", "PixelSpacing")
            spacing = in_patient or self.header.get("ImagerPixelSpacing")
            return (float(spacing[0]), float(spacing[1])) if spacing else None

    def _aspect(self, number: int) -> Spacing | None:
        """Return the height and width of a pixel, in no unit, for a file that states only their ratio; or else None.

        The spacing on a film that was scanned counts as such a ratio, since it is not the spacing in the patient
        (PS3.3, C.7.6.3.1.7 and C.8.6.2).
        """
        with sound(self.path, "has a damaged header: its PixelAspectRatio is not two numbers", self.remedy):
            ratio = self.header.get("NominalScannedPixelSpacing") or self.header.get("PixelAspectRatio")
            return (float(ratio[0]), float(ratio[1])) if ratio else None

    def _number(self, number: int, group: str, key: str) -> float | None:
        """Return the first number in the element `key` for a frame (see `_element`); None if the header has none."""
        value = self._element(number, group, key)
        if value is None:
            return None
        with sound(self.path, f"has a damaged header: its {key} is not a number", self.remedy):
            return float(value[0] if isinstance(value, Sequence) and not isinstance(value, str) else value)

    def _element(self, number: int, group: str, key: str) -> Any:
        """Return the value of the element `key` for frame `number`, from 1; None if the header has none.

        Files with several frames may state it in the functional group `group`, for each frame or for all (PS3.3,
        C.7.6.16). The value for the frame comes first, then the value for all frames, then the value for the file.
        """
        places = [self.header]
        with sound(self.path, f"has a damaged header: its {key} cannot be read", self.remedy):
            for name, i in (("SharedFunctionalGroupsSequence", 0), ("PerFrameFunctionalGroupsSequence", number - 1)):
                groups = self.header.get(name)
                if groups and i < len(groups):
                    places = [*(groups[i].get(group) or [])[:1], *places]
            found = (place.get(key) for place in places)
            return next((value for value in found if value not in (None, "")), None)

    def _decoded(self, number: int) -> np.ndarray:
        """Return the stored values of frame `number`, from 1: (height, width), or RGB colours (height, width, 3).

        Raises UserError for pixels that are missing, cannot be decoded, or have another size than the header says.
        """
        from pydicom import dcmread
        from pydicom.pixels import pixel_array

        source: Any = self.path
        try:
            if self.syntax is None or not self.syntax.is_compressed:
                # from a path, pydicom would take the bytes behind pixels that are too few for pixels
                source = dcmread(self.path, specific_tags=[*PIXELS, *DATA])
                self._require_length(len(source.get("PixelData", b"")))
            values: np.ndarray = pixel_array(source, index=number - 1)
        except AttributeError as error:
            if "no pixel data" in str(error):
                raise UserError(self.path, "has no pixels: its header stands alone", self.remedy) from None
            raise self._undecoded() from None
        except (UserError, MemoryError):
            raise
        except Exception:
            raise self._undecoded() from None
        if values.shape[:2] != self.size:
            raise UserError(self.path, "has pixels of another size than its header says", self.remedy)
        return values

    def _require_length(self, length: int) -> None:
        """Raise UserError if uncompressed pixels of `length` bytes hold a frame more than the header says, or more."""
        samples = int(self.header.SamplesPerPixel) * self.size[0] * self.size[1]
        frame = samples * int(self.header.get("BitsAllocated", 8)) // 8
        if length >= (self.frames + 1) * frame > 0:
            problem = f"has pixels for {length // frame} frames, but its header says {self.frames}"
            raise UserError(self.path, problem, self.remedy)

    def _undecoded(self) -> UserError:
        """Return the error for pixels that cannot be decoded; its advice names the missing package, if there is one."""
        syntax = self.syntax
        if syntax is None:
            problem = "does not say how its pixels are stored (no known transfer syntax)"
            return UserError(self.path, problem, self.remedy)
        if not syntax.is_compressed:
            return UserError(self.path, "has fewer pixels than its header says, or is cut short", self.remedy)
        name = syntax.name
        packages = codecs(syntax)
        if not packages:
            problem = f"is compressed ({name}), and is damaged or not to be read"
            return UserError(self.path, problem, f"{self.remedy}; or export it without compression")
        here = _decoded_here(syntax)
        why = "is damaged or beyond the installed decoder" if here else "no package that decodes it is installed"
        remedy = f"pip install {packages}, or export it without compression"
        return UserError(self.path, f"is compressed ({name}), and {why}", remedy)


def _decoded_here(syntax: UID) -> bool:
    """Return whether an installed package decodes a transfer syntax (how pixels are encoded)."""
    from pydicom.pixels import get_decoder

    try:
        return bool(get_decoder(syntax).is_available)
    except NotImplementedError:
        return False


def codecs(syntax: UID) -> str:
    """Return the names of packages that pip must install to decode a transfer syntax, or "" if there are none."""
    from pydicom.pixels import get_decoder

    try:
        wanted = [CODEC.findall(text.partition("requires")[2]) for text in get_decoder(syntax).missing_dependencies]
    except NotImplementedError:
        return ""
    return " ".join(next((names for names in wanted if names), ()))


def upper_bits(colours: np.ndarray, bits: int) -> np.ndarray:
    """Return colours, unsigned whole numbers of `bits` bits, as uint8; above 8 bits, the upper 8."""
    return (colours >> max(bits - 8, 0)).astype(np.uint8)


def _require_inflated(path: Path, remedy: str) -> None:
    """Raise UserError if a deflated file unpacks to more than MOST_BYTES, since pydicom would hold all in memory."""
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    about = read_file_meta_info(path)
    if about.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return
    with path.open("rb") as file:
        # behind the preamble, the mark DICM and the element that says how long the others are
        file.seek(144 + about.FileMetaInformationGroupLength)
        inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while content := inflater.unconsumed_tail or file.read(BLOCK):
            size += len(inflater.decompress(content, BLOCK))
            require_memory(path, "deflated elements", size, remedy)


def read_header(path: Path, elements: Sequence[str], remedy: str) -> Dataset:
    """Return the header of a DICOM file with only the `elements`, given by keywords such as PatientID.

    Raises UserError, with `remedy` as its advice, for a file that is not sound DICOM.
    """
    import pydicom
    from pydicom.errors import InvalidDicomError

    # warnings of pydicom about a value repeat it: they must not reach a log
    warnings.filterwarnings("ignore", module=r"pydicom\.")
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    require_regular(path)
    with sound(path, "is a DICOM file with a damaged header, or is cut short", remedy):
        try:
            _require_inflated(path, remedy)
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(elements))
        except InvalidDicomError:
            problem = "the file is empty" if not path.stat().st_size else "is not DICOM: the mark DICM is missing"
            raise UserError(path, problem, remedy) from None
        for _ in header:
            pass  # pydicom converts an element, and finds its damage, when it is asked for it
        return header


CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""SOP classes of files with segmentations: Segmentation Storage, and Label Map Segmentation Storage (PS3.4, B.5)."""
LABELS = "LABELMAP"
"""The type of segmentation whose pixels are numbers of segments; pixels of BINARY ones are 0 and 1."""


class _Source(NamedTuple):
    """An image that a frame of a segmentation lies on, by its SOPInstanceUID, and the number of the frame's `segment`.

    `frames` are the numbers of the image's frames, from 1; empty for all of them.
    """

    uid: str
    frames: tuple[int, ...]
    segment: int


class DicomSegments(DicomFile):
    """An open DICOM segmentation (SEG) file. Only its header has been read; a frame is decoded when it is asked for."""

    def __init__(self, path: Path, header: Dataset, remedy: str) -> None:
        super().__init__(path, header, remedy)
        self.labels = header.get("SegmentationType") == LABELS
        with sound(path, "is a segmentation that does not say on which images its frames lie", remedy):
            self.sources = [list(self._sources(k)) for k in range(1, self.frames + 1)]

    @classmethod
    def opened(cls, path: Path, remedy: str = "export it again") -> DicomSegments:
        """Open the DICOM segmentation at `path` and read its header.

        Raises UserError for a file that is damaged (with `remedy` as its advice), is no segmentation, or holds
        fractions of pixels in place of segments.
        """
        header = read_header(path, (*PIXELS, "SOPClassUID", "SegmentationType"), remedy)
        if header.get("SOPClassUID") not in CLASSES:
            raise UserError(path, "is DICOM, and no segmentation (SEG)", "name a SEG, a NIfTI volume or an image")
        if header.get("SegmentationType") == "FRACTIONAL":
            raise UserError(path, "holds shares of pixels (FRACTIONAL), not segments", "export it as BINARY")
        return cls(path, header, remedy)

    def on(self, image: Path, frame: int) -> np.ndarray:
        """Return the number of the segment at each pixel of the file `image`, (height, width), int64; 0 where none is.

        `frame` is the frame of the image, from 1. Raises UserError if no frame of the segmentation lies on the image,
        and if two segments lie on one pixel.
        """
        found = np.zeros(self.size, dtype=np.int64)
        uid = self.uid_of(image)
        for number, sources in enumerate(self.sources, 1):
            here = [s for s in sources if s.uid == uid and (not s.frames or frame in s.frames)]
            if not here:
                continue
            values = self._decoded(number).astype(np.int64)
            if not self.labels:
                values = (values > 0) * here[0].segment
            if ((found > 0) & (values > 0) & (found != values)).any():
                problem = f"two of its segments lie on one pixel of {image.name}"
                raise UserError(self.path, problem, "export segments that do not overlap")
            found = np.maximum(found, values)
        return found

    def uid_of(self, image: Path, named: int | None = None) -> str:
        """Return the SOPInstanceUID of the file `image`.

        Raises UserError unless a frame of the segmentation lies on it. `named` is the frame number in a cell such as
        `seg.dcm#2`. Any number is refused: the segmentation chooses its frames itself.
        """
        if named is not None:
            raise UserError(f"{self.path}#{named}", "names a frame of a segmentation", "name the file alone")
        uid = str(read_header(image, ("SOPInstanceUID",), self.remedy).get("SOPInstanceUID") or "")
        if not any(source.uid == uid for sources in self.sources for source in sources):
            problem = f"none of its frames lies on {image.name} (no reference to its SOPInstanceUID)"
            raise UserError(self.path, problem, "name the segmentation of this image")
        return uid

    def _decoded(self, number: int) -> np.ndarray:
        """Return the values of frame `number`, from 1, (height, width).

        Frames of single bits are unpacked here, since one may begin within a byte, where pydicom fails.
        """
        from pydicom import dcmread

        if self.header.BitsAllocated != 1 or self.syntax is None or self.syntax.is_compressed:
            return super()._decoded(number)
        with sound(self.path, "has no pixels, or is cut short", self.remedy):
            content = np.frombuffer(dcmread(self.path, specific_tags=["PixelData"]).PixelData, np.uint8)
            size = self.size[0] * self.size[1]
            first = (number - 1) * size
            bits = np.unpackbits(content[first // 8 : (first + size + 7) // 8], bitorder="little")
            return bits[first % 8 :][:size].reshape(self.size)

    def _sources(self, number: int) -> Iterator[_Source]:
        """Yield the images that frame `number` lies on, each with the frame's segment (PS3.3, C.7.6.16.2.6)."""
        segment = 0
        if not self.labels:
            segment = int(self._element(number, "SegmentIdentificationSequence", "ReferencedSegmentNumber"))
        for source in self._element(number, "DerivationImageSequence", "SourceImageSequence") or ():
            named = source.get("ReferencedFrameNumber") or ()
            frames = tuple(map(int, [named] if isinstance(named, int | str) else named))
            yield _Source(str(source.ReferencedSOPInstanceUID), frames, segment)
