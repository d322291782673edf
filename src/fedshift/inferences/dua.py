"""DUA: Mirza et al. 2022, The Norm Must Go On: Dynamic Unsupervised Domain Adaptation by Normalization."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from ..core.rng import torch_stream
from ._base import ORDERED, Inference, Predict, Site

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class DUA(Inference):
    """Running statistics of batch norm that move towards the site's first images, one by one, in ever smaller steps.

    For image k = 1, 2, ... a batch of `copies` changed copies passes the network in training mode: cut at random after
    a border of an eighth of the side (black), flipped from left to right or not, and turned by a random multiple of 90
    degrees (of 180, where width and height differ). Then mu <- (1 - m_k) mu + m_k mu_b and v <- (1 - m_k) v + m_k v_b,
    with the batch's mean mu_b and unbiased variance v_b, and m_k = `momentum` `decay`^k + `least`. No parameter
    changes, and there is no gradient. After `images` images the statistics rest, and all images of the site are
    predicted with them, in evaluation mode.

    The authors adapt to a stream and test now and then; here the first images in test order come before all predictions
    (our decision). Borders are zeros where the grey levels of inputs are not known. Defaults are those of the authors'
    code for CIFAR-10-C: 0.1, 0.94, 0.005, and 64 copies; 100 images are about 1 % of its test images. Vectors cannot be
    augmented in this way, and are refused. `images` 0 is `source`.
    """

    display_name = "DUA"
    order: int | None = ORDERED
    images: int = Field(100, ge=0, description="number of images to adapt to")
    copies: int = Field(64, ge=2, description="changed copies of an image, which make up a batch")
    momentum: float = Field(0.1, ge=0, le=1, description="weight of a batch before it decays")
    decay: float = Field(0.94, gt=0, le=1, description="factor on this weight at each image")
    least: float = Field(0.005, ge=0, le=1, description="constant that is added to the decayed weight")
    seed: int = Field(0, ge=0, description="seed of the changed copies")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Site) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norms

        layers = [layer for layer in batch_norms(model).values() if layer.running_mean is not None]
        if layers and self.images:
            self._move(model, layers, batches)
        yield model

    def _move(self, model: nn.Module, layers: list[_BatchNorm], site: Site) -> None:
        generator = torch_stream(self.seed, "DUA")
        images = itertools.chain.from_iterable(site())
        for k, image in enumerate(itertools.islice(images, self.images), start=1):
            for layer in layers:
                layer.train()
                layer.momentum = self.momentum * self.decay**k + self.least
            model(changed_copies(image, self.copies, site.greys, generator))
            site.counts["seen"] += 1
        for layer in layers:
            layer.eval()


def changed_copies(
    image: Tensor,
    copies: int,
    greys: tuple[tuple[float, ...], tuple[float, ...]] | None,
    generator: torch.Generator,
) -> Tensor:
    """Return copies (copies, channels, height, width) of an image, each randomly cropped, flipped and rotated.

    `greys` are the values of black and of white for each channel, None if unknown. Raises UserError for an input that
    is no image (channels, height, width).
    """
    import torch
    from torch.nn.functional import pad

    from ..core.errors import UserError

    if image.dim() != 3:
        problem = f"augments images, but the inputs have the shape {tuple(image.shape)}"
        raise UserError("dua", problem, "choose an inference that takes vectors, such as tsmobn")
    height, width = image.shape[1:]
    border = max(height, width) // 8
    black = image.new_tensor(greys[0] if greys else [0.0]).view(-1, 1, 1)
    padded = pad(image - black, [border] * 4) + black
    turns = (0, 1, 2, 3) if height == width else (0, 2)

    def integer(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    made = []
    for _ in range(copies):
        down, right = integer(2 * border + 1), integer(2 * border + 1)
        copy = padded[:, down : down + height, right : right + width]
        copy = copy.flip(2) if integer(2) else copy
        made.append(copy.rot90(turns[integer(len(turns))], (1, 2)))
    return torch.stack(made)
