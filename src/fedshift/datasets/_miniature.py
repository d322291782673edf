"""Synthetic images in folders of sites and classes, in the layout of photographs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ..files import atomic_folder
from ..rng import stream

Drawing = Callable[[np.random.Generator, int, int], np.ndarray]


def write_folders(
    folder: Path, sites: Sequence[str], classes: Sequence[str], each: int, ink: Drawing, side: int
) -> None:
    """Write `each` JPEG images a class and site to folder/site/class; `ink(rng, label, side)` draws what they show.

    A site has two colours, a contrast and a noise of its own.
    """
    with atomic_folder(folder) as new:
        for place, site in enumerate(sites):
            look = stream("miniature", *sites, "site", site)
            ground, pen, noise = look.uniform(0, 110, 3), look.uniform(140, 255, 3), look.uniform(4, 30)
            if place % 2:
                ground, pen = pen, ground
            for label, name in enumerate(classes):
                (new / site / name).mkdir(parents=True)
                for n in range(each):
                    rng = stream("miniature", *sites, site, label, n)
                    seen = ground + (pen - ground) * ink(rng, label, side)[..., None] * rng.uniform(0.7, 1)
                    seen = (seen + rng.normal(0, noise, (side, side, 3))).clip(0, 255).round().astype(np.uint8)
                    Image.fromarray(seen).save(new / site / name / f"frame_{n + 1:04}.jpg", quality=95)
