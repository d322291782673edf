"""SAR: Niu et al. 2023, Towards Stable Test-Time Adaptation in Dynamic Wild World, section 4."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Predict, Site
from ._steps import Steps, copies, entropies, put_back

if TYPE_CHECKING:
    from torch import Tensor, nn


class SAR(Steps):
    """Gradient steps towards a low and flat entropy of reliable images, with a reset when the entropy gets too low.

    1. Of a batch, the images with entropy H < E0 = `threshold` ln K count, for K classes; g is the gradient of their
       mean H.
    2. At theta + rho g / |g|, the images that counted and still have H < E0 give a second mean L and its gradient,
       with which the optimiser steps from theta. |g| is the norm over all adapted parameters.
    3. e <- 0.9 e + 0.1 L, from the first L. Where e < `reset` ln K, parameters, optimiser and e begin again.

    A batch without such images takes no step (our decision: the authors' code then moves by momentum alone). The logits
    returned are those from before the step.

    The published constants are for 1,000 classes: E0 = 0.4 ln K, and 0.2 for e, which is 0.029 ln K. Both scale with ln
    K here (our decision). With 0.2 as it stands, two classes would be reset at nearly every batch, and SAR would be
    batch statistics without steps. The authors' code goes on with the old e after a reset, and keeps the momentum of
    its optimiser; here both begin again.

    The images that were seen and that gave a step, the steps, and the resets are counted at each site, and reports show
    them.

    All batch-norm layers are adapted, while the authors leave out those of the last stage. Optimiser and rate are
    TENT's, scaled to batches of 32 (our decision); the authors take sgd with momentum 0.9.
    """

    threshold: float = Field(0.4, gt=0, description="largest entropy of an image that counts, as a share of ln K")
    rho: float = Field(0.05, ge=0, description="distance from the parameters at which the second gradient is taken")
    reset: float = Field(
        0.2 / math.log(1000), ge=0, description="share of ln K below which the mean entropy starts the steps again"
    )

    def stepping(self, model: nn.Module, parameters: list[nn.Parameter], site: Site) -> Predict:
        import torch

        trained = copies(parameters)
        optimiser = self.new_optimiser(parameters)
        mean = math.nan

        def predict(x: Tensor) -> Tensor:
            nonlocal optimiser, mean
            logits = model(x)
            h = entropies(logits)
            log_k = math.log(logits.size(1))
            counts = h.detach() < self.threshold * log_k
            site.counts.update(seen=len(h), kept=0, steps=0, resets=0)
            if not counts.any():
                return logits.detach()
            gradients = torch.autograd.grad(h[counts].mean(), parameters)
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm() + 1e-12
            here = copies(parameters)
            put_back(parameters, [value + self.rho * g / norm for value, g in zip(here, gradients, strict=True)])
            nearby = entropies(model(x))
            chosen = nearby[counts & (nearby.detach() < self.threshold * log_k)]
            optimiser.zero_grad()
            if len(chosen):
                chosen.mean().backward()
            # The optimiser steps from theta, with the gradient of the perturbed point.
            put_back(parameters, here)
            if not len(chosen):
                return logits.detach()
            optimiser.step()
            site.counts.update(kept=len(chosen), steps=1)
            low = float(chosen.detach().mean())
            mean = low if math.isnan(mean) else 0.9 * mean + 0.1 * low
            if mean < self.reset * log_k:
                put_back(parameters, trained)
                optimiser = self.new_optimiser(parameters)
                mean = math.nan
                site.counts.update(resets=1)
            return logits.detach()

        return predict

    def hint(self, classes: int) -> str:
        """Return a warning if resets undo nearly all steps with this number of classes; otherwise ''."""
        if self.reset < self.threshold / 2:
            return ""
        low, high = (share * math.log(classes) for share in (self.reset, self.threshold))
        return (
            f"reset {self.reset:.3g} undoes nearly all steps: with {classes} classes images count below "
            f"an entropy of {high:.3f}, and their mean is hardly ever above {low:.3f}"
        )
