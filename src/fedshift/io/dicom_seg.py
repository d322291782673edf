"""DICOM SEG: masks whose frames say which segment of which image they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import UserError
from .dicom import PIXELS, DicomFile, read_header
from .scan import sound

if TYPE_CHECKING:
    import numpy as np
    from pydicom import Dataset

CLASSES = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
"""The classes of files with segmentations, and with those of label maps (PS3.4, B.5)."""
LABELS = "LABELMAP"
"""The type of segmentation whose pixels are numbers of segments; those of BINARY ones are 0 and 1."""


class _Source(NamedTuple):
    """An image that a frame lies on, and the segment that it holds: its frames, from 1, or all of them if empty."""

    uid: str
    frames: tuple[int, ...]
    segment: int


class DicomSegments(DicomFile):
    """A DICOM SEG file whose header is read."""

    def __init__(self, path: Path, header: Dataset, remedy: str) -> None:
        super().__init__(path, header, remedy)
        self.labels = header.get("SegmentationType") == LABELS
        with sound(path, "is a segmentation that does not say on which images its frames lie", remedy):
            self.sources = [list(self._sources(k)) for k in range(1, self.frames + 1)]

    @classmethod
    def opened(cls, path: Path, remedy: str = "export it again") -> DicomSegments:
        """Return a file whose header is read.

        Raises UserError for a file that is damaged, is no segmentation, or holds shares of pixels in place of segments.
        """
        header = read_header(path, (*PIXELS, "SOPClassUID", "SegmentationType"), remedy)
        if header.get("SOPClassUID") not in CLASSES:
            raise UserError(path, "is DICOM, and no segmentation (SEG)", "name a SEG, a NIfTI volume or an image")
        if header.get("SegmentationType") == "FRACTIONAL":
            raise UserError(path, "holds shares of pixels (FRACTIONAL), not segments", "export it as BINARY")
        return cls(path, header, remedy)

    def on(self, image: Path, frame: int) -> np.ndarray:
        """Return the number of the segment of each pixel of an image (height, width), int64; 0 where none is.

        `frame` is the frame of the image, from 1. Raises UserError where the file does not name the image at all, and
        where two segments lie on one pixel.
        """
        import numpy as np

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
        """Return the UID of an image. Raises UserError unless a frame of the segmentation lies on it.

        `named` is the number of a frame of the segmentation that a cell names, which is refused.
        """
        if named is not None:
            raise UserError(f"{self.path}#{named}", "names a frame of a segmentation", "name the file alone")
        uid = str(read_header(image, ("SOPInstanceUID",), self.remedy).get("SOPInstanceUID") or "")
        if not any(source.uid == uid for sources in self.sources for source in sources):
            problem = f"none of its frames lies on {image.name} (no reference to its SOPInstanceUID)"
            raise UserError(self.path, problem, "name the segmentation of this image")
        return uid

    def _decoded(self, number: int) -> np.ndarray:
        """Return the stored values of a frame (height, width).

        Frames of single bits follow each other without a gap, and may begin within a byte, where pydicom fails.
        """
        import numpy as np
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
        """Yield the images that a frame lies on (PS3.3, C.7.6.16.2.6), with the segment that it holds."""
        segment = 0
        if not self.labels:
            segment = int(self._element(number, "SegmentIdentificationSequence", "ReferencedSegmentNumber"))
        for source in self._element(number, "DerivationImageSequence", "SourceImageSequence") or ():
            named = source.get("ReferencedFrameNumber") or ()
            frames = tuple(map(int, [named] if isinstance(named, int | str) else named))
            yield _Source(str(source.ReferencedSOPInstanceUID), frames, segment)
