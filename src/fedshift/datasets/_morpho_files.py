"""Morpho-MNIST's raw files: IDX files with the names of MNIST's and a third one of perturbations, in two folders."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ..core.console import Progress
from ..core.errors import UserError
from ..core.rng import stream
from ..io.download import Source, fetch
from . import _mnist as mnist
from ._arrays import joined, listed
from ._base import Opened
from ._digit_sites import shown
from ._folders import below

KINDS: Mapping[str, tuple[int, ...]] = {"global": (0, 1, 2), "local": (0, 3, 4)}
"""Perturbations that occur in each of the two sets."""
PAGE = "https://github.com/dccastro/Morpho-MNIST"
DRAWN = (
    "Perturbed by fedshift after the publication, with amounts from memory: similar to the published images, not equal."
)
Part = Literal["t10k", "train"]


def sources() -> Sequence[Source]:
    """Return the archives of the two folders."""
    return [Source(None, f"{kind}.zip", unpack=True, page=PAGE) for kind in KINDS]


def obtain(raw: Path, mirror: Path | None, part: Part) -> None:
    """Make the folders global and local of `raw`, from archives or from folders of the mirror.

    The mirror's folders are called global and local, or morpho_global and morpho_local.
    """
    names = (*mnist.names(part), _third(part))
    for kind in KINDS:
        folders = [] if mirror is None else [mirror / f"morpho_{kind}", mirror / kind]
        where = next((folder for folder in folders if (folder / names[0]).is_file()), None)
        if where is None:
            fetch(Source(None, f"{kind}.zip", unpack=True, page=PAGE), raw, mirror)
            continue
        for name in names:
            fetch(Source(None, name, page=PAGE), raw / kind, where)


def generate(raw: Path, x: np.ndarray, y: np.ndarray, part: Part) -> None:
    """Write the folders global and local of `raw`, from digits (n, 28, 28) and labels (n,).

    A perturbation depends on the number of the image.
    """
    from ._morpho import perturbed

    with Progress("perturb digits", len(x) * len(KINDS), "images") as bar:
        for kind, choice in KINDS.items():
            streams = [stream("morpho-mnist", kind, part, n) for n in range(len(x))]
            how = np.array([rng.choice(choice) for rng in streams], dtype=np.uint8)
            images = np.empty_like(x)
            for n, rng in enumerate(streams):
                images[n] = perturbed(x[n], int(how[n]), rng)
                bar.update()
            for name, array in zip((*mnist.names(part), _third(part)), (images, y, how), strict=True):
                mnist.write(raw / kind / name, array)


def opened(raw: Path, part: Part) -> Opened:
    """Open the sites morpho_global and morpho_local; `base` is the digit that both perturb."""
    from ._morpho import NAMES

    parts = []
    for kind, choice in KINDS.items():
        folder = below(raw / kind, mnist.names(part)[0])
        x, y = mnist.pair(folder, part)
        third = folder / _third(part)
        how = mnist.read(third, 1)
        if len(how) != len(x):
            raise UserError(third, f"has {len(how)} perturbations for {len(x)} images", "obtain it again")
        wrong = ~np.isin(how, choice)
        if wrong.any():
            first = int(wrong.argmax())
            problem = f"image {first} has perturbation {how[first]}, expected one of {', '.join(map(str, choice))}"
            raise UserError(third, problem, "obtain it again")
        base = [f"{part}{n:05}" for n in range(len(x))]
        names = [f"morpho_{kind}/{name}_{NAMES[k]}" for name, k in zip(base, how, strict=True)]
        samples = listed(names, f"morpho_{kind}", y).assign(base=base)
        parts.append(Opened(samples, functools.partial(_shown, x)))
    return joined(parts)


def _shown(images: np.ndarray, i: int) -> np.ndarray:
    return shown(images[i])


def _third(part: Part) -> str:
    return f"{part}-pert-idx1-ubyte.gz"
