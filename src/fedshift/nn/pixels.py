"""A network of dense outputs, as test-time methods see it: each pixel is a sample."""

from __future__ import annotations

from torch import Tensor, nn


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
