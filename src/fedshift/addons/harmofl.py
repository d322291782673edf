"""HarmoFL: Jiang, Wang and Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning (2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..algorithms import Local, task_loss
from ..core.errors import UserError
from ._base import Addon

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

KNOWN = "harmofl amplitudes are known"


class HarmoFL(Addon):
    """All images get the same amplitudes of low frequencies, the mean of the clients', and keep their own phases.

    In round 1 each client harmonises its images to the running mean of its amplitudes: that of the first batch, then
    moved by `momentum` towards that of each batch. The server averages these with the running statistics of batch norm.
    From round 2 on they are fixed. They are part of the network and act at test time too, at external sites with the
    same values. Where the BN policy keeps running statistics at home, each client keeps its own amplitudes.

    With `half_width` 0 only the sum of the pixels is exchanged: each channel of an image is shifted to a common mean.
    This is what the released code does. The paper exchanges all amplitudes; more frequencies come closer to it (our
    decision: a window, so that nothing depends on the size of images). Images are the network's inputs. They should not
    be negative: leave `normalize` out of the transforms, since the sign of a mean counts as its phase.

    Down and up: (2 half_width + 1)^2 floats for each channel of the images, with the running statistics. The paper also
    perturbs weights in each step: this is the algorithm fedsam with rho 0.05. Its networks normalise by the batch at
    test time; see `tsmobn` with momentum 0. Default of the momentum: 0.1, as in the paper; the released
    code takes it as a whole number, which makes it 0: amplitudes are then those of the first batch.
    """

    paper = "Jiang et al. 2022"
    weighs_classes = True
    half_width: int = Field(
        0, ge=0, description="highest frequency along a side of the images that is harmonised; 0 is the mean alone"
    )
    momentum: float = Field(0.1, ge=0, le=1, description="weight of a batch in the running mean of amplitudes")

    def extend(self, model: nn.Module) -> nn.Module:
        import copy

        from torch import nn

        first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
        if first is None:
            raise UserError("addon (harmofl)", "the network takes no images", "leave the add-on out")
        model = copy.deepcopy(model)
        size = 2 * self.half_width + 1
        model.register_buffer("harmofl_amplitude", first.weight.detach().new_zeros(first.in_channels, size, size))
        model.register_forward_pre_hook(_harmonised(self.half_width))
        return model

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ._spectrum import amplitudes

        reference: Any = local.model.harmofl_amplitude.data
        unknown = KNOWN not in local.scratch and not reference.any()
        if not unknown:
            # Asked once a turn, since the answer has to come from the device.
            local.scratch[KNOWN] = reference
        if local.round == 1 or unknown:
            mean = amplitudes(x, self.half_width).mean(0).to(reference.dtype)
            first = unknown or (local.round == 1 and local.steps == 0)
            reference.lerp_(mean, 1.0 if first else self.momentum)
        return task_loss(local, x, y)


def _harmonised(half_width: int) -> Callable[[Any, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """Return a hook that replaces the low-frequency amplitudes of a network's images by those stored in the network."""

    def hook(model: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        from ._spectrum import exchanged

        return exchanged(inputs[0], model.harmofl_amplitude.to(inputs[0].dtype), half_width), *inputs[1:]

    return hook
