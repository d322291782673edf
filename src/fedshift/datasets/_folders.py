"""Images in folders: one of each site, in it one of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..io.images import read_image
from ._base import Opened

if TYPE_CHECKING:
    import numpy as np

ENDINGS = (".jpg", ".jpeg", ".png")


def opened(root: Path, sites: Sequence[str], classes: Mapping[str, str], size: int, *, others: bool = False) -> Opened:
    """The images below `root`/site/class, in the order of sites, classes and file names; square, `size` pixels a side.

    `classes` maps the name of a folder to that of its class, in the order of labels; several folders may be one class.
    With `others`, folders of no known class are passed over. A site that has an archive of its own may lie in
    `root`/site/site. The images are resized as a whole (bilinear, as Pillow does), whatever their shape. Raises
    UserError for a site that is not there or lacks a class, and, without `others`, for a folder of no known class.
    """
    import pandas as pd

    labels = {name: k for k, name in enumerate(dict.fromkeys(classes.values()))}
    files, rows = [], []
    for site in sites:
        folder = root / site
        if (folder / site).is_dir():
            folder /= site
        if not folder.is_dir():
            raise UserError(folder, "no such folder", f"expected one of each site: {', '.join(sites)}")
        found = {f.name: f for f in sorted(folder.iterdir()) if f.is_dir()}
        strange = sorted(set(found) - set(classes))
        if strange and not others:
            raise UserError(found[strange[0]], "is no class of this dataset", f"expected {', '.join(classes)}")
        found = {name: f for name, f in found.items() if name in classes}
        if lacking := set(labels) - {classes[name] for name in found}:
            raise UserError(folder, f"has no folder of class {min(lacking)!r}", "obtain the archive anew")
        for name in sorted(found, key=lambda name: (labels[classes[name]], name)):
            images = sorted(f for f in found[name].iterdir() if f.suffix.lower() in ENDINGS)
            if not images:
                raise UserError(found[name], f"holds no image ({', '.join(ENDINGS)})", "obtain the archive anew")
            files += images
            rows += [(f"{site}/{name}/{f.name}", site, labels[classes[name]], None) for f in images]
    samples = pd.DataFrame(rows, columns=["sample", "site", "label", "patient"])
    return Opened(samples, lambda i: resized(read_image(files[i]), size))


def resized(image: np.ndarray, size: int) -> np.ndarray:
    """An image (height, width, 3) uint8 as (size, size, 3), its shape not kept."""
    import numpy as np
    from PIL import Image

    if image.shape[:2] == (size, size):
        return image
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def below(folder: Path, site: str) -> Path:
    """The folder that holds `site`: `folder` itself, or one within, as archives are packed differently."""
    found = sorted((f.parent for f in folder.rglob(site) if f.is_dir()), key=lambda f: len(f.parts))
    return found[0] if found else folder
