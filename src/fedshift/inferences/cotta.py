"""CoTTA: Wang et al. 2022, Continual Test-Time Domain Adaptation, section 3."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ..core.rng import torch_stream
from ._base import Predict, Site
from ._steps import Steps, copies

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class CoTTA(Steps):
    """A teacher that follows a student slowly, and whose predictions the student learns.

    Student, teacher and anchor begin as the trained network; the anchor stays so. All three normalise by the batch's
    own statistics. For each batch x:

    1. c is the mean over images of the anchor's largest probability. The teacher's answer t is its logits on x if
       c >= `sure`, and otherwise the mean of its logits on `augmentations` random changes of x.
    2. A step of the optimiser moves all parameters of the student towards a low mean of
       -sum_k softmax(t)_k ln softmax(student(x))_k. The teacher has no gradient.
    3. teacher <- `teacher` teacher + (1 - `teacher`) student, for all parameters.
    4. Each element of the student's parameters returns to the trained value with probability `restore`.

    The answer is t, from before the step. A site is one pass, and everything begins again at the next. A batch takes
    `augmentations` + 2 passes of the network where the anchor is not sure, and 3 where it is.

    As long as the anchor is sure, the student equals the teacher, and the gradient of step 2 is 0 but for rounding. The
    answers are then those of batch statistics if the optimiser leaves so small a gradient small. SGD does; Adam, the
    default as published, divides it by its own size, and answers differ by 2e-4 after 100 batches. The images seen and
    those that were augmented are counted at each site, and reports show them.

    The augmentations change colours, angle, place, scale and sharpness, flip and add noise, with the ranges of the
    authors' code, which acts on grey levels 0..1. Here the values of black and white after the run's transforms are
    known, and the input is scaled to 0..1 by them, augmented, and scaled back. For runs with nonlinear transforms of
    grey levels this is an approximation (our decision). A `Federation` of tensors takes the range of its inputs. Flips
    are from left to right only, as published. Images of one or two channels keep their hue and saturation. Vectors
    cannot be augmented: set `sure: 0`.

    Deviations: dropout is off, where the authors train with it, and what draws is seeded by `seed` at every site. The
    mean is over logits, not over probabilities as in the paper's equation 2, and elements are restored after the
    teacher has moved, both as in the authors' code. Defaults are those of CIFAR-10-C, where the rate is 0.001 for
    batches of 200 images; here it is scaled to batches of 32 (our decision). For CIFAR-100-C the authors take `sure`
    0.72, and for ImageNet-C 0.1: it is compared with a probability, whose least value is 1 / K for K classes, so a
    value that suits ten classes means another thing for two.
    """

    sure: float = Field(0.92, ge=0, le=1, description="mean probability of the anchor from which x is not augmented")
    augmentations: int = Field(32, ge=1, description="changed copies of a batch that are averaged over")
    teacher: float = Field(0.999, ge=0, le=1, description="weight of the teacher's history")
    restore: float = Field(0.01, ge=0, le=1, description="probability that an element returns to its trained value")
    seed: int = Field(0, ge=0, description="seed of the augmentations and of the elements that return")

    def adapted(self, model: nn.Module) -> list[nn.Parameter]:
        return list(model.parameters())

    @contextmanager
    def on_site(self, model: nn.Module, batches: Site) -> Iterator[Predict]:
        from ..nn.batchnorm import batch_norm_by, by_batch
        from ..nn.features import Pixelwise

        if self.sure > 0 and isinstance(model, Pixelwise):
            problem = "averages over images that it moves, and the outlines on these would not fit"
            raise UserError(self.name, problem, "set sure: 0, which leaves these images out")
        parameters = self.alone(model)
        teacher, anchor = (copy.deepcopy(model).requires_grad_(False) for _ in range(2))
        with batch_norm_by(model, by_batch), batch_norm_by(teacher, by_batch), batch_norm_by(anchor, by_batch):
            yield self._following(model, teacher, anchor, parameters, batches) if parameters else model

    def _following(
        self, student: nn.Module, teacher: nn.Module, anchor: nn.Module, parameters: list[nn.Parameter], site: Site
    ) -> Predict:
        """Return the function from a batch to the teacher's logits that also takes the student's step."""
        import torch

        optimiser = self.new_optimiser(parameters)
        trained = copies(parameters)
        followers = list(teacher.parameters())
        draws = torch_stream(self.seed, "cotta")

        def predict(x: Tensor) -> Tensor:
            with torch.no_grad():
                sure = float(anchor(x).softmax(1).amax(1).mean())
                site.counts.update(seen=len(x), augmented=0 if sure >= self.sure else len(x))
                answer = teacher(x) if sure >= self.sure else self._averaged(teacher, x, site, draws)
            optimiser.zero_grad()
            (-(answer.softmax(1) * student(x).log_softmax(1)).sum(1).mean()).backward()
            optimiser.step()
            with torch.no_grad():
                # The teacher moves first and elements return then, as in the authors' code.
                for p, before, follower in zip(parameters, trained, followers, strict=True):
                    follower.mul_(self.teacher).add_((1 - self.teacher) * p)
                    returns = torch.rand(p.shape, generator=draws).to(p.device) < self.restore
                    p.copy_(torch.where(returns, before, p))
            return answer

        return predict

    def _averaged(self, teacher: nn.Module, x: Tensor, site: Site, draws: torch.Generator) -> Tensor:
        """Return the mean of the teacher's logits (batch, classes) on augmentations of a batch."""
        import torch

        from ._augment import augmented

        if x.dim() != 4 or site.greys is None:
            problem = "the anchor is not sure, and only images whose black and white are known can be augmented"
            raise UserError(self.name, problem, "set sure: 0, or choose another inference")
        black, white = (torch.tensor(grey, dtype=x.dtype, device=x.device).view(-1, 1, 1) for grey in site.greys)
        levels = (x - black) / (white - black)
        logits = [teacher(black + (white - black) * augmented(levels, draws)) for _ in range(self.augmentations)]
        return torch.stack(logits).mean(0)
