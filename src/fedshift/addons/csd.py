"""CSD: Piratla et al., Efficient Domain Generalization via Common-Specific Low-Rank Decomposition (2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..algorithms import Local, class_loss
from ._base import Addon

if TYPE_CHECKING:
    from torch import Tensor, nn


class CSD(Addon):
    """The last linear layer is split into a common part, which answers at test time, and one specific to clients.

    With features h, the common logits are h W_0 + b_0. The logits of client d are tanh(a) (h W_0 + b_0) + tanh(e_d) (h
    W_1 + b_1): this is the paper's K = 2. The loss is the cross-entropy of the common logits, plus that of the client's
    logits, plus R. R is the mean over classes and over the 2 x 2 entries of (W_c W_c^T - I)^2, where the rows of W_c
    are the weights of class c in W_0 and W_1. The domain is the client. W_0 and b_0 are the network's own last layer,
    which is drawn again: W and b from N(0, 0.1), e from N(0, 0.0001), a from N(0.1, 0.0001). The second number is the
    standard deviation.

    e_d is one number. It never leaves its client, where it is kept from round to round: averaging a table with the
    values of all clients would divide each step by their number (our decision). Clients begin with the same e (our
    decision). The rest is averaged, which adds classes (features + 1) + 1 floats each way. With `pooled` there is one
    domain. Defaults: both weights are 1, as in the paper; the values of TsmoBN's federated version are not known.
    """

    tasks = ("classification",)
    paper = "Piratla et al. 2020"
    weighs_classes = True
    specific: float = Field(1.0, ge=0, description="weight of the cross-entropy of the client-specific logits")
    orthogonality: float = Field(
        1.0, ge=0, description="weight of the penalty R, which keeps the common and the specific part orthogonal"
    )

    def extend(self, model: nn.Module) -> nn.Module:
        import copy

        import torch
        from torch import nn

        from ..nn.features import classifier

        model = copy.deepcopy(model)
        # The tensors are added to the last layer, whose forward pass ignores them.
        last: Any = classifier(model)
        last.specific_weight = nn.Parameter(torch.empty_like(last.weight))
        last.specific_bias = None if last.bias is None else nn.Parameter(torch.empty_like(last.bias))
        last.common, last.embedding = (nn.Parameter(last.weight.new_empty(1)) for _ in range(2))
        for tensor in (last.weight, last.bias, last.specific_weight, last.specific_bias):
            if tensor is not None:
                nn.init.normal_(tensor, std=0.1)
        nn.init.normal_(last.common, mean=0.1, std=1e-4)
        nn.init.normal_(last.embedding, std=1e-4)
        return model

    def stays(self, model: nn.Module) -> Sequence[str]:
        from ..nn.features import classifier

        last: Any = classifier(model)
        return [name for name, parameter in model.named_parameters() if parameter is last.embedding]

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.nn.functional import linear

        from ..nn.features import classifier, inputs_of

        last: Any = classifier(local.model)
        with inputs_of(last) as features:
            common = local.model(x)
        specific = linear(features[0], last.specific_weight, last.specific_bias)
        of_client = torch.tanh(last.common) * common + torch.tanh(last.embedding) * specific
        loss = class_loss(local, common, y) + self.specific * class_loss(local, of_client, y)
        rows = torch.stack([last.weight, last.specific_weight], 1)  # (classes, 2, features)
        products = (rows[:, :, None] * rows[:, None]).sum(-1)
        apart = (products - torch.eye(2, dtype=rows.dtype, device=rows.device)).square().mean()
        return loss + self.orthogonality * apart, common
