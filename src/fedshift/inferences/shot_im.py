"""SHOT-IM: Liang et al. 2020, Do We Really Need to Access the Source Data?, section 3.2, in its online form."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ._base import Predict, Site
from ._steps import Steps, entropies

if TYPE_CHECKING:
    from torch import Tensor, nn


class ShotIM(Steps):
    """Gradient steps towards predictions that are sure for each image and spread over the classes of a batch.

    For a batch with p = softmax(z) and its mean q over images, a step lowers L = mean H(p) - diversity H(q), where H is
    the entropy in nats. L lies between -ln K and 0 for diversity 1 and K classes. The classifier, the last linear
    layer, stays as it is. The logits returned are those from before the step.

    The second term pulls towards equal numbers of images of each class. At a site whose classes are balanced, such as a
    centre of Camelyon17, that is knowledge of the labels' distribution: say so beside the results. A batch of one image
    has L = 0 and takes no step.

    Deviations: the original adapts offline over 15 epochs, with pseudo-labels in the full method, and in training mode.
    Here a site is one pass, every batch-norm layer uses the batch's statistics, and `parameters` says what moves: gamma
    and beta (`bn`, our decision), or all but the classifier (`features`). Optimiser and rate are TENT's, scaled to
    batches of 32 (our decision). The rate must not be chosen by labels of the tested sites.
    """

    display_name = "SHOT-IM"
    diversity: float = Field(1.0, ge=0, description="weight of the entropy of the batch's mean prediction")
    parameters: Literal["bn", "features"] = Field(
        "bn", description="what the steps move: gamma and beta of batch norm, or all but the last linear layer"
    )

    def adapted(self, model: nn.Module) -> list[nn.Parameter]:
        from ..nn.features import head

        if self.parameters == "bn":
            return super().adapted(model)
        frozen = {id(parameter) for parameter in head(model).parameters()}
        return [parameter for parameter in model.parameters() if id(parameter) not in frozen]

    def stepping(self, model: nn.Module, parameters: list[nn.Parameter], site: Site) -> Predict:
        optimiser = self.new_optimiser(parameters)

        def predict(x: Tensor) -> Tensor:
            logits = model(x)
            log_mean = logits.log_softmax(1).logsumexp(0) - math.log(len(x))
            loss = entropies(logits).mean() - self.diversity * entropies(log_mean[None]).squeeze()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            return logits.detach()

        return predict
