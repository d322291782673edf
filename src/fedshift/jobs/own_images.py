"""Image files of a folder or a table, for a run to be applied to: listed all, and read batch by batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.console import say
from ..core.errors import UserError
from ..data.samples import MappedSamples
from ..datasets.own_images import OwnImages, read_rows, require_filled, require_images
from ..io.images import read_image
from ..transforms import Transform

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import Tensor

    from ..study.run import Run

CARRIED = ("label", "site", "patient")
"""What a table may say of an image beside its path."""
ENDINGS = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""By which images are known in a folder; a table may list any format that Pillow reads."""


class ImageFiles(OwnImages):
    """Anyone's images, brought to what those of a run are: read and scaled as dataset `own_images` does.

    `table` is a CSV of which only the column `path` must be there, or a folder.
    """

    channels: int = 3
    prepare: tuple[Transform, ...] = ()

    @classmethod
    def of(cls, run: Run, source: Path) -> ImageFiles:
        """Images for a run. Raises UserError where its dataset's are not square, or of no stated shape."""
        data = run.data.dataset
        side = getattr(data, "size", None)  # of datasets that bring their images to one size
        shape = data.shape or (side and (3, side, side))
        if not shape:
            what = f"its dataset {data.name} does not say what shape its images have"
            raise UserError(f"run {run.id}", what, "give the dataset's class a line such as shape = (3, 96, 96)")
        if len(shape) != 3 or shape[1] != shape[2]:
            raise UserError(f"run {run.id}", f"was trained on {data.name}, not on square images", "choose another run")
        return cls(table=source, classes=data.classes, size=shape[1], channels=shape[0], prepare=run.data.prepare)

    @property
    def stored(self) -> tuple[int, int, int]:
        """Shape of an image once it is read: (channels, height, width)."""
        return self.channels, self.size, self.size

    def listed(self) -> pd.DataFrame:
        """A row an image: path and, where a table has them, label (Int64, missing where unknown), site, patient.

        Images of a folder are sorted by path; those of a table stand as they do there, be it twice, and the index tells
        where. Raises UserError where there are none, a path or a site is empty, or a label is of no class of the run.
        """
        import pandas as pd

        if not self.table.exists():
            raise UserError(self.table, "no such file or folder")
        if self.table.is_dir():
            rows = pd.DataFrame({"path": pd.Series(sorted(_images(self.table)), dtype="str")})
        else:
            rows = self._rows()
        if rows.empty:
            raise UserError(
                self.table, "holds no images", f"name a folder with {', '.join(ENDINGS)}, or a CSV of paths"
            )
        return rows

    def _rows(self) -> pd.DataFrame:
        """Those of the table."""
        rows = read_rows(self.table)
        if "path" not in rows:
            raise UserError(self.table, "no column 'path'", f"it has {', '.join(rows.columns)}")
        rows = rows[["path", *(c for c in CARRIED if c in rows and rows[c].notna().any())]]
        for column in rows.columns.intersection(["path", "site"]):
            require_filled(self.table, rows[column])
        if "label" in rows:
            known = rows["label"].notna()
            labels = self._labels(rows["label"].fillna(self.classes[0]), self.table)
            rows = rows.assign(label=labels.astype("Int64").where(known))
        return rows

    @property
    def base(self) -> Path:
        """What paths are relative to."""
        return self.table if self.table.is_dir() else self.table.parent

    def require(self, paths: pd.Series) -> None:
        """Raise UserError for a path, as listed from the table, where no file is."""
        if not self.table.is_dir():
            require_images(self.table, self.base, paths)

    def fault(self, path: str) -> str:
        """Why a file is no image; nothing if it is one."""
        try:
            self.read(path)
        except UserError as error:
            return error.what
        return ""

    def read(self, path: str) -> tuple[np.ndarray, bool]:
        """An image (height, width, channels) uint8 of the run's size, and whether it had another size.

        Raises UserError that names the file.
        """
        image = read_image(self.base / path, own=True)
        square = self._square(image)
        scaled = square is not image
        if self.channels == 1:
            from PIL import Image

            square = np.asarray(Image.fromarray(square).convert("L"))[..., None]
        for transform in self.prepare:
            square = transform.prepare(square)
        return square, scaled


def _images(folder: Path) -> Iterator[str]:
    """Paths of the images below a folder, from there; folders that are links count, and each folder once.

    Raises UserError for a name that no file could keep as text.
    """

    def refuse(error: OSError) -> None:
        raise error

    others, seen = 0, {str(above) for above in folder.resolve().parents}
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = _inner(Path(place), folders)
        inner = Path(place).relative_to(folder).as_posix()
        for name in names:
            if name.startswith(".") or not name.lower().endswith(ENDINGS):
                others += 1
                continue
            path = name if inner == "." else f"{inner}/{name}"
            if not _is_text(path):
                raise UserError(folder, f"the name {path!r} is not UTF-8", "rename the file")
            yield path
    if others:
        say(f"{folder}: {others} files are no images by their ending, and passed over")


def _inner(place: Path, folders: list[str]) -> list[str]:
    """Folders to look into, links last: what lies here as well is then named by where it lies."""
    return sorted((f for f in folders if not f.startswith(".")), key=lambda f: ((place / f).is_symlink(), f))


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class FileSamples:
    """Images that are read when a batch asks for them; they have no labels (all are 0).

    Parameters
    ----------
    files : what reads them
    paths : which, in order
    transforms : what a batch goes through, as in `MappedSamples`
    each : `map`, or that of a pool of threads

    Attributes
    ----------
    scaled : (n,) bool, the images read so far that had another size than the run's
    """

    random = False

    def __init__(
        self,
        files: ImageFiles,
        paths: pd.Series,
        transforms: Sequence[Transform] = (),
        device: torch.device | str = "cpu",
        each: Callable[..., Iterator[Any]] = map,
    ) -> None:
        self.files, self.paths, self.transforms, self.device, self.each = files, paths, transforms, device, each
        self.scaled = np.zeros(len(paths), dtype=bool)

    def __len__(self) -> int:
        return len(self.paths)

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        images, self.scaled[index] = zip(*self.each(self.files.read, self.paths.iloc[index]), strict=True)
        rows = np.arange(len(index))
        return MappedSamples(np.stack(images), rows, np.zeros_like(rows), self.transforms, self.device).batch(rows, rng)
