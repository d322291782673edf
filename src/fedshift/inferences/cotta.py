"""CoTTA: Wang et al. 2022, Continual Test-Time Domain Adaptation, section 3."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
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

BRIGHTNESS = (0.6, 1.4)
CONTRAST = (0.7, 1.3)
GAMMA = (0.7, 1.3)
SATURATION, HUE = (0.5, 1.5), (-0.06, 0.06)
DEGREES = 15.0
SHIFT = 1 / 8
SCALE = (0.9, 1.1)
BLUR, NOISE = (0.001, 0.5), 0.005
"""Ranges of the augmentations, as the authors of CoTTA choose them: factors of brightness, contrast, gamma and
saturation; hue as a part of a turn; degrees; shift and scale as shares of the image; blur and noise as standard
deviations, blur in pixels. Their shift is 1/16 of an image that they have padded to twice its side."""
REACH = 2
"""Pixels on each side of a pixel that a blur of five pixels averages over: the border is padded by as many."""


class CoTTA(Steps):
    """Adaptation by a teacher network, which is a slow average of a student that learns the teacher's predictions.

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

    sure: float = Field(
        0.92, ge=0, le=1, description="mean probability of the anchor from which a batch is not augmented"
    )
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
            problem = "averages predictions over shifted images, and outlines on them would not fit"
            raise UserError(self.name, problem, "set sure: 0, which leaves these images out")
        parameters = self.alone(model)
        teacher, anchor = (copy.deepcopy(model).requires_grad_(False) for _ in range(2))
        with batch_norm_by(model, by_batch), batch_norm_by(teacher, by_batch), batch_norm_by(anchor, by_batch):
            yield self._following(model, teacher, anchor, parameters, batches) if parameters else model

    def _following(
        self, student: nn.Module, teacher: nn.Module, anchor: nn.Module, parameters: list[nn.Parameter], site: Site
    ) -> Predict:
        """Return the function from a batch to the teacher's logits that also takes the student's gradient step.

        `parameters` are the student's; `anchor` is the trained network, which never changes.
        """
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
        """Return the mean of the teacher's logits (batch, classes) over random augmentations of a batch `x`.

        `draws` is the generator of the augmentations. Raises UserError for inputs that are no images, or whose grey
        levels for black and white are unknown.
        """
        import torch

        if x.dim() != 4 or site.greys is None:
            problem = (
                "the trained network is not sure, and only images whose black and white are known can be augmented"
            )
            raise UserError(self.name, problem, "set sure: 0, or choose another inference")
        black, white = (torch.tensor(grey, dtype=x.dtype, device=x.device).view(-1, 1, 1) for grey in site.greys)
        levels = (x - black) / (white - black)
        logits = [teacher(black + (white - black) * augmented(levels, draws)) for _ in range(self.augmentations)]
        return torch.stack(logits).mean(0)


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a batch (batch, channels, height, width) of grey levels 0..1, changed by one draw for all of its images.

    In this order: colours (brightness, contrast, gamma and, of three channels, saturation and hue, in random order);
    rotation, shift and scale, bilinear, with the border's values outside; a blur of five pixels; a flip from left to
    right with probability 1/2; noise, drawn for each pixel. Levels are kept within 0..1 at both ends.
    """
    import torch
    import torchvision.transforms.v2.functional as change
    from torch.nn.functional import pad

    def between(bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * float(torch.rand((), generator=generator))

    x = x.clamp(0, 1)
    brightness = between(BRIGHTNESS)
    contrast = between(CONTRAST)
    gamma = between(GAMMA)
    changes: list[Callable[[Tensor], Tensor]] = [
        lambda x: (brightness * x).clamp(0, 1),
        lambda x: contrasted(x, contrast),
        lambda x: x.clamp(1e-8, 1) ** gamma,
    ]
    if x.shape[1] == 3:
        saturation = between(SATURATION)
        hue = between(HUE)
        changes += [lambda x: change.adjust_saturation(x, saturation), lambda x: change.adjust_hue(x, hue)]
    for k in torch.randperm(len(changes), generator=generator).tolist():
        x = changes[k](x)
    angle = between((-DEGREES, DEGREES))
    scale = between(SCALE)
    right = between((-SHIFT, SHIFT)) * x.shape[3]
    down = between((-SHIFT, SHIFT)) * x.shape[2]
    # The authors blur a larger image and cut it afterwards: pixels that have moved beyond the border count.
    x = pad(x, [REACH] * 4, mode="replicate")
    x = moved(x, angle, scale, (right / x.shape[3], down / x.shape[2]))
    x = change.gaussian_blur(x, [2 * REACH + 1] * 2, [between(BLUR)] * 2)
    x = x[..., REACH:-REACH, REACH:-REACH]
    if between((0, 1)) < 0.5:
        x = x.flip(3)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return (x + NOISE * noise).clamp(0, 1)


def contrasted(x: Tensor, factor: float) -> Tensor:
    """Return images whose distance from their mean grey level is scaled by `factor`, within 0..1.

    The grey level of a colour image has the weights of the ITU (red 0.299, green 0.587, blue 0.114).
    """
    import torchvision.transforms.v2.functional as change

    grey = change.rgb_to_grayscale(x) if x.shape[1] == 3 else x.mean(1, keepdim=True)
    mean = grey.mean((1, 2, 3), keepdim=True)
    return (mean + factor * (x - mean)).clamp(0, 1)


def moved(x: Tensor, degrees: float, scale: float, shift: tuple[float, float]) -> Tensor:
    """Return images (batch, channels, height, width) that are turned and scaled about their middle, then shifted.

    `shift` is a share of the width and one of the height.
    """
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    height, width = x.shape[2:]
    angle = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    cos, sin = float(angle.cos()) / scale, float(angle.sin()) / scale
    # From output to input, in coordinates that go from -1 to 1 along either side.
    turn = torch.tensor([[cos, -sin * height / width], [sin * width / height, cos]], dtype=x.dtype, device=x.device)
    offset = -turn @ torch.tensor([[2 * shift[0]], [2 * shift[1]]], dtype=x.dtype, device=x.device)
    grid = affine_grid(torch.cat([turn, offset], 1).expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
