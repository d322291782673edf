"""Dense outputs, of which each pixel is a sample: to test-time methods, and to the cross-entropy."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import nll_loss

from ..core.units import IGNORED

NONE_IGNORED = -100
"""A class number that no sample has: torch's own default."""


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample (batch,), or of each pixel of dense outputs (batch, height, width).

    `logits` are (batch, classes, ...), and `y` (batch, ...), int64; IGNORED pixels have none, 0. The bits are those of
    torch's `cross_entropy`, of which the form for images has no deterministic kernel on a GPU.
    """
    samples = logits.log_softmax(1).movedim(1, -1).flatten(0, -2)
    ignored = IGNORED if y.dim() > 1 else NONE_IGNORED
    return nll_loss(samples, y.flatten(), reduction="none", ignore_index=ignored).reshape_as(y)


class Pixelwise(nn.Module):
    """A network whose outputs (batch, classes, height, width) are given as (batch * height * width, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.grid: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all pixels of a batch, image by image."""
        logits: Tensor = self.network(x)
        self.grid = (len(logits), *logits.shape[2:])
        return logits.movedim(1, -1).flatten(0, -2)

    def as_images(self, logits: Tensor) -> Tensor:
        """Return the logits of the pixels of the batch that was seen last as (batch, classes, height, width)."""
        return logits.unflatten(0, self.grid).movedim(-1, 1)
