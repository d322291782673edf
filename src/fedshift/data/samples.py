"""Samples of a client, in memory or rows of a memory-mapped array; their batches; what transforms know of a site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.units import IGNORED
from ..nn.device import array_to_device, to_device
from ..transforms import Transform, shape_after

if TYPE_CHECKING:
    from ..algorithms import Training

BATCH = 256
"""Number of images read at a time when labels or statistics of a whole set of images are taken."""
Statistics = list[Tensor | None]
"""The statistics of one site that each transform has taken, in order; None for transforms that take none."""


class Samples(Protocol):
    """Images or feature vectors with labels, fetched batch by batch.

    Attributes
    ----------
    random : whether `batch` draws from the `rng` it is given, such as for augmentation
    """

    random: bool

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs (batch, ...), float32, and targets, int64, of the samples at the positions `index`.

        Targets are labels (batch,), or segmentation masks (batch, height, width), which are augmented with their
        images.

        Inputs are augmented with random numbers from `rng`; without `rng` they are not augmented.
        """
        ...


class TensorSamples:
    """Samples that are held in memory, on any device.

    Parameters
    ----------
    x : inputs, (n, ...) float tensor
    y : labels (n,), or masks (n, height, width), integer tensor

    Raises ValueError where their lengths differ.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        if len(x) != len(y):
            raise ValueError(f"{len(x)} inputs, but {len(y)} labels")
        self.x = x
        self.y = y.long()
        self.random = False

    def __len__(self) -> int:
        return self.y.shape[0]

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of the samples at the positions `index`. They are never augmented."""
        chosen = array_to_device(index, self.x)
        return self.x.index_select(0, chosen), self.y.index_select(0, chosen)


class Pooled:
    """Several sets of samples, joined in order.

    Parameters
    ----------
    parts : the sets, each of which augments its own samples
    """

    def __init__(self, parts: Sequence[Samples]) -> None:
        self.parts = list(parts)
        self.random = any(part.random for part in parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and labels of the samples at the positions `index`, counted through all joined sets."""
        part = np.searchsorted(self.starts, index, side="right") - 1
        where = [np.flatnonzero(part == k) for k in range(len(self.parts))]
        pieces = [self.parts[k].batch(index[rows] - self.starts[k], rng) for k, rows in enumerate(where) if len(rows)]
        device = next((x.device for x, _ in pieces if x.device.type != "cpu"), pieces[0][0].device)
        x, y = (torch.cat([to_device(piece, device) for piece in column]) for column in zip(*pieces, strict=True))
        # the parts gave their samples one after the other: back to the order that was asked for
        back = array_to_device(np.argsort(np.concatenate(where)), x)
        return x[back], y[back]


class MappedSamples:
    """Rows of a memory-mapped array: uint8 (n, height, width, channels), or float32 (n, features).

    Only the rows of a batch are read from the disk.

    Parameters
    ----------
    images : the array of all sites
    rows : positions (n,) of these samples in the array
    labels : labels (n,), integers; unused where there are masks
    transforms : transforms of a batch, in order; those with `when: train` act only where `rng` is given
    device : torch device of the batches
    masks : segmentation masks of all sites (n, height, width), uint8, which move with their images; None without masks
    """

    def __init__(
        self,
        images: np.ndarray,
        rows: np.ndarray,
        labels: np.ndarray,
        transforms: Sequence[Transform] = (),
        device: torch.device | str = "cpu",
        masks: np.ndarray | None = None,
    ) -> None:
        self.images = images
        self.rows = np.asarray(rows)
        self.device = device
        self.labels = torch.from_numpy(np.asarray(labels, dtype=np.int64))
        self.transforms = tuple(transforms)
        self.masks = masks
        self.random = any(t.when == "train" for t in self.transforms)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, index: np.ndarray, rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return transformed inputs (batch, channels, height, width) or (batch, features), and targets, int64.

        Targets are labels (batch,) or, for data with masks, segmentation masks (batch, height, width).
        """
        x = to_device(torch.from_numpy(self.images[self.rows[index]]), self.device)
        if x.dim() == 4:
            x = x.permute(0, 3, 1, 2).contiguous()
        x = x.float()
        if self.masks is None:
            for transform, draws in self._acting(rng):
                x = transform.apply(x, draws)
            return x, to_device(self.labels[torch.from_numpy(index)], self.device)
        y = to_device(torch.from_numpy(self.masks[self.rows[index]]), self.device)[:, None].float()
        for transform, draws in self._acting(rng):
            if transform.mask == "moves":
                # As one more channel, a mask moves with its image, whatever is drawn.
                x, y = transform.apply(torch.cat([x, y], 1), draws).split([x.shape[1], 1], 1)
            else:
                x = transform.apply(x, draws)
        return x.contiguous(), y[:, 0].round().long()

    def _acting(self, rng: np.random.Generator | None) -> Iterator[tuple[Transform, np.random.Generator]]:
        """Yield each transform that acts, with a generator to draw from; without `rng`, no training-only transforms."""
        for transform in self.transforms:
            if transform.when == "always":
                yield transform, rng or _NO_RANDOMNESS
            elif rng is not None:
                yield transform, rng


def batch_indices(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the sample indices `order` (n,) in consecutive batches of `size`.

    A last batch of one sample joins the batch before it, since BN cannot train on a single vector.
    """
    n = len(order)
    cuts = list(range(0, n, size))
    if n % size == 1 and n > 1:
        cuts.pop()
    for start, stop in zip(cuts, [*cuts[1:], n], strict=True):
        yield order[start:stop]


def batch_stream(n: int, training: Training, generator: torch.Generator) -> Iterator[np.ndarray]:
    """Yield batches of random sample indices below `n` without end: shuffled epochs, or draws with replacement."""
    while True:
        if training.replacement:
            yield torch.randint(n, (training.batch_size,), generator=generator).numpy()
        else:
            yield from batch_indices(torch.randperm(n, generator=generator).numpy(), training.batch_size)


def labels_of(samples: Samples) -> Tensor:
    """Return the labels (n,) or segmentation masks (n, height, width) of all samples, int64, on the CPU.

    Images are read only if the labels are not in memory.
    """
    if isinstance(samples, Pooled):
        return torch.cat([labels_of(part) for part in samples.parts])
    if isinstance(samples, TensorSamples):
        return samples.y.cpu()
    if isinstance(samples, MappedSamples) and samples.masks is None:
        return samples.labels
    parts = np.array_split(np.arange(len(samples)), -(-len(samples) // BATCH))
    return torch.cat([samples.batch(part)[1].cpu() for part in parts])


def class_counts(samples: Samples, classes: int = 0) -> Tensor:
    """Return the number of labels, or of mask pixels, of each class (k,), int64.

    `classes` is the least length k; a label beyond it makes the result longer. Ignored pixels are not counted.
    """
    return torch.bincount(known_labels(labels_of(samples)), minlength=classes)


def known_labels(labels: Tensor) -> Tensor:
    """Return labels (n,) unchanged, or the class (m,) of each pixel of masks (n, height, width) that is not ignored."""
    return labels if labels.dim() == 1 else labels[labels != IGNORED]


def shape_of(samples: Samples) -> tuple[int, ...]:
    """Return the shape of one input, (channels, height, width) or (features,), without reading an image if possible."""
    if isinstance(samples, Pooled):
        return shape_of(samples.parts[0])
    if isinstance(samples, MappedSamples):
        *sides, channels = samples.images.shape[1:]
        return shape_after(samples.transforms, (channels, *sides))
    return tuple((samples.x if isinstance(samples, TensorSamples) else samples.batch(np.arange(1))[0]).shape[1:])


def example_of(samples: Samples) -> Tensor:
    """Return one input (1, ...) in the shape that a network takes: the first in memory, or zeros for stored images."""
    if isinstance(samples, Pooled):
        return example_of(samples.parts[0])
    if isinstance(samples, MappedSamples):
        return torch.zeros(1, *shape_of(samples))
    return samples.x[:1] if isinstance(samples, TensorSamples) else samples.batch(np.arange(1))[0]


_NO_RANDOMNESS = np.random.Generator(np.random.PCG64(0))
"""The generator that transforms get outside training if they always act; they must not draw from it."""


def site_statistics(transforms: Sequence[Transform], opened: Callable[[Sequence[Transform]], Samples]) -> Statistics:
    """Return the statistics of one site that each of `transforms` takes; None for a transform that takes none.

    `opened` returns the site's images after the transforms that it is given: those before the transform that takes
    statistics. No image is read if no transform takes any.
    """

    def inputs(samples: Samples) -> Iterator[Tensor]:
        for start in range(0, len(samples), BATCH):
            yield samples.batch(np.arange(start, min(start + BATCH, len(samples))))[0]

    return [t.fit(inputs(opened(transforms[:k]))) if t.per_site else None for k, t in enumerate(transforms)]


def at_site(
    transforms: Sequence[Transform], own: Statistics, clients: Sequence[Statistics] = ()
) -> tuple[Transform, ...]:
    """Return the transforms fitted to a site by its own statistics and, for training, those of all clients.

    `own` and each of `clients` are lists that `site_statistics` returned.
    """
    out = list[Transform]()
    for k, (transform, statistics) in enumerate(zip(transforms, own, strict=True)):
        others = [known for client in clients if (known := client[k]) is not None]
        out += [transform] if statistics is None else transform.fitted(statistics, others)
    return tuple(out)
