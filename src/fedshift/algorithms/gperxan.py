"""gPerXAN: Le et al., Efficiently Assemble Normalization Layers and Regularization for Federated DG (2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Local, class_loss

if TYPE_CHECKING:
    from torch import Tensor


class GPerXAN(Algorithm):
    """FedAvg with local batch norm and a guiding loss: the server's last layer must classify client features, too.

    The loss is the cross-entropy plus `guide` times the cross-entropy of a frozen head: the last layer as the client
    received it, applied to the same features, the inputs of the client's own last layer. So the guiding loss trains
    only the layers before the last one. Features are those of images after an add-on has changed them.

    It is meant for networks with `norm: mixture`, whose layers mix batch and instance norm: with local BN their batch
    part stays at the client, with its weight in the mixture, and the instance part is exchanged. External sites get the
    mean of what stays at the clients, as in the authors' code, where clients send everything. With `guide: 0` it is
    FedAvg.

    Server and clients exchange and keep the same tensors as in FedAvg. Default: `guide` 0.5, as in the authors' code.
    There SGD keeps its momentum across rounds (0.9; here each round begins anew), with rate 0.002 that falls as a
    cosine, weight decay 0.0005, batches of 32, and a ResNet-50 with ImageNet weights.
    """

    display_name = "gPerXAN"
    paper = "Le et al. 2024"
    policies = ("local", "aggregated", "local_statistics", "local_affine")
    guide: float = Field(0.5, ge=0, description="weight of the loss of the frozen head of the server")

    def begin(self, local: Local) -> None:
        import copy

        from ..nn.features import head

        # The head travels under every BN policy: before the first step it is the server's.
        local.networks["guide"] = copy.deepcopy(head(local.model)).requires_grad_(False)

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ..nn.features import head, inputs_of

        with inputs_of(head(local.model)) as features:
            loss, logits = super().loss(local, x, y)
        guided = local.networks["guide"](features[0])
        if guided.shape != logits.shape:
            problem = "enlarges the outputs of its last layer, which the guide of gperxan compares with labels"
            raise UserError("model", problem, "use a network whose last layer gives the logits, as unet")
        return loss + self.guide * class_loss(local, guided, y), logits
