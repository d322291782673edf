"""Batch norm with the statistics of the averaged network itself, over the training images of all internal sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..core.errors import UserError
from ..nn.policies import POLICIES
from ._base import Inference, Predict, Site

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.nn.modules.batchnorm import _BatchNorm


class Recomputed(Inference):
    """Batch norm with the mean and variance of each layer's inputs in the averaged network, over all training images.

    The running statistics that the server averages belong to no network: clients collected them in different networks,
    batch by batch, along their local steps, and the mean of their variances leaves out how far their means are apart.
    Here the sites measure them anew after the training, in the averaged network, on their training images, each once,
    without augmentation or dropout. The images of the tested sites play no part, so this is no adaptation: it is what
    a method such as TsmoBN has to beat at a hospital that took no part. In centralised training it is known as
    PreciseBN (Wu and Johnson 2021, Rethinking "Batch" in BatchNorm). Every site is predicted with the averaged network,
    also where a part of it stays at the sites.

    With p_i the weight of site i in the averages of the training, m_i the mean of a channel there and v_i its biased
    variance, M = sum p_i m_i and V = sum p_i (v_i + m_i^2) - M^2. With `weights: size` that is the mean and the biased
    variance of all images together; with `weights: uniform` sites count alike.

    It is exact, and needs no choice of a batch: the layers are measured one by one, in the order in which the network
    uses them, each behind layers that have their pooled statistics already. (Measuring all of them at once, in sweeps,
    is wrong in all layers but the first, and further off in deep ones before it is right; one pass by batches depends
    on the batches.) The price is one pass without gradients for each of the L layers, which ends at the layer: about
    L / 2 whole passes, or L / 6 epochs of training. Each site sends 2 floats a channel in L messages, and receives as
    many, once; the column `asked` of collapse.csv counts them. A layer that is used twice has statistics of each use.
    Without batch norm it is `source`.
    """

    adapts = False
    batches_matter = False
    asks: ClassVar[bool] = True
    asks_by_layer: ClassVar[bool] = True
    network: Literal["global"] = Field(
        "global", description="every site is predicted with the averaged network, to which the statistics belong"
    )
    batch_size: int = Field(256, ge=1, description="images a batch; no effect on the result")

    @model_validator(mode="after")
    def _network_stays(self) -> Recomputed:
        if self.personalise:
            problem = "changes the network, and recomputed statistics are those of the averaged one"
            raise UserError("personalise", problem, "drop personalise")
        return self

    def require_policy(self, bn: str, norms: Sequence[str], where: str) -> None:
        """Raise UserError, located at `where`, for a policy `bn` under which running statistics stay at the clients.

        `norms` are the types of normalisation layers that the policy is about.
        """
        if "batch" in norms and not POLICIES[bn].statistics:
            problem = f"{self.name} has no meaning with bn {bn!r}: the server averages no running statistics"
            raise UserError(where, problem, "give this policy its own inferences")

    def score_columns(self) -> dict[str, Any]:
        return {"momentum": None, "batch_size": None, "order": None}

    def at_client(self, model: nn.Module, batches: Site) -> Tensor:
        """Return mean and mean square, (2 channels,), float64, of the inputs of the first layer without statistics.

        They are those of all training images of the site. `batches.answer` has the statistics of earlier layers; where
        every layer has its own, the vector is empty.
        """
        import torch
        from torch import Tensor

        from ..nn.batchnorm import moments
        from ..nn.device import in_float64

        sums, values = list[Tensor](), 0
        for x in batches():
            reached = _Layers(batches.answer).next_input(model, x)
            if reached is None:
                break
            mean, var = map(in_float64, moments(reached))
            n = reached.numel() // len(mean)
            sums.append(n * torch.cat([mean, var + mean**2]))
            values += n
        return torch.stack(sums).sum(0) / values if sums else torch.zeros(0)

    @contextmanager
    def on_site(self, model: nn.Module, batches: Site) -> Iterator[Predict]:
        """Yield the network with the internal sites' pooled statistics. Raises UserError where they are unknown."""
        if batches.answer is None:
            problem = "needs statistics of the internal sites' training images, and they are not known here"
            raise UserError(self.name, problem, "choose source, which needs none")
        layers = _Layers(batches.answer)
        with layers.inside(model):
            yield partial(layers.through, model)


class _Reached(Exception):  # noqa: N818 - it ends a pass that has gone far enough
    """Raised to end a forward pass at the first layer without statistics, whose input (batch, channels, ...) is `x`."""

    def __init__(self, x: Tensor) -> None:
        super().__init__("a layer without statistics")
        self.x = x


class _Layers:
    """The batch-norm layers of a network, in the order in which a pass uses them, with pooled statistics.

    `answer` holds the mean and the mean square, one value a channel, of the first layer, then of the second, and so on.
    """

    def __init__(self, answer: Tensor | None) -> None:
        import torch

        self.answer = torch.zeros(0) if answer is None else answer
        self.used = 0

    def inside(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context manager in which the batch-norm layers of `model` normalise with the pooled statistics."""
        from ..nn.batchnorm import batch_norm_by

        return batch_norm_by(model, lambda layer, _: partial(self._normalise, layer))

    def through(self, model: nn.Module, x: Tensor) -> Tensor:
        """Return the logits of `model` for a batch `x`, counting its batch-norm layers from the first."""
        self.used = 0
        out: Tensor = model(x)
        return out

    def next_input(self, model: nn.Module, x: Tensor) -> Tensor | None:
        """Return the input of the first layer without statistics in a pass of a batch `x`.

        Return None if every layer has statistics.
        """
        try:
            with self.inside(model):
                self.through(model, x)
        except _Reached as reached:
            return reached.x
        return None

    def _normalise(self, layer: _BatchNorm, x: Tensor) -> Tensor:
        """Normalise a batch by the next layer's pooled statistics. Raises _Reached if there are no more."""
        from ..nn.batchnorm import normalise

        begin, self.used = self.used, self.used + 2 * x.shape[1]
        if begin == len(self.answer):
            raise _Reached(x)
        mean, square = self.answer[begin : self.used].chunk(2)
        # In float64, where rounding leaves no negative variance that matters.
        var = (square - mean**2).clamp(min=0)
        return normalise(layer, x, mean.to(x), var.to(x))
