"""ETA: Niu et al. 2022, Efficient Test-Time Model Adaptation without Forgetting, sections 3.1 and 3.2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import Field

from ..core.console import say
from ._base import Predict, Site
from ._steps import Steps, entropies

if TYPE_CHECKING:
    from torch import Tensor, nn

PUBLISHED = 0.4
"""The largest cosine with earlier predictions that the authors use for ten classes."""


class ETA(Steps):
    """Gradient steps that lower the entropy of images whose predictions are reliable and unlike earlier ones.

    An image with prediction p and entropy H(p) counts if H(p) < E0 = `threshold` ln K for K classes, and if |cos(p, q)|
    < `similarity`, where q is the moving average of the predictions that counted so far. In the first batch with a
    reliable image there is no q, and the second condition holds for all. The step lowers the mean of exp(E0 - H(p))
    H(p) over the images that count; the weight has no gradient. Afterwards q <- 0.9 q + 0.1 mean(p), over these images.
    A batch in which none counts takes no step. The logits returned are those from before the step.

    Predictions are not negative, so no cosine with an even q is less than 1 / sqrt(K). A smaller `similarity` switches
    the method off after its first batch, and a line says so. The published values are 0.05 for 1,000 classes, and 0.4
    for ten. The default is 0.4 where 0.4 is more than 1 / sqrt(K), and otherwise no such condition (our decision). The
    images that were seen and that counted, and the steps, are counted at each site, and reports show them.

    EATA also pulls the parameters to those of training by their Fisher information, which needs images of the training
    sites: ETA is EATA without it (see `eata`). Optimiser and rate are TENT's, scaled to batches of 32 (our decision).
    """

    threshold: float = Field(0.4, gt=0, description="largest entropy of an image that counts, as a share of ln K")
    similarity: float | None = Field(
        None,
        gt=0,
        le=1,
        description="largest cosine with earlier predictions of an image that counts; 1 is no condition; default: 0.4, "
        "or 1 for six classes and fewer",
    )

    def stepping(self, model: nn.Module, parameters: list[nn.Parameter], site: Site) -> Predict:
        from torch.nn.functional import cosine_similarity

        optimiser = self.new_optimiser(parameters)
        penalty = self._penalty(parameters, site)
        q: Tensor | None = None

        def predict(x: Tensor) -> Tensor:
            nonlocal q
            logits = model(x)
            h = entropies(logits)
            p = logits.detach().softmax(1)
            limit = self.threshold * math.log(logits.size(1))
            counts = h.detach() < limit
            largest = self._largest_cosine(logits.size(1), warn=q is None)
            if q is not None and largest < 1:
                counts &= cosine_similarity(p, q[None]).abs() < largest
            chosen = h[counts]
            site.counts.update(seen=len(h), kept=len(chosen), steps=int(len(chosen) > 0))
            if not len(chosen):
                return logits.detach()
            optimiser.zero_grad()
            (((limit - chosen.detach()).exp() * chosen).mean() + penalty()).backward()
            optimiser.step()
            # After the step, and over the images that counted alone.
            mean = p[counts].mean(0)
            q = mean if q is None else 0.9 * q + 0.1 * mean
            return logits.detach()

        return predict

    def _penalty(self, parameters: list[nn.Parameter], site: Site) -> Callable[[], Tensor | float]:
        """Return the function that computes what is added to the loss of each step: 0 for ETA, more for EATA."""
        return lambda: 0.0

    def _largest_cosine(self, classes: int, warn: bool = False) -> float:
        """Return the bound below which an image's cosine with earlier predictions must lie; 1 is no bound.

        `classes` is the number of classes. With `warn`, print a warning if hardly any image passes.
        """
        if self.similarity is None:
            return PUBLISHED if 1 / math.sqrt(classes) < PUBLISHED else 1.0
        if warn and (hint := self.hint(classes)):
            say(f"{self.name}: {hint}")
        return self.similarity

    def hint(self, classes: int) -> str:
        """Return a warning if `similarity` lets hardly any image pass with this number of classes; otherwise ''."""
        least = 1 / math.sqrt(classes)
        if self.similarity is None or self.similarity > least:
            return ""
        return (
            f"similarity {self.similarity:g} lets hardly any image pass: with {classes} classes no cosine "
            f"with an even mean is below {least:.3f}"
        )
