"""FedFA: Zhou and Konukoglu, FedFA: Federated Feature Augmentation (2023)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ..algorithms import Local, task_loss
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ._places import Place

MOMENTUM = 0.99
"""Weight of the old value in the running moments of styles."""
STYLE = ("mean", "std")


class FedFA(Addon):
    """The style of each image is drawn from a Gaussian, which is wider in channels in which clients differ.

    A style is the mean u and the standard deviation s of each channel of an image. At each place, with probability p a
    step, x becomes s' (x - u) / s + u', with u' from N(u, (gamma_u + 1) V_u) and s' from N(s, (gamma_s + 1) V_s). V_u
    and V_s are the variances of u and s over the batch (unbiased, plus 1e-6). gamma has mean 1 over the C channels:
    gamma_u = C r / sum r, with r = G / (1 + G), where G is the variance of the running u between clients. Gradients
    flow through u, s and V.

    Running moments move by 0.01 towards the batch's in each pass of training; in the authors' code only in passes in
    which the place draws styles, as here with `moments: drawn`. They are averaged with the running statistics of batch
    norm: down and up 4 floats for each channel of a place, u, s and their squares, from whose means each client
    computes G. These are means by the clients' weights (our decision). Where the BN policy keeps running statistics at
    home, nothing is exchanged and gamma is 1. The released code has gamma 1 too, since it takes one variance over all
    clients and channels.

    The places are the first ones where maps become smaller: poolings, and the inputs of residual blocks with a stride;
    in networks without them, all ReLUs (our decision; the authors choose by hand, in AlexNet three poolings and two
    other layers). Nothing is done at test time. Default: p 0.5, as in the paper. With p 0 this is FedAvg.
    """

    paper = "Zhou et al. 2023"
    weighs_classes = True
    later_fields = frozenset({"moments"})
    p: float = Field(0.5, ge=0, le=1, description="probability that a place draws styles in a step")
    places: int = Field(5, ge=1, description="largest number of places, counted from the input")
    moments: Literal["always", "drawn"] = Field(
        "always", description="passes in which running moments move: all, or those in which the place draws styles"
    )

    def extend(self, model: nn.Module) -> nn.Module:
        import copy

        from ._places import places

        model = copy.deepcopy(model)
        floats = next(model.parameters())
        for place in places(model, self.places):
            for name in STYLE:
                place.module.register_buffer(f"fedfa_{name}", floats.new_zeros(place.channels))
                place.module.register_buffer(f"fedfa_{name}_square", floats.new_zeros(place.channels))
        return model

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ._places import changed, places

        at = places(local.model, self.places)
        for number, place in enumerate(at):
            for name in STYLE:
                key = f"fedfa {number} {name}"
                # Asked before the first pass of the turn: the moments are still those that the server sent.
                if key not in local.scratch:
                    local.scratch[key] = _gamma(place.module, name)
        with changed(at, functools.partial(self._drawn, local, at)):
            return task_loss(local, x, y)

    def _drawn(self, local: Local, at: Sequence[Place], number: int, x: Tensor) -> Tensor:
        """Return features (batch, channels, height, width) of place `number` with newly drawn styles, or unchanged.

        The place draws styles with probability p in each step.
        """
        import torch

        from ._places import EPSILON, styles

        if x.size(-1) * x.size(-2) == 1:
            return x
        style = dict(zip(STYLE, styles(x), strict=True))
        draws = float(torch.rand(())) < self.p
        if draws or self.moments == "always":
            for name, value in style.items():
                _move(at[number].module, name, value.detach())
        if not draws:
            return x
        new = []
        for name, value in style.items():
            width = (value.var(0, keepdim=True) + EPSILON) * (local.scratch[f"fedfa {number} {name}"] + 1)
            new.append(value + torch.randn_like(value) * width.sqrt())
        return ((x - style["mean"]) / style["std"] * new[1] + new[0]).to(x.dtype)


def _gamma(module: Any, name: str) -> Tensor:
    """Return gamma of each channel, (channels, 1, 1), with mean 1: its share of the variance between clients.

    `name` says of which moment of a style, mean or std.
    """
    mean, square = (getattr(module, f"fedfa_{name}{end}") for end in ("", "_square"))
    spread = (square - mean**2).clamp(min=0)
    r = spread / (1 + spread)
    total = r.sum()
    gamma = (r * len(r) / total).where(total > 0, 1.0)
    return gamma[:, None, None]


def _move(module: Any, name: str, value: Tensor) -> None:
    """Move a place's running moment towards a batch's values (batch, channels, 1, 1), and store its square.

    `name` says which moment of a style, mean or std.
    """
    # Through .data: the moments share a vector with running statistics, which a backward pass still needs.
    moment = getattr(module, f"fedfa_{name}").data
    moment.lerp_(value.mean((0, 2, 3)).to(moment.dtype), 1 - MOMENTUM)
    getattr(module, f"fedfa_{name}_square").data.copy_(moment**2)
