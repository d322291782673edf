"""Scans: files of one or several frames, whose values have their own units, as images of 8 bits."""

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
"""Makes shades, from 0, black, to 1, white, of values."""


class Percentiles(Frozen):
    """A window from the values of each file: two percentiles of them become black and white."""

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
        """Return the percentiles of values; NaN and infinities do not count. Values that are all such give (0, 1)."""
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
"""Number of values that are brought to 8 bits at a time."""
ALIKE = 0.01
"""The relative difference of spacings that is overlooked: pixels within it count as square."""


@contextlib.contextmanager
def sound(path: Path, problem: str, remedy: str) -> Iterator[None]:
    """Raise UserError with `problem` where the block, which asks a library for a part of a file, fails in any way.

    Readers raise errors of all kinds for damaged files. Their words may repeat a header, so they are left out.
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
    """Raise UserError for an image that needs more than MOST_BYTES; `size` is what its header says, in words."""
    if needed > MOST_BYTES:
        limit = f"more than the {MOST_BYTES / 1e9:.1f} GB that an image may take"
        raise UserError(path, f"has {size} and would take {needed / 1e9:.2f} GB of memory, {limit}", remedy)


@dataclass(frozen=True)
class Reading:
    """The choices of a study on how scans are read.

    The values of the `window` become 0 and 255, or percentiles of the values of each file do; None takes the window
    that a DICOM file states. `axis` is that of the body along which the slices of a volume lie, and `volume` the
    number, from 1, of the one that is taken of a file with several. With `neighbours` the slice before, the slice
    itself and the slice after become the three channels. Images are scaled to a `spacing` in millimetres per pixel;
    None keeps the finer one of the file. A `mask` holds classes of pixels.
    """

    window: Window | Percentiles | None = None
    axis: str = "axial"
    volume: int | None = None
    neighbours: bool = False
    spacing: float | None = None
    mask: bool = False


@dataclass(frozen=True)
class Frame:
    """A frame: values (height, width) in the units of the file, or colours (height, width, 3), uint8.

    `window` is that of the file, and `curve` what it has in the place of one. NaN stands for no measurement, and is
    black. `inverted` frames show their smallest value white.
    """

    values: np.ndarray
    window: Window | None = None
    inverted: bool = False
    curve: Curve | None = None


class Scan(ABC):
    """An open scan. Its header is read; its pixels are read when a frame is asked for.

    `frames` is the number of frames, and `size` their height and width in pixels. `burnt_in` says that by the header
    the pixels show text that may identify the patient, and `windowed` that the frames can be shown in 8 bits without
    the window of a study.
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
        """Return a frame by its number, from 1. Raises UserError for damaged or compressed pixels."""

    def require(self, named: int | None, reading: Reading) -> None:
        """Raise UserError for a frame that cannot be shown, as far as the header tells; `named` as in `number`."""
        number = self.number(named, reading)
        if not self.in_window(reading):
            raise UserError(self.path, NO_WINDOW, window_remedy(self.frame(number).values))

    def in_window(self, reading: Reading) -> bool:
        """Return whether the study or the file says which values become black and white."""
        return reading.window is not None or self.windowed

    def number(self, named: int | None, reading: Reading) -> int:
        """Return the number of the frame that a row of a table names; `named` is None if it names none.

        Raises UserError where that is not a single frame of the file.
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
        """Return the spacing of a frame from the header; None where it does not say it in two positive numbers."""
        return _lengths(self._spacing(number))

    @abstractmethod
    def _spacing(self, number: int) -> Spacing | None:
        """Return what the header says of the spacing of a frame."""

    def _aspect(self, number: int) -> Spacing | None:
        """Return height and width of a pixel in no unit, where the header says only that."""
        return None

    def shown(self, named: int | None, reading: Reading) -> tuple[tuple[int, int], Spacing | None]:
        """Return height and width of what `image` returns, and its spacing; None where the header does not say it."""
        number = self.number(named, reading)
        spacing = self.spacing_of(number)
        if spacing is None:
            aspect = _lengths(self._aspect(number))
            return self._square_sides(self.size, aspect, None) if aspect else self.size, None
        height, width = self._square_sides(self.size, spacing, reading.spacing)
        return (height, width), (self.size[0] * spacing[0] / height, self.size[1] * spacing[1] / width)

    def image(self, named: int | None, reading: Reading) -> np.ndarray:
        """Return a frame (height, width, 3), uint8; pixels are square where the spacing is known. Raises UserError."""
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
        """Return all values of the file, of as many frames as there are. Raises UserError where these are too many."""
        size = f"{self.frames} frames of {self.size[1]}x{self.size[0]} pixels"
        needed = SCAN_BYTES * self.frames * math.prod(self.size)
        require_memory(self.path, size, needed, "state dataset.window: [LOW, HIGH], which needs one frame at a time")
        return np.concatenate([self.frame(number).values.ravel() for number in range(1, self.frames + 1)])

    def _bytes(self, frame: Frame, wanted: Window | Percentiles | None) -> np.ndarray:
        """Return the values of a frame as uint8; colours stay as they are."""
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
        """Return the image of a frame with square pixels, of `wanted` millimetres where that is not None."""
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
        """Return the height and the width with which an image has square pixels; see `_scaled`."""
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
    """Return values as uint8: `low` and less are 0, `high` and more 255, and those between are rounded.

    NaN becomes 0. Where low and high are equal, larger values are 255.
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
    """Return what to write where no window is known; the numbers are those of some values, as an example."""
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if not finite.size:
        return "it holds no numbers: leave it out"
    low, high = np.percentile(finite, (1, 99))
    example = f"dataset.window: [{low:.6g}, {high:.6g}]" if low < high else "dataset.window: [LOW, HIGH]"
    span = f"its values run from {finite.min():.6g} to {finite.max():.6g}, 98 % of them from {low:.6g} to {high:.6g}"
    return f"write one for all sites, such as {example}; {span}"
