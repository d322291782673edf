"""EATA: Niu et al. 2022, Efficient Test-Time Model Adaptation without Forgetting, sections 3.1 to 3.3."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ..core.errors import UserError
from ._base import Site
from ._steps import copies
from .eta import ETA

if TYPE_CHECKING:
    from torch import Tensor, nn


class EATA(ETA):
    """ETA with a penalty that pulls gamma and beta back to training where these mattered to the internal sites.

    The step of ETA also lowers `fisher` sum_j F_j (theta_j - theta0_j)^2, over all gamma and beta of batch norm, with
    theta0 from the training. F is the diagonal of the Fisher information on images of the training sites: the mean over
    batches of the squared gradient of the batch's mean cross-entropy to the labels that the network itself predicts. No
    true label is read. The layers use the batch's statistics there too. The mean over a batch is squared, as in
    the authors' code, so F depends on `batch_size`.

    In a federation no site has images of another (our decision): after the training, every internal site computes its F
    on its own training images with the final network, and with its own batch norm where that stayed at home. The server
    averages them by the clients' weights. Each internal site sends one float for each gamma and beta, once, and the
    tested site receives as many with the model; reports count them. The tested site's images and labels play no part.
    Where each client trains alone nothing travels, and a site uses its own F.

    The published weight is 2,000 for ImageNet and 1 for CIFAR-10, which is the default. At the first step theta is
    theta0, and the term has no gradient: it acts from the second on. F does not clip, as in the authors' code.
    """

    asks: ClassVar[bool] = True
    fisher: float = Field(1.0, ge=0, description="weight of the pull towards the trained gamma and beta; 0 is ETA")
    images: int = Field(
        2000,
        ge=2,
        description="most training images of each internal site that give the Fisher information",
    )

    def at_client(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Tensor:
        """Return the Fisher diagonal F of one internal site, (n,): the mean over batches of the squared gradient.

        Each gradient is that of the batch's cross-entropy to predicted labels, by gamma and beta. At most `images`
        images are read, in whole batches.
        """
        import torch
        from torch.nn.functional import cross_entropy

        from ..nn.batchnorm import batch_norm_by, by_batch

        parameters = self.alone(model)
        squares = [torch.zeros_like(parameter) for parameter in parameters]
        number = 0
        with batch_norm_by(model, by_batch):
            for x in itertools.islice(batches(), max(1, self.images // self.batch_size) if parameters else 0):
                logits = model(x)
                # The labels are those that the network predicts: no true label is read.
                loss = cross_entropy(logits, logits.detach().argmax(1))
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
                for square, gradient in zip(squares, gradients, strict=True):
                    square += gradient.square()
                number += 1
        return torch.cat([square.flatten() / number for square in squares]) if squares else torch.zeros(0)

    def _penalty(self, parameters: list[nn.Parameter], site: Site) -> Callable[[], Tensor | float]:
        """Return the function that computes `fisher` sum_j F_j (theta_j - theta0_j)^2 for the present `parameters`.

        F is `site.answer`. Raises UserError if it is unknown.
        """
        if site.answer is None:
            problem = "needs the Fisher information of the internal sites, and it is not known here"
            raise UserError(self.name, problem, "choose eta, which needs none")
        trained = copies(parameters)
        parts = site.answer.split([parameter.numel() for parameter in parameters])
        weights = [self.fisher * part.to(p).view_as(p) for part, p in zip(parts, parameters, strict=True)]

        def penalty() -> Tensor | float:
            terms = zip(weights, parameters, trained, strict=True)
            return sum((weight * (p - before).square()).sum() for weight, p, before in terms)

        return penalty
