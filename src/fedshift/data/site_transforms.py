"""Transforms that adapt to a site: they take statistics of its images, and clients may send these to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from torch import Tensor

from ..transforms import Transform
from .samples import Samples

BATCH = 256
"""Number of images that are read together."""
Statistics = list[Tensor | None]
"""What each transform knows about a site; None for those that are the same for all sites."""


def site_statistics(transforms: Sequence[Transform], opened: Callable[[Sequence[Transform]], Samples]) -> Statistics:
    """Return what each transform that adapts to sites knows about one of them.

    `opened` returns the images of the site after some transforms: those before the one that adapts. Nothing is read
    where no transform adapts.
    """
    return [t.fit(_inputs(opened(transforms[:k]))) if t.per_site else None for k, t in enumerate(transforms)]


def at_site(
    transforms: Sequence[Transform], own: Statistics, clients: Sequence[Statistics] = ()
) -> tuple[Transform, ...]:
    """Return the transforms as they act at a site, given its statistics and, for training, those of all clients."""
    out = list[Transform]()
    for k, (transform, statistics) in enumerate(zip(transforms, own, strict=True)):
        others = [known for client in clients if (known := client[k]) is not None]
        out += [transform] if statistics is None else transform.fitted(statistics, others)
    return tuple(out)


def _inputs(samples: Samples) -> Iterator[Tensor]:
    for start in range(0, len(samples), BATCH):
        yield samples.batch(np.arange(start, min(start + BATCH, len(samples))))[0]
