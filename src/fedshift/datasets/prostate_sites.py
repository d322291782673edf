"""Prostate MRI of six sites, in the folders of SAML: volumes, each slice of which is an image."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from pydantic import Field

from ..core.errors import UserError
from ..core.rng import stream
from ..io.download import Source
from ..io.nifti import NiftiVolume
from ..io.scan import Reading, Spacing, in_window, sound
from ._base import Card, Opened, listed, names_of
from ._outlines import Layout, Outlines, Pair, ellipse, square

ARCHIVE = Source(
    None,
    "SAML.zip",
    unpack=True,
    page="https://liuquande.github.io/SAML (it links to Google Drive; pack the folders of the six sites)",
)
COUNTS = {"BIDMC": 12, "BMC": 30, "HK": 12, "I2CVB": 19, "RUNMC": 30, "UCL": 13}
AXIAL = Reading()
AGAIN = "obtain the archive again"
BRIGHT = 0.99
"""The quantile of a volume's values that becomes white; its least value becomes black."""
KEPT = 4
"""Number of volumes that are kept open, so that their next slice is read faster."""
SLICES = 6
"""Number of slices of a volume of the miniature."""
SIDE = 48
"""Voxels along each side of a slice of the miniature."""
VOXEL = (0.6, 0.6, 3.0)
"""Millimetres between rows, columns and slices in the miniature."""


@dataclass(frozen=True)
class _Volume:
    """An opened volume with its mask. `window` is the values that become black and white."""

    image: NiftiVolume
    mask: NiftiVolume
    window: tuple[float, float]


def _layout(site: str, count: int) -> Layout:
    # BMC's masks are called Case00_Segmentation: names are compared without regard to capitals
    end = "Segmentation" if site == "BMC" else "segmentation"
    return Layout(
        (ARCHIVE,),
        rf"(SAML/(?:.*/)?){site}/(Case\d+)\.nii(?:\.gz)?",
        rf"\1{site}/\2_segmentation",
        (count,),
        lambda n: (f"SAML/{site}/Case{n:02}.nii.gz", f"SAML/{site}/Case{n:02}_{end}.nii.gz"),
        r"\2",
    )


class ProstateSites(Outlines):
    """116 volumes of T2-weighted MRI; sites = BIDMC 12, BMC 30, HK 12, I2CVB 19, RUNMC 30, UCL 13 volumes.

    Read from SITE/CaseNN.nii.gz and SITE/CaseNN_segmentation.nii.gz. A volume is a patient, and each axial slice an
    image. Values of a mask above 0 are prostate, since some sites number its zones. A mask is laid on its volume voxel
    by voxel, whatever its header says, as is usual for this set. The least value of a volume becomes black, and the
    0.99 quantile white. The column `spacing` has the millimetres between rows, columns and slices.
    """

    miniature_fields = frozenset({"images"})
    reading_fields = frozenset({"size", "classes", "centre", "spacing", "neighbours", "only_structure"})
    layouts: ClassVar[Mapping[str, Layout]] = {site: _layout(site, count) for site, count in COUNTS.items()}
    classes: tuple[str, ...] = names_of(("background", "prostate"), "classes", " of a mask")
    images: int = Field(5, ge=5, description="volumes of each site in the miniature")
    centre: int | None = Field(
        None, ge=16, le=2048, description="side of the square around the centre that is cut out, in pixels of the file"
    )
    spacing: float | None = Field(
        None,
        gt=0,
        description="millimetres per pixel to which slices are scaled; their centre is then cut out, or black is "
        "added. Without it they are scaled to `size`, and pixels are taken as square",
    )
    neighbours: bool = Field(False, description="whether the slices before and after become first and last channel")
    only_structure: bool = Field(
        False, description="leave out slices without prostate; false alarms on them are then not counted"
    )

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return 3 if self.neighbours else 1, self.size, self.size

    def card(self) -> Card:
        return Card(
            title="Prostate MRI of six sites",
            version="SAML 2020",
            source="https://liuquande.github.io/SAML",
            licence="none stated by SAML; made from PROMISE12, NCI-ISBI 2013 and I2CVB, which have their own terms",
            citation="Liu et al. 2020 (MICCAI, SAML); Litjens et al. 2014 (MedIA 18:359, PROMISE12); Bloch et al. 2015 "
            "(NCI-ISBI 2013); Lemaitre et al. 2015 (Comput Biol Med 60:8, I2CVB)",
            caveat="BIDMC, HK and UCL are from PROMISE12, RUNMC (3 T) and BMC (1.5 T) from NCI-ISBI 2013. Readers "
            "disagree on the number of slices with prostate (158 or 157 at HK, 421 or 411 at RUNMC), so volumes are "
            "counted and slices are not.",
        )

    def open(self, raw: Path) -> Opened:
        pairs = self.pairs(raw)
        volume = functools.lru_cache(maxsize=KEPT)(lambda k: _opened(pairs[k]))
        slices = [(k, number) for k, pair in enumerate(pairs) for number in self._numbers(pair)]
        names = [f"{pairs[k].sample}#{number}" for k, number in slices]
        table = listed(names, [pairs[k].site for k, _ in slices], None, [pairs[k].patient for k, _ in slices])
        volumes = [NiftiVolume.opened(pair.image, AXIAL, AGAIN) for pair in pairs]
        # the millimetres between rows, columns and slices of a volume, such as 0.6x0.6x3
        thick = [float(volume.content.header.get_zooms()[volume.across]) for volume in volumes]
        spacing = ["x".join(f"{mm:.4g}" for mm in (*v.spacing, last)) for v, last in zip(volumes, thick, strict=True)]
        lengths = [self._lengths(volume) for volume in volumes]
        return Opened(
            table.assign(spacing=[spacing[k] for k, _ in slices]),
            lambda i: self._image(volume(slices[i][0]), slices[i][1]),
            further=("spacing",),
            mask=lambda i: self._mask(volume(slices[i][0]), slices[i][1]),
            spacing=lambda i: lengths[slices[i][0]],
        )

    def _numbers(self, pair: Pair) -> list[int]:
        """Return the numbers, from 1, of the slices to read: all, or only slices with prostate by `only_structure`."""
        if not self.only_structure:
            return list(range(1, NiftiVolume.opened(pair.image, AXIAL, AGAIN).frames + 1))
        mask = _opened(pair).mask
        return [number for number in range(1, mask.frames + 1) if (mask.frame(number).values > 0).any()]

    def _image(self, volume: _Volume, number: int) -> np.ndarray:
        numbers = [number]
        if self.neighbours:
            # a slice at the rim stands for the neighbour that it lacks
            numbers = [max(number - 1, 1), number, min(number + 1, volume.image.frames)]
        frames = [in_window(volume.image.frame(n).values, volume.window) for n in numbers]
        return np.stack([self._placed(frame, volume.image) for frame in frames], axis=-1)

    def _mask(self, volume: _Volume, number: int) -> np.ndarray:
        classes = (volume.mask.frame(number).values > 0).astype(np.uint8)
        return self._placed(classes, volume.image, nearest=True)

    def _placed(self, frame: np.ndarray, volume: NiftiVolume, nearest: bool = False) -> np.ndarray:
        """Return a slice (height, width) uint8 as a square of `size` pixels; masks are scaled by the nearest pixel."""
        if self.centre is not None:
            frame = _middle(frame, self.centre, self.centre)
        if self.spacing is None:
            return square(frame, self.size, nearest)
        if volume.spacing_of(1) is None:
            problem = "does not say how large its pixels are, and dataset.spacing needs that"
            raise UserError(volume.path, problem, "remove dataset.spacing")
        sides = self._sides(frame.shape, volume.spacing)
        method = Image.Resampling.NEAREST if nearest else Image.Resampling.LANCZOS
        scaled = np.asarray(Image.fromarray(frame).resize((sides[1], sides[0]), method))
        return _middle(scaled, self.size, self.size)

    def _sides(self, shape: Sequence[int], spacing: Spacing) -> list[int]:
        """Return the height and the width to which a slice of `shape` is scaled before it becomes a square."""
        if self.spacing is None:
            return [max(round(n * self.size / max(shape)), 1) for n in shape]
        return [max(round(n * mm / self.spacing), 1) for n, mm in zip(shape, spacing, strict=True)]

    def _lengths(self, volume: NiftiVolume) -> Spacing | None:
        """Return the millimetres between rows and columns of prepared slices; None if the header does not say them."""
        spacing = volume.spacing_of(1)
        if spacing is None:
            return None
        shape = volume.size if self.centre is None else (self.centre, self.centre)
        height, width = self._sides(shape, spacing)
        return shape[0] * spacing[0] / height, shape[1] * spacing[1] / width

    def miniature(self, raw: Path) -> None:
        """Write volumes whose organ is largest in the middle and ends before the outer slices.

        Sites differ in brightness, contrast and noise.
        """
        import nibabel

        for site, layout in self.chosen.items():
            look = stream(self.name, "miniature", site)
            ground, contrast, noise = look.uniform(150, 400), look.uniform(80, 250), look.uniform(10, 40)
            for n in range(self.images):
                rng = stream(self.name, "miniature", site, n)
                most = rng.uniform(0.18, 0.3)
                organ = np.zeros((SIDE, SIDE, SLICES), dtype=bool)
                for k in range(1, SLICES - 1):
                    # the same stream for each slice keeps the centre
                    size = most * np.sin(np.pi * k / (SLICES - 1))
                    organ[:, :, k] = ellipse(stream(self.name, "organ", site, n), (0.9 * size, size), SIDE)
                values = ground + contrast * organ + rng.normal(0, noise, organ.shape)
                affine = np.diag([*VOXEL, 1.0])
                contents = values.clip(0).round().astype(np.int16), organ.astype(np.uint8) * (1 + n % 2)
                for name, content in zip(layout.drawn(n), contents, strict=True):
                    (raw / name).parent.mkdir(parents=True, exist_ok=True)
                    nibabel.save(nibabel.Nifti1Image(content, affine), raw / name)


def _opened(pair: Pair) -> _Volume:
    """Open the volume of a patient and its mask. Raises UserError for a damaged file, or a mask of another size."""
    import nibabel

    image, mask = (NiftiVolume.opened(file, AXIAL, AGAIN) for file in (pair.image, pair.mask))
    if image.content.shape != mask.content.shape:
        sizes = ["x".join(map(str, volume.content.shape)) for volume in (mask, image)]
        raise UserError(pair.mask, f"has {sizes[0]} voxels, and its volume {sizes[1]}", AGAIN)
    with sound(pair.image, "has fewer voxels than its header says, or is cut short", AGAIN):
        values = np.asanyarray(image.content.dataobj)
        window = float(values.min()), float(np.quantile(values, BRIGHT))
    with sound(pair.mask, "has fewer voxels than its header says, or is cut short", AGAIN):
        classes = np.asanyarray(mask.content.dataobj)
    # the header of the volume counts for both, so that slices are turned alike
    laid = nibabel.Nifti1Image(classes, image.content.affine, dtype=classes.dtype)
    return _Volume(image, NiftiVolume(pair.mask, laid, AXIAL, AGAIN), window)


def _middle(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the middle of an image (height, width), with black around it where it is smaller."""
    top, left = (frame.shape[0] - height) // 2, (frame.shape[1] - width) // 2
    return np.asarray(Image.fromarray(frame).crop((left, top, left + width, top + height)))
