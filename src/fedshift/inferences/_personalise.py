"""Gradient steps on labelled images of a site before it is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from pydantic import Field

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..core.rng import keyed, stream
from ..core.spelling import counted

if TYPE_CHECKING:
    from torch import Tensor, nn


class Labelled(Protocol):
    """Labelled images of a site, fetched by batch."""

    def __len__(self) -> int: ...

    def batch(self, index: np.ndarray, /) -> tuple[Tensor, Tensor]:
        """Return the inputs (batch, ...) and labels (batch,) of the images at the positions `index`."""
        ...


class Steps(Protocol):
    """The settings of SGD steps."""

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        ...

    @property
    def lr(self) -> float:
        """Return the rate of a step."""
        ...


def steps_on(
    model: nn.Module,
    images: Labelled,
    index: np.ndarray,
    parameters: Sequence[nn.Parameter],
    settings: Steps,
    key: Sequence[object],
) -> None:
    """Take SGD steps with some parameters of `model`, in place, each on all images at the positions `index`.

    The model is left in training mode. Parameters that need no gradient stay as they are; `key` names the draws of
    dropout.
    """
    import torch

    from ..nn.pixels import cross_entropies
    from ..nn.transfer import to_device

    device = next(model.parameters()).device
    optimiser = torch.optim.SGD([p for p in parameters if p.requires_grad], lr=settings.lr)
    model.train()
    with torch.enable_grad(), keyed(*key, device=device):
        for _ in range(settings.steps):
            x, y = (to_device(tensor, device) for tensor in images.batch(index))
            optimiser.zero_grad()
            cross_entropies(model(x), y).mean().backward()
            optimiser.step()
    model.zero_grad()


class Personalise(Frozen, allow_inf_nan=False):
    """SGD steps on labelled images of a site before it is predicted, as Per-FedAvg asks for.

    Every step takes the same images of the site, drawn once: `val`, an internal site's validation images and, where a
    site has none, as `test_excluded`; `test_excluded`, test images, which are then not scored; `test_included`, test
    images that are scored too, which leaks labels and is what UniFed describes. BN uses the batch's statistics in
    these steps and keeps its running ones (our decision).
    """

    source: Literal["val", "test_excluded", "test_included"] = Field("val", description="labelled images to adapt to")
    steps: int = Field(1, ge=1, description="SGD steps")
    batch_size: int = Field(32, ge=2, description="labelled images")
    lr: float = Field(0.01, gt=0, description="rate of the steps; for Per-FedAvg, as the alpha of training")
    seed: int = Field(0, ge=0, description="of the draw of images, the same for all runs")

    def adapt(self, model: nn.Module, test: Labelled, val: Labelled, site: str) -> np.ndarray:
        """Take the steps with all trainable parameters of `model`, in place, and leave it in training mode.

        Returns which test images (n,) must not be scored, since the model has seen their labels; none where
        `test_included` asks for the leak. Raises UserError for a site with a single image.
        """
        from ..nn.batchnorm import untracked

        images = val if self.source == "val" and len(val) else test
        index = stream(self.seed, "personalise", site).permutation(len(images))[: self.batch_size]
        if len(index) < 2:
            raise UserError(f"site {site!r}", f"has {len(index)} labelled images to adapt to", "leave personalise out")
        with untracked(model):
            steps_on(model, images, index, list(model.parameters()), self, (self.seed, "personalise", site, "dropout"))
        seen = np.zeros(len(test), dtype=bool)
        if images is test and self.source != "test_included":
            seen[index] = True
        return seen

    @property
    def title(self) -> str:
        """Return which images are used and how, in short words for a table."""
        settings = [f"steps {self.steps}", f"batch {self.batch_size}", f"lr {self.lr:g}", f"seed {self.seed}"]
        return ", ".join([self.source.replace("_", " "), *settings])

    def caveat(self, name: str) -> str:
        """Return the sentences that a report must say of an inference called `name` that takes these steps."""
        leak = ", which are not scored, so that its gain is not over the same images"
        if self.source == "test_included":
            leak = ", and these images are scored too: it has seen their answers"
        return (
            f"{name} first takes {counted(self.steps, 'gradient step')} on up to "
            f"{self.batch_size} labelled images of the site{leak}. It is not comparable with what needs no labels."
        )
