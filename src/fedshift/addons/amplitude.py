"""Amplitude interpolation: FedDG, Liu et al. (2021), after FDA, Yang and Soatto (2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..algorithms import Local, class_loss
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor

    from ..algorithms import Images

BATCH = 64
"""Number of images that are transformed together."""


class Amplitude(Addon):
    """Images are also seen with low-frequency amplitudes that lean towards those of another client's image.

    Frequencies up to b = floor(fraction min(height, width)) lie in a square window. Before the first round each client
    sends the amplitudes in the window of `bank` of its images, evenly spread, to all others: once, at most bank
    channels (2 b + 1)^2 floats up, and as many down from each other client. They are made from images: 49 numbers a
    channel for b = 3, without phases. In a step each image draws another client, one of its images, and l from U(0, 1),
    or takes the fixed `mix`. Its amplitudes become (1 - l) own + l foreign, its phases stay, and the result is clipped
    to the range of values of the batch (our decision; the codes clip to 0..255). The loss is the cross-entropy of the
    images plus `weight` times that of the changed images, which go through the network in a second pass, so that
    running statistics move twice a step.

    FDA is `mix: 1`. The released code of FedDG has b = 0, the mean of an image alone, and replaces it. FedDG's meta
    learning and its loss on boundaries are for segmentation, and left out. Images are the network's inputs: leave
    `normalize` out of the transforms for the published method. Where a client trains alone, and with `pooled`, foreign
    images are those of the same client. Nothing is done at test time. Logged loss and accuracy are of unchanged images.

    Defaults: fraction 0.05 and 32 images (our decision; published are fractions of 0.01 to 0.1), weight 1.
    """

    paper = "Liu et al. 2021"
    weighs_classes = True
    fraction: float = Field(
        0.05, ge=0, lt=0.5, description="highest frequency of the window, as a share of the smaller side of the images"
    )
    mix: float | None = Field(
        None, ge=0, le=1, description="weight of the foreign amplitudes (l); null: drawn from U(0, 1) for each image"
    )
    bank: int = Field(32, ge=1, description="number of images whose amplitudes a client sends")
    weight: float = Field(1.0, ge=0, description="weight of the loss on changed images")

    def offer(self, images: Images) -> dict[str, Tensor]:
        import numpy as np
        import torch

        from ._spectrum import amplitudes

        rows = np.linspace(0, len(images) - 1, min(self.bank, len(images))).round().astype(np.int64)
        parts = []
        for start in range(0, len(rows), BATCH):
            x, _ = images.batch(rows[start : start + BATCH])
            parts.append(amplitudes(x, self._half_width(x)))
        return {"amplitudes": torch.cat(parts)}

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = local.model(x)
        loss = class_loss(local, logits, y)
        if not self.weight:
            return loss, logits
        return loss + self.weight * class_loss(local, local.model(self._changed(local, x)), y), logits

    def _changed(self, local: Local, x: Tensor) -> Tensor:
        """Mix the amplitudes of images (batch, channels, height, width) with those of other clients' images."""
        import torch

        from ..nn.device import to_device
        from ._spectrum import amplitudes, exchanged

        half_width = self._half_width(x)
        n = x.size(0)
        others = [name for name in local.offers if name != local.client] or [local.client]
        banks = [local.offers[name]["amplitudes"] for name in others]
        client = torch.randint(len(banks), (n,))
        image = torch.rand(n)
        foreign = torch.stack([banks[k][int(r * len(banks[k]))] for k, r in zip(client.tolist(), image, strict=True)])
        mix = torch.rand(n) if self.mix is None else torch.full((n,), self.mix)
        amplitude = amplitudes(x, half_width)
        # Drawn on the CPU by the generator that is keyed there, then copied without waiting.
        foreign, mix = (to_device(drawn.to(amplitude.dtype), amplitude.device) for drawn in (foreign, mix))
        leaning = torch.lerp(amplitude, foreign, mix[:, None, None, None])
        return exchanged(x, leaning, half_width).clamp(x.min(), x.max())

    def _half_width(self, x: Tensor) -> int:
        return int(self.fraction * min(x.size(-2), x.size(-1)))
