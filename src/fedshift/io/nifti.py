"""NIfTI volumes, read slice by slice and turned as radiologists look at them."""

from __future__ import annotations

import functools
import gzip
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from .scan import BLOCK, SCAN_BYTES, Frame, Reading, Scan, Spacing, Window, require_memory, sound
from .text import require_regular

AXES = {"sagittal": 0, "coronal": 1, "axial": 2}
"""The axis of the body along which slices of each kind are stacked: 0 to the right, 1 to the front, 2 to the head."""
PACKED = b"\x1f\x8b"
"""The first bytes of a file that gzip has packed."""
SIZES = {size.to_bytes(4, order) for size in (348, 540) for order in ("little", "big")}
"""The possible first bytes of a NIfTI file: the size of its header, 348 or 540 bytes, in either byte order."""
GZIP_RATIO = 1032
"""The most bytes to which gzip unpacks one byte: a code of 2 bits stands for up to 258 bytes (RFC 1951, 3.2.5)."""
CUT = "has fewer pixels than its header says, or is cut short"
UNPACK = "unpack it with gunzip: of a plain .nii only the slices that are needed are read"
"""Remedy for a compressed volume that is too large to be held in memory."""
MILLIMETRES = {"meter": 1000.0, "micron": 0.001}
"""Millimetres of the units of length that a header may name; any other unit is taken for a millimetre."""
SAME_PLACE = 0.05
"""The largest distance, in voxels, between corners of a mask and of its image that is ignored: programs round
affines."""
SHEARED = 0.02
"""The cosine of the angle between two axes above which a volume counts as sheared: 1 degree off a right angle."""


class NiftiVolume(Scan):
    """An open NIfTI volume. Only its header has been read; a slice is read when it is asked for.

    The frames are the slices along the axis of `reading`, numbered from 1 towards the patient's right, front or head.
    """

    kind = "NIfTI"

    def __init__(self, path: Path, image: Any, reading: Reading, remedy: str) -> None:
        from nibabel.orientations import inv_ornt_aff, io_orientation

        self.content = image
        volume = _volume(path, image.shape, reading)
        self.volume = (volume - 1, 0, 0, 0)[: max(len(image.shape) - 3, 0)]
        """Indices, behind the three of the voxel, of the volume that is read from a file with several."""
        if image.get_data_dtype().kind not in "iuf":
            raise UserError(path, "holds colours or complex numbers, which are not read", remedy)
        orientation = io_orientation(image.affine)
        if not math.isfinite(orientation.sum()):
            raise UserError(path, "has a header that does not say how the patient lies", remedy)
        steps = image.affine[:3, :3] / np.linalg.norm(image.affine[:3, :3], axis=0)
        cosine = np.abs(np.triu(steps.T @ steps, 1)).max()
        if cosine > SHEARED:
            problem = f"has axes that are {math.degrees(math.asin(min(cosine, 1))):.0f} degrees off right angles"
            raise UserError(path, problem, "resample it to a grid with right angles, or leave it out")
        axis = AXES[reading.axis]
        stored = [int(k) for k in orientation[:, 0]]
        """The axis of the body (see AXES) along each axis of the stored array."""
        self.across = stored.index(axis)
        self.towards = orientation[:, 1] > 0
        # rows run down the higher of the other two axes, and columns along the lower one
        self.rows, self.columns = (stored.index(k) for k in (2, 1, 0) if k != axis)
        zooms = (*image.header.get_zooms()[:3], 1.0)
        unit = MILLIMETRES.get(image.header.get_xyzt_units()[0], 1.0)
        self.spacing = float(zooms[self.rows]) * unit, float(zooms[self.columns]) * unit
        shape = (*image.shape, 1, 1)[:3]
        self.voxels = tuple(int(shape[stored.index(k)]) for k in range(3))
        """Numbers of voxels along the three axes of the body: to the right, to the front and to the head."""
        self.affine = unit * (image.affine @ inv_ornt_aff(orientation, shape))[:3]
        """Affine (3, 4) from the indices of a voxel along the axes of the body to its position in millimetres."""
        super().__init__(path, shape[self.across], (shape[self.rows], shape[self.columns]), remedy)
        self.window: Window | None = None
        whole = {"u": (0, 255), "i": (-128, 127)} if image.get_data_dtype().itemsize == 1 else {}
        if image.header.get_slope_inter() in ((None, None), (1, 0)):
            self.window = whole.get(image.get_data_dtype().kind)
        self.windowed = self.window is not None

    @classmethod
    def opened(cls, path: Path, reading: Reading, remedy: str) -> NiftiVolume:
        """Open the NIfTI volume at `path` and read its header; `reading` chooses the axis and the volume.

        Raises UserError for a file that is damaged, not a volume, or compressed and too large for memory. The size of
        the file is compared with the header before memory is taken, and extensions of the header are not read.
        """
        from nibabel import Nifti1Image, Nifti2Image
        from nibabel.arrayproxy import ArrayProxy
        from nibabel.openers import ImageOpener

        require_regular(path)
        with sound(path, "is not NIfTI, or its header is damaged", remedy):
            if path.is_file() and not path.stat().st_size:
                raise UserError(path, "the file is empty", remedy)
            with path.open("rb") as file:
                begin = file.read(4)
            packed = begin[:2] == PACKED
            if _packed(path) != packed and (packed or begin in SIZES):
                problem = f"is {'packed' if packed else 'not packed'}, and its name says otherwise"
                remedy = f"rename it to {path.name}.gz" if packed else f"rename it to {path.stem}"
                raise UserError(path, problem, remedy)
            with ImageOpener(str(path)) as file:
                head = file.read(Nifti2Image.header_class.sizeof_hdr)
            kind = next(k for k in (Nifti1Image, Nifti2Image) if k.header_class.may_contain_header(head))
            header = kind.header_class(head[: kind.header_class.sizeof_hdr])
            values = ArrayProxy(str(path), header)
            ends = values.offset + math.prod(values.shape) * values.dtype.itemsize
            if ends > path.stat().st_size * (GZIP_RATIO if packed else 1):
                raise UserError(path, CUT, remedy)
            volume = cls(path, kind(values, header.get_best_affine(), header), reading, remedy)
        if packed:
            whole = math.prod(values.shape[:3]) * values.dtype.itemsize
            voxels = f"{'x'.join(map(str, values.shape))} voxels"
            require_memory(path, voxels, whole + SCAN_BYTES * math.prod(volume.size), UNPACK)
        return volume

    @functools.cached_property
    def _unpacked(self) -> np.ndarray:
        """The stored values of a compressed volume, unpacked once, since to read a slice unpacks all before it."""
        data, shape = self.content.dataobj, self.content.shape[:3]
        content = bytearray(math.prod(shape) * data.dtype.itemsize)
        view = memoryview(content)
        with gzip.open(self.path) as file:
            file.seek(self._begin)
            # in blocks: a call for all of them would hold them twice
            for first in range(0, len(view), BLOCK):
                block = view[first : first + BLOCK]
                if file.readinto(block) < len(block):
                    raise UserError(self.path, CUT, self.remedy)
        return np.frombuffer(content, data.dtype).reshape(shape, order="F")

    @property
    def _begin(self) -> int:
        """The offset in bytes, in the unpacked file, at which the values of the chosen volume begin."""
        data = self.content.dataobj
        return int(data.offset + sum(self.volume) * math.prod(data.shape[:3]) * data.dtype.itemsize)

    def frame(self, number: int) -> Frame:
        """Return slice `number`, from 1, turned as a radiologist looks at it.

        In axial and coronal slices the patient's right is on the left, in sagittal ones the front; the front or the
        head is up.
        """
        from nibabel.arrayproxy import is_proxy
        from nibabel.volumeutils import apply_read_scaling

        index: list[Any] = [slice(None)] * 3
        index[self.across] = number - 1 if self.towards[self.across] else self.frames - number
        index = index[: len(self.content.shape)]
        data = self.content.dataobj
        with sound(self.path, CUT, self.remedy):
            if not is_proxy(data):
                values = data[(*index, *self.volume)]
            else:
                # nibabel's own slices list each row that they read, which can take longer than to read the volume
                shape = self.content.shape[:3]
                packed = _packed(self.path)
                stored = self._unpacked if packed else np.memmap(self.path, data.dtype, "r", self._begin, shape, "F")
                values = apply_read_scaling(stored[tuple(index)], *map(np.asanyarray, (data.slope, data.inter)))
        values = values.reshape([n for axis, n in enumerate((*self.content.shape, 1)[:3]) if axis != self.across])
        if self.rows > self.columns:
            values = values.T
        steps = [-1 if self.towards[axis] else 1 for axis in (self.rows, self.columns)]
        return Frame(values[:: steps[0], :: steps[1]], self.window)

    def _spacing(self, number: int) -> Spacing:
        return self.spacing

    def require_same_place(self, image: NiftiVolume) -> None:
        """Raise UserError unless the voxels of this mask lie on those of `image` in space, however both are stored."""
        if self.voxels != image.voxels:
            sizes = ["x".join(map(str, volume.voxels)) for volume in (self, image)]
            problem = f"has {sizes[0]} voxels, and its image {image.path.name} {sizes[1]}"
            raise UserError(self.path, problem, "resample the mask onto its image, by the nearest neighbour")
        corners = np.array([*itertools.product(*((0, n - 1) for n in self.voxels), (1,))])
        moved = (self.affine - image.affine) @ corners.T
        apart = float(np.linalg.norm(moved, axis=0).max())
        if apart > SAME_PLACE * np.linalg.norm(image.affine[:, :3], axis=0).min():
            problem = f"lies elsewhere than its image {image.path.name}: a corner is {apart:.3g} mm away"
            remedy = (
                "resample the mask onto its image, or, if it was drawn on it voxel by voxel, give it the same affine"
            )
            raise UserError(self.path, problem, remedy)


def _packed(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _volume(path: Path, shape: tuple[int, ...], reading: Reading) -> int:
    """Return the number, from 1, of the volume to read from an array of `shape`, as `reading` chooses it.

    Raises UserError if the array has no such volume, has several of which none is chosen, or is a mask with several.
    """
    volumes, wanted = math.prod(shape[3:]), reading.volume
    if reading.mask and volumes > 1:
        problem = f"has 4 dimensions, {volumes} volumes, as masks have that say yes or no for each class"
        raise UserError(path, problem, "store the number of the class in each voxel, in one volume")
    if not 2 <= len(shape) <= 7 or math.prod(shape[4:]) != 1:
        sizes = "x".join(map(str, shape))
        raise UserError(path, f"has {len(shape)} dimensions ({sizes})", "store each volume in its own file")
    if volumes == 1:
        return 1
    if wanted is None or wanted > volumes:
        problem = f"has 4 dimensions, {volumes} volumes" + (f", and no volume {wanted}" if wanted else "")
        raise UserError(path, problem, f"choose one: dataset.volume: 1 to {volumes}")
    return wanted
