"""Synthetic images in folders of sites and classes, in the layout of photographs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..core.rng import stream
from ..io.disk import atomic_folder

Drawing = Callable[[np.random.Generator, int, int], np.ndarray]


def write_folders(
    folder: Path, sites: Sequence[str], classes: Sequence[str], each: int, ink: Drawing, side: int
) -> None:
    """Write `each` JPEG images of every class and site to folder/site/class."""
    with atomic_folder(folder) as new:
        for site in sites:
            write_site(new / site, site, sites, classes, each, ink, side)


def write_site(
    folder: Path,
    site: str,
    sites: Sequence[str],
    classes: Sequence[str],
    each: int,
    ink: Drawing,
    side: int,
    ending: str = "jpg",
) -> None:
    """Write `each` images of every class to folder/class; `ink(rng, label, side)` draws the digit of an image.

    Each site has its own two colours and noise.
    """
    look = stream("miniature", *sites, "site", site)
    ground, pen, noise = look.uniform(0, 110, 3), look.uniform(140, 255, 3), look.uniform(4, 30)
    if sites.index(site) % 2:
        ground, pen = pen, ground
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for n in range(each):
            rng = stream("miniature", *sites, site, label, n)
            seen = ground + (pen - ground) * ink(rng, label, side)[..., None] * rng.uniform(0.7, 1)
            seen = (seen + rng.normal(0, noise, (side, side, 3))).clip(0, 255).round().astype(np.uint8)
            Image.fromarray(seen).save(folder / name / f"frame_{n + 1:04}.{ending}", quality=95)
