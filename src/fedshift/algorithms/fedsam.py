"""FedSAM and FedASAM: Caldarola et al., Improving Generalization in FL by Seeking Flat Minima (2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.rng import undisturbed
from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor


class FedSAM(Algorithm):
    """Sharpness-aware local steps: the gradient is taken at w + e, where e climbs the loss by a fixed length rho.

    w are the weights, and with g the gradient at w, e = rho g / (||g|| + 1e-16). The step is one of SGD from w;
    momentum, weight decay and clipping act on it as in FedAvg. `adaptive` makes it ASAM: e = rho T^2 g / (||T g|| +
    1e-16), where T is |w| + eta for tensors named weight, gamma of batch norm among them, and 1 for all others. There
    is one norm over all parameters that are trained at the client, including those that are not exchanged.

    Both passes take the same batch and the same dropout. Running statistics follow the first pass alone (our decision):
    the authors' code changes them in both, the second time at perturbed weights; FedFA's code changes them once. The
    authors also average the server's model over the last quarter of the rounds; this is left out.

    Server and clients exchange and keep the same tensors as in FedAvg. A step takes two passes. Defaults: rho 0.1, the
    authors' value for CIFAR-10. For `adaptive` theirs are rho 0.7 and eta 0.2. Qu et al. (2022) propose the same local
    step. With rho 0 this is FedAvg.
    """

    paper = "Caldarola et al. 2022"
    rho: float = Field(0.1, ge=0, description="length of the step that climbs the loss")
    adaptive: bool = Field(False, description="measure this length relative to the size of each weight (ASAM)")
    eta: float = Field(0.2, ge=0, description="constant added to the size of each weight, with `adaptive`")

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        if not self.rho:
            return self.backward(local, x, y)
        # Draws of this pass are taken back, so that the second pass has the same dropout.
        with undisturbed(local.all_grad.device):
            logits = self.backward(local, x, y)
        start = local.all_params.detach().clone()
        local.all_params.add_(self._climb(local))
        local.all_grad.zero_()
        with local.untracked():
            self.backward(local, x, y)
        local.all_params.copy_(start)
        return logits

    def _climb(self, local: Local) -> Tensor:
        """Return the step e from the current weights that climbs the loss. It leaves the gradient multiplied by T^2."""
        # T once for the norm of T g, and once more for the direction T^2 g.
        self._scale(local)
        length = local.all_grad.norm() + 1e-16
        self._scale(local)
        return local.all_grad * (self.rho / length)

    def _scale(self, local: Local) -> None:
        """Multiply the gradient by T in place: by |w| + eta for weights if `adaptive`, otherwise by 1."""
        if not self.adaptive:
            return
        for name, parameter in local.model.named_parameters():
            if "weight" in name.rpartition(".")[2] and parameter.grad is not None:
                parameter.grad.mul_(parameter.detach().abs() + self.eta)
