"""Bright discs on grey, whose contrast and brightness differ by site: masks for a look at segmentation under shift."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from ..core.errors import UserError
from ..core.rng import stream
from ._base import Card, Dataset, Opened, listed, names_of, read_npz

FILE = "discs.npz"
SITES = {"north": (110, 60), "south": (120, 45), "west": (100, 75), "east": (40, 22)}
"""Sites, with grey level of the background and contrast of a disc: east is dark, and its discs hardly stand out."""
NOISE = 8.0
"""Standard deviation of the noise of each pixel, in grey levels."""
AGAIN = "delete it and start again: it will be drawn again"


class Discs(Dataset):
    """Grey images with one disc each, and its mask; every fifth image has none. Two images belong to one patient.

    Brightness and contrast differ between north, south and west. At east all is dark, and a disc hardly stands out: a
    network that looks for what is bright fails there. Images are drawn on demand and depend on `seed` alone.
    """

    classes: tuple[str, ...] = names_of(("background", "disc"), "classes", " of a mask")
    samples: int = Field(60, ge=10, multiple_of=2, description="images of each site, two of each patient")
    size: int = Field(32, ge=16, le=512, description="side of the square images, in pixels")
    seed: int = Field(0, ge=0, description="seed of the images")

    reading_fields: ClassVar[frozenset[str]] = frozenset({"classes"})

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return 1, self.size, self.size

    @property
    def has_masks(self) -> bool:
        return True

    def card(self) -> Card:
        return Card(
            title="Discs whose contrast differs by site",
            version=f"{self.samples} images a site, {self.size}x{self.size} pixels, seed {self.seed}",
            source="drawn by fedshift",
            licence="that of fedshift",
            citation="none",
            caveat="Synthetic by design: it shows how a study of masks runs, and says nothing of any organ.",
        )

    def download(self, raw: Path, mirror: Path | None) -> None:
        """Draw images and masks (sites, samples, size, size), uint8. Every call draws the same."""
        images, masks = zip(*(self._drawn(site) for site in SITES), strict=True)
        np.savez_compressed(raw / FILE, images=np.stack(images), masks=np.stack(masks))

    def _drawn(self, site: str) -> tuple[np.ndarray, np.ndarray]:
        rng = stream(self.seed, "discs", site)
        ground, contrast = SITES[site]
        rows, columns = np.mgrid[: self.size, : self.size]
        centre = rng.uniform(0.25, 0.75, (self.samples, 2, 1, 1)) * self.size
        radius = rng.uniform(0.12, 0.25, (self.samples, 1, 1)) * self.size
        masks = (rows - centre[:, 0]) ** 2 + (columns - centre[:, 1]) ** 2 < radius**2
        masks &= (np.arange(self.samples) % 5 > 0)[:, None, None]
        levels = ground + contrast * masks + NOISE * rng.normal(size=masks.shape)
        return levels.clip(0, 255).round().astype(np.uint8), masks.astype(np.uint8)

    def open(self, raw: Path) -> Opened:
        path = raw / FILE
        shape = (len(SITES), self.samples, self.size, self.size)
        images, masks = read_npz(path, ("images", "masks"), AGAIN)
        if images.shape != shape or masks.shape != shape:
            raise UserError(path, f"holds arrays {images.shape} and {masks.shape}, expected {shape}", AGAIN)
        places = [(site, n) for site in SITES for n in range(self.samples)]
        names, patients = [f"{site}/{n:04}" for site, n in places], [f"{site}/p{n // 2:03}" for site, n in places]
        table = listed(names, [site for site, _ in places], None, patients)
        return Opened(
            table,
            lambda i: images[divmod(i, self.samples)][:, :, None],
            mask=lambda i: masks[divmod(i, self.samples)],
        )
