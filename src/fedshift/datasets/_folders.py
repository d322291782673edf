"""Images in folders: one folder for each site, with one folder for each class in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..core.errors import UserError
from ..core.rng import stream
from ..io.disk import atomic_folder
from ..io.images import read_image
from ._base import Opened
from ._digit_drawing import digit

ENDINGS = (".jpg", ".jpeg", ".png")


def opened(root: Path, sites: Sequence[str], classes: Mapping[str, str], size: int, *, others: bool = False) -> Opened:
    """Open the images of `root`/site/class in the order of sites, classes and file names, as squares of side `size`.

    `classes` maps names of folders to names of classes, in the order of labels; several folders may be one class. With
    `others`, folders of unknown classes are ignored. A site with its own archive may lie in `root`/site/site. Images
    are resized as a whole (bilinear, as in Pillow), so their aspect ratio is not kept. Raises UserError for a site that
    is missing or lacks a class and, without `others`, for a folder of an unknown class.
    """
    import pandas as pd

    labels = {name: k for k, name in enumerate(dict.fromkeys(classes.values()))}
    files = []
    rows = []
    for site in sites:
        folder = root / site
        if (folder / site).is_dir():
            folder /= site
        if not folder.is_dir():
            raise UserError(folder, "no such folder", f"expected a folder for each site: {', '.join(sites)}")
        folders = {f.name: f for f in sorted(folder.iterdir()) if f.is_dir()}
        unknown = sorted(set(folders) - set(classes))
        if unknown and not others:
            raise UserError(folders[unknown[0]], "is not a class of this dataset", f"expected {', '.join(classes)}")
        folders = {name: f for name, f in folders.items() if name in classes}
        lacking = set(labels) - {classes[name] for name in folders}
        if lacking:
            raise UserError(folder, f"has no folder of class {min(lacking)!r}", "obtain the archive again")
        for name in sorted(folders, key=lambda name: (labels[classes[name]], name)):
            images = sorted(f for f in folders[name].iterdir() if f.suffix.lower() in ENDINGS)
            if not images:
                raise UserError(folders[name], f"holds no image ({', '.join(ENDINGS)})", "obtain the archive again")
            files += images
            rows += [(f"{site}/{name}/{f.name}", site, labels[classes[name]], None) for f in images]
    samples = pd.DataFrame(rows, columns=["sample", "site", "label", "patient"])
    return Opened(samples, lambda i: resized(read_image(files[i]), size))


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """Return an image (height, width, 3), uint8, resized to (size, size, 3) without keeping its aspect ratio."""
    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def below(folder: Path, name: str) -> Path:
    """Return the folder that contains a file or folder `name`: `folder` itself, or the nearest one inside it.

    Archives differ in their top folders. Return `folder` if there is no such file.
    """
    parents = (found.parent for found in folder.rglob(name))
    return min(sorted(parents), key=lambda parent: len(parent.parts), default=folder)


def write_folders(folder: Path, sites: Sequence[str], classes: Sequence[str], count: int, side: int) -> None:
    """Write `count` synthetic images, `side` pixels square, of every class and site to folder/site/class."""
    with atomic_folder(folder) as new:
        for site in sites:
            write_site(new / site, site, sites, classes, count, side)


def write_site(
    folder: Path, site: str, sites: Sequence[str], classes: Sequence[str], count: int, side: int, ending: str = "jpg"
) -> None:
    """Write `count` synthetic digits, `side` pixels square, of every class to folder/class.

    Each site has its own two colours and noise. `sites` are all sites of the dataset, and name the random streams.
    """
    look = stream("miniature", *sites, "site", site)
    ground = look.uniform(0, 110, 3)
    pen = look.uniform(140, 255, 3)
    noise = look.uniform(4, 30)
    if sites.index(site) % 2:
        ground, pen = pen, ground
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for n in range(count):
            rng = stream("miniature", *sites, site, label, n)
            seen = ground + (pen - ground) * digit(rng, label, side)[..., None] * rng.uniform(0.7, 1)
            seen = (seen + rng.normal(0, noise, (side, side, 3))).clip(0, 255).round().astype(np.uint8)
            Image.fromarray(seen).save(folder / name / f"frame_{n + 1:04}.{ending}", quality=95)
