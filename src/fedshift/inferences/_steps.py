"""The base of inferences that take steps on gamma and beta of batch norm for each test batch, and their entropy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ._base import ORDERED, Inference, Predict, Site

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Steps(Inference):
    """Gradient steps on gamma and beta of all batch-norm layers, which normalise by each test batch's own statistics.

    The gradient flows through the batch's mean and biased variance. All other layers are in evaluation mode, without
    dropout. A site is one pass: parameters and optimiser go on from batch to batch, and begin again at the next site.
    Nothing is sent, and no label is read. A network without batch norm is predicted as it is. One whose batch norm has
    no gamma and beta is predicted with the batch's statistics.

    A method overrides `stepping`, and `adapted` if it moves other tensors.
    """

    gradients: ClassVar[bool] = True
    order: int | None = ORDERED
    optimiser: Literal["adam", "sgd"] = Field("adam", description="which optimiser takes the steps")
    lr: float = Field(0.00016, ge=0, description="learning rate of the steps; 0 uses the batch's statistics alone")
    beta: float = Field(0.9, ge=0, lt=1, description="weight of history: Adam's beta1, or the momentum of sgd")

    def stepping(self, model: nn.Module, parameters: list[nn.Parameter], site: Site) -> Predict:
        """Return the function from a batch to its logits that also takes a gradient step on `parameters`.

        `model` normalises by the batch's statistics. The function is made anew for each site, so that its variables are
        the state of the site.
        """
        raise NotImplementedError

    def adapted(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that the steps move; by default gamma and beta of all batch-norm layers."""
        from ..nn.batchnorm import affine_parameters

        return affine_parameters(model)

    @contextmanager
    def on_site(self, model: nn.Module, batches: Site) -> Iterator[Predict]:
        """Yield the network with batch statistics, which takes gradient steps on each batch that it predicts."""
        from ..nn.batchnorm import batch_norm_by, by_batch

        # An empty list is refused by torch's optimisers: such a network is predicted as it is.
        parameters = self.alone(model)
        with batch_norm_by(model, by_batch):
            yield self.stepping(model, parameters, batches) if parameters else model

    def alone(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that the steps move, and turn off gradients of all other parameters of the model."""
        parameters = self.adapted(model)
        model.requires_grad_(False)
        for parameter in parameters:
            parameter.requires_grad_(True)
        return parameters

    def new_optimiser(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Return a new optimiser of the parameters: Adam or SGD, as the settings say, without history."""
        from torch.optim import SGD, Adam

        if self.optimiser == "adam":
            return Adam(parameters, lr=self.lr, betas=(self.beta, 0.999))
        return SGD(parameters, lr=self.lr, momentum=self.beta)


def entropies(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits) in nats, (batch,), from logits (batch, classes)."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def copies(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return copies of parameters, without gradients."""
    return [parameter.detach().clone() for parameter in parameters]


def put_back(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Set parameters in place to `values`, such as the copies that `copies` returned."""
    import torch

    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
