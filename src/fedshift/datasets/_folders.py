"""Images in folders: one folder for each site, with one folder for each class in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..io.images import read_image
from ._base import Opened

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
    files, rows = [], []
    for site in sites:
        folder = root / site
        if (folder / site).is_dir():
            folder /= site
        if not folder.is_dir():
            raise UserError(folder, "no such folder", f"expected a folder for each site: {', '.join(sites)}")
        folders = {f.name: f for f in sorted(folder.iterdir()) if f.is_dir()}
        strange = sorted(set(folders) - set(classes))
        if strange and not others:
            raise UserError(folders[strange[0]], "is no class of this dataset", f"expected {', '.join(classes)}")
        folders = {name: f for name, f in folders.items() if name in classes}
        if lacking := set(labels) - {classes[name] for name in folders}:
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
    """Resize an image (height, width, 3) uint8 to (size, size, 3); its aspect ratio is not kept."""
    from PIL import Image

    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def below(folder: Path, site: str) -> Path:
    """Return the folder that holds `site`: `folder` itself or one inside it, since archives differ in this."""
    parents = sorted((f.parent for f in folder.rglob(site) if f.is_dir()), key=lambda f: len(f.parts))
    return parents[0] if parents else folder
