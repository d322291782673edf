"""FedRDN: Yan et al., A Simple Data Augmentation for Feature Distribution Skewed Federated Learning (2025)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.errors import UserError
from ._base import Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

LEAST = 1e-6
"""Standard deviations below this are raised to it: images of one grey level have 0."""
ROUNDING = 1e-3
"""Grey levels may lie outside of 0 to 1 by this much, through rounding."""


class FedRDN(Transform):
    """Normalisation of training images by mean and deviation of a random client, and of other images by their site's.

    Statistics of a site are, for each channel, the mean of its images and the mean of their standard deviations over
    pixels. Before training each client sends its own statistics, of its training images without augmentation, and gets
    those of all other clients: 2 floats a channel up, once. A client that trains alone gets none. In training a client
    is drawn for each image, with mean and deviation together, as in the paper; its code draws a mean and a deviation
    for a batch.

    In validation and prediction an image is normalised by the statistics of its site: at internal sites of training
    images, and at external sites of all images that are predicted, without their labels. Other methods do not have this
    information about external sites. A batch without a site is normalised by its own statistics.

    It acts on grey levels from 0 to 1 and replaces `normalize`: put it behind `scale_intensity`. With one client, or
    equal statistics, it is an ordinary normalisation.
    """

    mask = "stays"
    per_site: ClassVar[bool] = True

    def fit(self, batches: Iterable[Tensor]) -> Tensor:
        total = None
        count = 0
        for x in batches:
            if x.dim() != 4:
                raise UserError("transform fedrdn", "acts on images, and these are vectors", "leave it out")
            low, high = float(x.min()), float(x.max())
            if low < -ROUNDING or high > 1 + ROUNDING:
                problem = f"acts on images from 0 to 1, and these reach from {low:g} to {high:g}"
                raise UserError("transform fedrdn", problem, "put scale_intensity before it, and leave out normalize")
            sums = _statistics(x).sum(1)
            total = sums if total is None else total + sums
            count = count + len(x)
        if total is None:
            raise UserError("transform fedrdn", "a site has no images to take statistics of", "leave the site out")
        return total / count

    def fitted(self, own: Tensor, clients: Sequence[Tensor]) -> tuple[Transform, ...]:
        normalised = _Own(own=own)
        return (normalised, _Redraw(own=own, clients=tuple(clients))) if clients else (normalised,)

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return _normalised(x, _statistics(x).mean(1))


class _Own(Transform):
    """Normalisation by a site's own mean and standard deviation of each channel, (2, channels)."""

    own: Any

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return _normalised(x, self.own)


class _Redraw(Transform):
    """Normalisation by the statistics of a client drawn for each image, after `_Own`, which it undoes.

    `own` and each of `clients` are means and standard deviations (2, channels).
    """

    when = "train"
    own: Any
    clients: tuple[Any, ...]

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        import torch

        from ..nn.device import array_to_device

        client = array_to_device(rng.integers(0, len(self.clients), len(x)), x)
        drawn = torch.stack(self.clients).to(x).index_select(0, client)
        site = self.own.to(x)
        mean, std = (site[k][:, None, None] for k in range(2))
        client_statistics = [drawn[:, k, :, None, None] for k in range(2)]
        moved = (x * std.clamp(min=LEAST) + mean - client_statistics[0]) / client_statistics[1].clamp(min=LEAST)
        # Images whose own statistics were drawn stay as they are, to the bit.
        return torch.where((drawn == site).all(dim=(1, 2))[:, None, None, None], x, moved)


def _statistics(x: Tensor) -> Tensor:
    """Return mean and standard deviation of each channel of each image: (2, batch, channels)."""
    import torch

    return torch.stack([x.mean((2, 3)), x.std((2, 3), unbiased=False)])


def _normalised(x: Tensor, statistics: Tensor) -> Tensor:
    mean, std = statistics.to(x)
    return (x - mean[:, None, None]) / std.clamp(min=LEAST)[:, None, None]
