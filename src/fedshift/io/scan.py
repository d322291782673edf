"""Scans (DICOM, NIfTI): files of one or several frames with values in their own units, shown as images of 8 bits."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import Field, field_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.spelling import counted

Window = tuple[float, float]
"""The values that become black (0) and white (255)."""
Spacing = tuple[float, float]
"""Millimetres between neighbouring rows, and between neighbouring columns."""
Curve = Callable[["np.ndarray"], "np.ndarray"]
"""Function from values to shades: 0 is black and 1 is white."""


class Percentiles(Frozen):
    """A display window that is found for each file: two percentiles of its values become black and white."""

    percentiles: tuple[float, float] = Field(
        description="percentiles of the values of a file, all frames together, that become black and white"
    )

    @field_validator("percentiles")
    @classmethod
    def _rising(cls, pair: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= pair[0] < pair[1] <= 100:
            raise ValueError("must rise from 0 at least to 100 at most: [1, 99]")
        return pair

    def window(self, values: np.ndarray) -> Window:
        """Return the two percentiles of `values`, without NaN and infinities; (0, 1) if no value is finite."""
        finite = values[np.isfinite(values)]
        if not finite.size:
            return 0.0, 1.0
        low, high = np.percentile(finite, self.percentiles)
        return float(low), float(high)


NO_WINDOW = "has no window: nothing says which of its values become black and white"
MOST_BYTES = 900_000_000
"""The most bytes of memory that reading an image may take."""
SCAN_BYTES = 24
"""Bytes of memory that a pixel of a scan takes at most: stored, scaled and shifted as float64; colours need less."""
BLOCK = 1 << 20
"""Number of values, or of bytes, that are converted at a time, so that little memory is needed."""
ALIKE = 0.01
"""The relative difference of two spacings that is ignored: pixels within it count as square."""


@contextlib.contextmanager
def sound(path: Path, problem: str, remedy: str) -> Iterator[None]:
    """Turn any error of the block, in which a library reads part of the file `path`, into UserError with `problem`.

    Libraries raise errors of all kinds for damaged files. Their messages may repeat a header, so they are left out.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except FileNotFoundError:
        raise UserError(path, "no such image", remedy) from None
    except Exception:
        raise UserError(path, problem, remedy) from None


def require_memory(path: Path, size: str, needed: int, remedy: str) -> None:
    """Raise UserError if an image would take more than MOST_BYTES of memory.

    `needed` is the estimate in bytes, and `size` the size in the image's header, in words.
    """
    if needed > MOST_BYTES:
        limit = f"more than the {MOST_BYTES / 1e9:.1f} GB that an image may take"
        raise UserError(path, f"has {size} and would take {needed / 1e9:.2f} GB of memory, {limit}", remedy)


@dataclass(frozen=True)
class Reading:
    """The settings of a study on how scans are read.

    The two values of the `window` become black and white; percentiles are found for each file; None takes the window
    that a DICOM file states. `axis` is the orientation of the slices of a volume: sagittal, coronal or axial. `volume`
    is the number, from 1, of the volume that is read from a file with several. With `neighbours` the slice before, the
    slice itself and the slice after become the three channels. Images are scaled to a `spacing` in millimetres per
    pixel; None keeps the finer one of the file. `mask` says that the values are classes of pixels.
    """

    window: Window | Percentiles | None = None
    axis: str = "axial"
    volume: int | None = None
    neighbours: bool = False
    spacing: float | None = None
    mask: bool = False


@dataclass(frozen=True)
class Frame:
    """A frame of a scan: values (height, width) in the units of the file, or colours (height, width, 3), uint8.

    `window` is the display window that the file states, and `curve` the function that it states in place of one. NaN
    stands for no measurement, and is shown black. `inverted` frames show their smallest value white.
    """

    values: np.ndarray
    window: Window | None = None
    inverted: bool = False
    curve: Curve | None = None


class Scan(ABC):
    """Base class of an open scan. Only its header has been read; pixels are read when a frame is asked for.

    `frames` is the number of frames, and `size` their height and width in pixels. `burnt_in` is True if the header says
    that text in the pixels may identify the patient. `windowed` is True if the file itself says which values become
    black and white. `remedy` is the advice of errors about damage. Raises UserError for a size that cannot be read.
    """

    kind = ""

    def __init__(self, path: Path, frames: int, size: tuple[int, int], remedy: str) -> None:
        self.path = path
        self.frames = frames
        self.size = size
        self.remedy = remedy
        self.burnt_in = False
        self.windowed = False
        self._found = dict[Percentiles, Window]()
        if not (min(size) > 0 and frames > 0):
            raise UserError(path, f"has {frames} frames of {size[1]}x{size[0]} pixels, which cannot be read", remedy)
        require_memory(path, f"{size[1]}x{size[0]} pixels", SCAN_BYTES * math.prod(size), remedy)

    @abstractmethod
    def frame(self, number: int) -> Frame:
        """Return frame `number`, from 1. Raises UserError for pixels that are damaged or cannot be decompressed."""

    def require(self, named: int | None, reading: Reading) -> None:
        """Raise UserError if the header tells that a frame cannot be shown as `reading` says.

        `named` is the number, from 1, of the frame that a row of a table names; None if the row names none.
        """
        number = self.number(named, reading)
        if not self.in_window(reading):
            raise UserError(self.path, NO_WINDOW, window_remedy(self.frame(number).values))

    def in_window(self, reading: Reading) -> bool:
        """Return whether the study's `reading` or the file itself says which values become black and white."""
        return reading.window is not None or self.windowed

    def number(self, named: int | None, reading: Reading) -> int:
        """Return the number, from 1, of the frame to read: `named`, which a row of a table names, or the only frame.

        `named` is None if the row names none. Raises UserError if the file then has several frames, if it has no frame
        `named`, and if `reading` wants neighbours in a file of one frame.
        """
        if reading.neighbours and self.frames == 1:
            problem = "has 1 frame, and so no neighbours"
            raise UserError(self.path, problem, "make a volume of its series (dcm2niix), or remove dataset.neighbours")
        if named is None and self.frames == 1:
            return 1
        several = counted(self.frames, "frame")
        if named is None:
            example = f"{self.path.name}#{(self.frames + 1) // 2}"
            remedy = f"name one in its path, such as {example}, or some for all files: dataset.slices: [0.5]"
            raise UserError(self.path, f"has {several}, and no row says which", remedy)
        if not 1 <= named <= self.frames:
            raise UserError(self.path, f"has {several}, and no frame {named}", f"write #1 to #{self.frames}")
        return named

    def spacing_of(self, number: int) -> Spacing | None:
        """Return the pixel spacing of frame `number` in mm; None unless the header states two positive numbers."""
        return _lengths(self._spacing(number))

    @abstractmethod
    def _spacing(self, number: int) -> Spacing | None:
        """Return the pixel spacing of frame `number` as the header states it, unchecked; None if it states none."""

    def _aspect(self, number: int) -> Spacing | None:
        """Return the height and width of a pixel in no unit, if the header states only that of a frame; else None."""
        return None

    def shown(self, named: int | None, reading: Reading) -> tuple[tuple[int, int], Spacing | None]:
        """Return the (height, width) of the array that `image` returns, and its spacing in mm (None if unknown)."""
        number = self.number(named, reading)
        spacing = self.spacing_of(number)
        if spacing is None:
            aspect = _lengths(self._aspect(number))
            return self._square_sides(self.size, aspect, None) if aspect else self.size, None
        height, width = self._square_sides(self.size, spacing, reading.spacing)
        return (height, width), (self.size[0] * spacing[0] / height, self.size[1] * spacing[1] / width)

    def image(self, named: int | None, reading: Reading) -> np.ndarray:
        """Return a frame as an image (height, width, 3), uint8, shown and scaled as `reading` says.

        `named` is the number of the frame, from 1, or None for the only one. Pixels are square if the header states
        their spacing or its ratio. Raises UserError if the frame cannot be read or shown.
        """
        middle = self.number(named, reading)
        numbers = [middle]
        if reading.neighbours:
            # a slice at the rim stands for the neighbour that it lacks
            numbers = [max(middle - 1, 1), middle, min(middle + 1, self.frames)]
        # frame by frame, so that the memory of one suffices
        channels = [self._bytes(self.frame(number), reading.window) for number in numbers]
        if len(channels) > 1 and any(channel.ndim == 3 for channel in channels):
            raise UserError(self.path, "is coloured, and three slices become channels", "remove dataset.neighbours")
        if channels[0].ndim == 3:
            image = channels[0]
        else:
            image = np.stack(channels if len(channels) > 1 else channels * 3, axis=-1)
        return self._scaled(image, middle, reading.spacing)

    def values(self) -> np.ndarray:
        """Return the values of all frames of the file as one array (n,).

        Raises UserError if they take too much memory.
        """
        size = f"{self.frames} frames of {self.size[1]}x{self.size[0]} pixels"
        needed = SCAN_BYTES * self.frames * math.prod(self.size)
        require_memory(self.path, size, needed, "state dataset.window: [LOW, HIGH], which needs one frame at a time")
        return np.concatenate([self.frame(number).values.ravel() for number in range(1, self.frames + 1)])

    def _bytes(self, frame: Frame, wanted: Window | Percentiles | None) -> np.ndarray:
        """Return the values of a frame as uint8, scaled by the window `wanted` or else by the file's.

        Colours stay as they are. Raises UserError if there is no window.
        """
        if frame.values.ndim == 3:
            return frame.values
        if isinstance(wanted, Percentiles) and wanted not in self._found:
            # those of all values of the file, which are found once
            self._found[wanted] = wanted.window(self.values())
        window = self._found[wanted] if isinstance(wanted, Percentiles) else wanted
        if window is None and frame.curve is not None:
            shades = in_window(frame.curve(frame.values), (0, 1))
        elif window or frame.window:
            shades = in_window(frame.values, window or frame.window or (0, 1))
        else:
            raise UserError(self.path, NO_WINDOW, window_remedy(frame.values))
        return np.where(np.isnan(frame.values), 0, 255 - shades).astype(np.uint8) if frame.inverted else shades

    def _scaled(self, image: np.ndarray, number: int, wanted: float | None) -> np.ndarray:
        """Return the image of frame `number` with square pixels of `wanted` mm; if None, of the finer spacing.

        If the header states neither spacing nor ratio, return the image as it is; raise UserError if `wanted` is given.
        """
        spacing = self.spacing_of(number)
        if spacing is None:
            if wanted is not None:
                problem = "does not say how large its pixels are, and dataset.spacing needs that"
                raise UserError(self.path, problem, "remove dataset.spacing, or leave the file out")
            spacing = _lengths(self._aspect(number))
        if spacing is None:
            return image
        height, width = self._square_sides(image.shape[:2], spacing, wanted)
        if (height, width) == image.shape[:2]:
            return image
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))

    def _square_sides(self, sides: Sequence[int], spacing: Spacing, wanted: float | None) -> tuple[int, int]:
        """Return the height and width of an image of `sides` (height, width) once its pixels are square.

        A pixel has the side `wanted` or, if that is None, the smaller one in `spacing`. Raises UserError if the image
        gets too large for memory.
        """
        side = wanted or min(spacing)
        if all(abs(length / side - 1) <= ALIKE for length in spacing):
            return sides[0], sides[1]
        height, width = (max(round(n * length / side), 1) for n, length in zip(sides, spacing, strict=True))
        if SCAN_BYTES * height * width > MOST_BYTES:
            raise UserError(self.path, f"would have {width}x{height} pixels of {side:g} mm", self.remedy)
        return height, width


def _lengths(spacing: Spacing | None) -> Spacing | None:
    """Return the spacing (row, column) in millimetres if both are positive numbers, else None."""
    if spacing is None or not all(math.isfinite(length) and length > 0 for length in spacing):
        return None
    return spacing


def in_window(values: np.ndarray, window: Window) -> np.ndarray:
    """Return values as uint8: the first value of `window` becomes 0 and the second 255; what lies beyond is clipped.

    NaN becomes 0. If both values of the window are equal, larger values become 255.
    """
    low, high = window
    if high == low:
        return np.where(values > high, 255, 0).astype(np.uint8)
    shades = np.empty(np.shape(values), dtype=np.uint8)
    # a few rows at a time: float64 and its copies would take 40 times the memory of the shades
    step = max(BLOCK * len(shades) // max(shades.size, 1), 1)
    for first in range(0, len(shades), step):
        rows = slice(first, first + step)
        shares = (np.asarray(values[rows], dtype=np.float64) - low) / (high - low)
        shades[rows] = np.rint(255 * np.clip(np.nan_to_num(shares, nan=0.0), 0, 1))
    return shades


def window_remedy(values: np.ndarray) -> str:
    """Return the advice on what to write if no window is known, with percentiles of `values` as an example."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return "it holds no numbers: leave it out"
    low, high = np.percentile(finite, (1, 99))
    example = f"dataset.window: [{low:.6g}, {high:.6g}]" if low < high else "dataset.window: [LOW, HIGH]"
    span = f"its values run from {finite.min():.6g} to {finite.max():.6g}, 98 % of them from {low:.6g} to {high:.6g}"
    return f"write one for all sites, such as {example}; {span}"
