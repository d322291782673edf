"""Image files of a folder or a table to which a run is applied: all are listed, and they are read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from PIL import Image

from ..core.console import say
from ..core.errors import UserError, require_none
from ..core.spelling import counted, groups, quoted
from ..data.samples import MappedSamples
from ..datasets._outlines import square
from ..datasets._own_rows import empty_cells, file_faults, headed, read_rows, renamed
from ..datasets.own_images import SCANS, OwnImages
from ..io.images import NIFTI, PLAIN, is_scan, located
from ..transforms import Transform

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..study.run import Run

CARRIED = ("label", "site", "patient")
"""Columns of a user's table that are kept in the table of predictions, beside the path of an image."""
LOOKS = ("brightness", "contrast", "colour")
"""Names of the three numbers that `looks` measures of an image."""


def looks(images: np.ndarray) -> np.ndarray:
    """Return brightness, contrast and colour (n, 3), float64, of images (n, height, width, channels), uint8.

    All are between 0 and 255. Brightness is the mean of the grey levels, contrast their standard deviation, and colour
    the mean distance between the largest and the smallest channel of a pixel.
    """
    grey = images.mean(axis=3)
    colour = images.max(axis=3).astype(np.int16) - images.min(axis=3)
    return np.stack([grey.mean(axis=(1, 2)), grey.std(axis=(1, 2)), colour.mean(axis=(1, 2))], axis=1)


@dataclass(frozen=True)
class FileImage:
    """An image in the size of its file, and where it lies in the square that the network sees.

    `pixels` are (height, width, 3), uint8. `place` says, for rows and for columns, where the image begins in its
    prepared square and how long it is there, in pixels of the square; what lies outside was cut off.
    """

    pixels: np.ndarray
    place: Sequence[tuple[float, float]]

    def restored(self, mask: np.ndarray) -> np.ndarray:
        """Return a mask (side, side) of the square in the size of the file, by the nearest pixel.

        It is 0 where the image was cut off.
        """
        # Rounded first, since the centre of a pixel may lie on the edge of one of the square.
        nearest = [
            np.floor(np.round(begin + (np.arange(side) + 0.5) * length / side, 9)).astype(int)
            for side, (begin, length) in zip(self.pixels.shape[:2], self.place, strict=True)
        ]
        seen = [np.flatnonzero((index >= 0) & (index < len(mask))) for index in nearest]
        restored = np.zeros(self.pixels.shape[:2], dtype=mask.dtype)
        restored[np.ix_(*seen)] = mask[np.ix_(*(index[kept] for index, kept in zip(nearest, seen, strict=True)))]
        return restored


class ImageFiles(OwnImages):
    """Image files of a user, read and scaled to the shape of a run's images.

    The centre of what is not square is cut out, as in the dataset `own_images`; with `padding` black is added instead.
    `table` is a folder, or a CSV that needs only the column `path`; `carried` are the columns of it that are kept.
    `otherwise` ends the advice for an image that cannot be read, with what else the caller offers.
    """

    channels: int = 3
    padding: bool = False
    carried: tuple[str, ...] = CARRIED
    prepare: tuple[Transform, ...] = ()
    otherwise: str = ""

    @classmethod
    def of(cls, run: Run, source: Path, otherwise: str = "") -> ImageFiles:
        """Return the image files in `source`, a folder or a CSV, to be read as a run's images are.

        Raises UserError for a run whose images are not square.
        """
        data = run.data.dataset
        shape = run.data.shape
        if not shape:
            fault = f"its dataset {data.name} does not say what shape its images have"
            raise UserError(f"run {run.id}", fault, "give the dataset's class a line such as shape = (3, 96, 96)")
        if len(shape) != 3 or shape[1] != shape[2]:
            raise UserError(f"run {run.id}", f"was trained on {data.name}, not on square images", "choose another run")
        centre = getattr(data, "centre", None)
        if centre:
            fault = f"its images are the middle {centre} pixels of scans, which are not cut out here"
            raise UserError(f"run {run.id}", fault, "choose another run")
        settings = {"size": shape[1], "channels": shape[0], "prepare": run.data.prepare, "otherwise": otherwise}
        # the label of an image says nothing about a mask
        carried = tuple(column for column in CARRIED if column != "label" or run.data.task.has_probabilities)
        # scans are shown to a network as they were in training, and a table may be one of the same hospital
        read = {name: getattr(data, name) for name in (*SCANS, "columns", "labels") if hasattr(data, name)}
        return cls(table=source, classes=data.classes, padding=data.padded, carried=carried, **settings, **read)

    @property
    def _remedy(self) -> str:
        remedies = ["get it again", "remove it" if self.table.is_dir() else "remove its row", self.otherwise]
        return ", or ".join(filter(None, remedies))

    @property
    def stored(self) -> tuple[int, int, int]:
        """The shape of an image after reading: (channels, height, width)."""
        return self.channels, self.size, self.size

    def listed(self) -> pd.DataFrame:
        """Return a row for each image: path and, where a table has them, label (Int64), site and patient.

        A scan has a row for each frame that the run's dataset chooses. A label is missing where it is unknown. Images
        of a folder are sorted by path. Images of a table keep its order and repetitions, and the index is that of the
        table. Raises UserErrors for a source without images, for an empty path or site, and for a label that is not a
        class of the run.
        """
        if not self.table.exists():
            raise UserError(self.table, "no such file or folder")
        if self.table.is_dir():
            rows = pd.DataFrame({"path": pd.Series(sorted(images_of(self.table)), dtype="str")})
            if rows.empty:
                remedy = f"name a folder with DICOM files, {', '.join((*PLAIN, *NIFTI))}, or a CSV of paths"
                raise UserError(self.table, "holds no images", remedy)
        else:
            rows = self._rows()
        return self._scans(rows, self.base).rows

    def _rows(self) -> pd.DataFrame:
        """Return the rows of the table that names the images.

        Raises UserErrors for a table without paths, and for bad cells.
        """
        rows = read_rows(self.table)
        rows = renamed(rows, {role: name for role, name in self.columns.items() if headed(name) in rows})
        if "path" not in rows:
            raise UserError(self.table, "no column 'path'", f"it has {', '.join(rows.columns)}")
        rows = rows[["path", *(c for c in self.carried if c in rows and rows[c].notna().any())]]
        faults = [fault for c in ("path", "site") if c in rows for fault in empty_cells(self.table, rows[c])]
        if "label" in rows:
            labels, wrong = self._labels(rows["label"], self.table)
            rows = rows.assign(label=labels.astype("Int64"))
            faults += wrong
        require_none(faults)
        if rows.empty:
            raise UserError(self.table, "has no rows below its header", "list each image in a row")
        for names in groups(rows["site"].unique()) if "site" in rows else ():
            listed = ", ".join(map(quoted, names))
            say(f"{self.table}: sites {listed} differ only in spelling, and count as {len(names)}")
        return rows

    @property
    def base(self) -> Path:
        """Return the folder to which paths are relative."""
        return self.table if self.table.is_dir() else self.table.parent

    def require(self, paths: pd.Series) -> None:
        """Raise UserErrors if `paths`, a column of the table, name files that do not exist."""
        if not self.table.is_dir():
            require_none(file_faults(self.table, self.base, paths, self._remedy))

    def fault(self, path: str) -> str:
        """Return the reason why a file cannot be read as an image; "" if it can."""
        try:
            self.read(path)
        except UserError as error:
            return error.what
        return ""

    def read(self, path: str) -> tuple[np.ndarray, float]:
        """Read an image (height, width, channels), uint8, in the run's size.

        Also return how many times smaller it is than in its file, along the side that decides the scale; 0 if it had
        the run's size. Raises UserError that names the file.
        """
        image = self._image(self.base, path)
        prepared = self._square(image)
        side = max(image.shape[:2]) if self.padding else min(image.shape[:2])
        reduction = 0.0 if prepared is image else side / self.size
        if self.channels == 1:
            prepared = np.asarray(Image.fromarray(prepared).convert("L"))[..., None]
        for transform in self.prepare:
            prepared = transform.prepare(prepared)
        return prepared, reduction

    def original(self, path: str) -> FileImage:
        """Read an image in the size of its file, for masks of that size. Raises UserError that names the file."""
        image = self._image(self.base, path)
        place = self._place(image.shape[:2])
        file, _ = located(self.base, path)
        if is_scan(file):
            # the pixels of a scan may have been scaled to be square
            height, width = self._scan(file).size
            image = np.asarray(Image.fromarray(image).resize((width, height)))
        return FileImage(image, place)

    def _place(self, shape: Sequence[int]) -> list[tuple[float, float]]:
        """Return, for rows and for columns, where an image begins in its prepared square, and how long it is there.

        Both are in pixels of the square (see `FileImage`); `shape` is the image's (height, width).
        """
        if self.spacing is not None:
            return [(-((side - self.size) // 2), side) for side in shape]
        if self.padding:
            # rounded as by Pillow's ImageOps.pad
            lengths = [round(side / max(shape) * self.size) for side in shape]
            return [(round((self.size - length) * 0.5), length) for length in lengths]
        scale = self.size / min(shape)
        return [((min(shape) - side) / 2 * scale, side * scale) for side in shape]

    def _square(self, image: np.ndarray, resampling: int | None = None) -> np.ndarray:
        if self.padding and self.spacing is None:
            return square(image, self.size)
        return super()._square(image, resampling)


def images_of(folder: Path) -> Iterator[str]:
    """Yield the paths of all images and scans below a folder, relative to it.

    Folders that are links are followed, and each folder is visited once. Raises UserError for a name that no text file
    could hold.
    """

    def refuse(error: OSError) -> None:
        raise error

    passed_over = 0
    # a link to a folder above would be followed without end
    seen = {str(above) for above in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        # links come last, so that a folder that is also linked to keeps its real name
        visited = (name for name in folders if not name.startswith("."))
        folders[:] = sorted(visited, key=lambda name: ((Path(place) / name).is_symlink(), name))
        for name in names:
            file = Path(place) / name
            if name.startswith(".") or not (name.lower().endswith(PLAIN) or is_scan(file)):
                passed_over += 1
                continue
            path = file.relative_to(folder).as_posix()
            # the system gives bytes that are not UTF-8 as halves of surrogate pairs
            if any("\ud800" <= letter <= "\udfff" for letter in path):
                raise UserError(folder, f"the name {path!r} is not UTF-8", "rename the file")
            yield path
    if passed_over:
        say(f"{folder}: passed over, neither an image by its ending nor DICOM: {counted(passed_over, 'file')}")


@dataclass(eq=False)
class FileSamples:
    """Images that are read when a batch asks for them. Their labels are their positions in `paths`.

    `transforms` are those of a batch, as in `MappedSamples`, and `each` is the function `map`, or that of a pool of
    threads. Of the images read so far, `reduction` (n,) says how many times smaller each is than in its file, 0 if it
    had the run's size, and `looks` (n, len(LOOKS)) its brightness, contrast and colour.
    """

    files: ImageFiles
    paths: pd.Series
    transforms: Sequence[Transform] = ()
    device: torch.device | str = "cpu"
    each: Callable[..., Iterator[Any]] = map
    random = False

    def __post_init__(self) -> None:
        self.reduction = np.zeros(len(self.paths))
        self.looks = np.full((len(self.paths), len(LOOKS)), np.nan)

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the inputs (batch, channels, height, width), float32, of the images at the positions `index` (batch,).

        The second value is `index` itself, int64, in place of labels.
        """
        images, self.reduction[index] = zip(*self.each(self.files.read, self.paths.iloc[index]), strict=True)
        rows = np.arange(len(index))
        self.looks[index] = looks(np.stack(images))
        return MappedSamples(np.stack(images), rows, index, self.transforms, self.device).batch(rows, rng)
