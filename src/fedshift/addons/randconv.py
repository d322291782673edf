"""RandConv: Xu et al., Robust and Generalizable Visual Representation Learning via Random Convolutions (2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from ..algorithms import Local, class_loss
from ..core.errors import UserError
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor


class RandConv(Addon):
    """Training images pass through a random convolution, and the network must agree on three such versions.

    A draw takes a kernel size k, weights from N(0, 1 / (k^2 C)) for C to C channels, no bias and a border of k // 2
    zeros. It is used for one batch. `mix` gives a RC(x) + (1 - a) x with a uniform in (0, 1). `image` gives RC(x), or
    the unchanged batch with probability p. Three independent draws on the batch give class probabilities p_0, p_1, p_2.
    With pbar their mean, at least 1e-7, the loss is the cross-entropy of the first plus `weight` times the mean of
    KL(p_j || pbar). In the paper, all draws start from the original batch. Its reference code feeds the batch of the
    first draw to the other two. The images are the network's input, after normalisation. With weight 0 there is one
    draw.

    A step takes three forward passes. Each pass moves BN's running statistics towards those of convolved images. Logged
    training loss and accuracy are those of the first draw. Nothing is added to the network, to the exchange or to the
    state, and nothing is done at test time. In a joint step (FedTAN) all clients share the draws.

    Defaults: `mix` with weight 10, kernel sizes and p as in the paper (weight 5 is its value for `image`). The variant
    and weight of TsmoBN's federated version are not known; `mix` is our decision.
    """

    paper = "Xu et al. 2021"
    weighs_classes = True
    variant: Literal["mix", "image"] = Field(
        "mix", description="mix the convolved image with the original, or replace it"
    )
    p: float = Field(0.5, ge=0, le=1, description="probability that `image` leaves a batch unchanged")
    kernel_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 3, 5, 7), min_length=1, description="odd kernel sizes, one of which is drawn"
    )
    weight: float = Field(10.0, ge=0, description="weight of the consistency loss over three draws (lambda)")

    @field_validator("kernel_sizes")
    @classmethod
    def _odd(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if even := [size for size in sizes if size % 2 == 0]:
            raise UserError("kernel_sizes", f"{even[0]} is even, and would change the size of images", "give odd sizes")
        return sizes

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.nn.functional import kl_div, log_softmax

        logits = [local.model(self._convolved(x)) for _ in range(3 if self.weight else 1)]
        loss = class_loss(local, logits[0], y)
        if not self.weight:
            return loss, logits[0]
        log_probabilities = [log_softmax(draw, 1) for draw in logits]
        mean = torch.stack([draw.exp() for draw in log_probabilities]).mean(0).clamp(min=1e-7).log()
        divergences = [kl_div(mean, draw, reduction="batchmean", log_target=True) for draw in log_probabilities]
        return loss + self.weight * torch.stack(divergences).mean(), logits[0]

    def _convolved(self, x: Tensor) -> Tensor:
        """Return a batch of images after one random convolution. Raises UserError for inputs that are not images."""
        import torch
        from torch.nn.functional import conv2d

        if x.dim() != 4:
            raise UserError("addon (randconv)", "the network's inputs are not images", "leave the add-on out")
        if self.variant == "image" and float(torch.rand(())) < self.p:
            return x
        k = self.kernel_sizes[int(torch.randint(len(self.kernel_sizes), ()))]
        channels = x.size(1)
        weight = torch.randn(channels, channels, k, k, dtype=x.dtype, device=x.device) / (k * k * channels) ** 0.5
        out = conv2d(x, weight, padding=k // 2)
        return out if self.variant == "image" else torch.lerp(x, out.to(x.dtype), float(torch.rand(())))
