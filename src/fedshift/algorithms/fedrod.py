"""FedRoD: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification (2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ..core.errors import UserError
from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor, nn


class FedRoD(Algorithm):
    """Two last layers: a generic head G, averaged and trained on balanced classes, and a personal head P_i beside it.

    With features z, the inputs of the last layer, G and all layers before it (body) are trained on the balanced
    softmax: the cross-entropy of G(z) + ln n_c, where n_c is the client's number of training samples of class c. P_i is
    trained on the cross-entropy of G(z) + P_i(z), through which no gradient flows to body and G. Both follow the SGD of
    the training, each with its own momentum buffer. The prior is ln(K n_c / n) for K classes and n samples: adding the
    same number to all logits changes nothing, and for balanced classes it is zero, so that body and G are the same as
    in FedAvg. FedRoD is then FedAvg with a private head, as under a pure shift of features.

    Server and clients exchange the tensors of FedAvg. Each client keeps P_i, a linear layer of the size of G, between
    rounds. It starts at zero (our decision), so that a client is evaluated with G until it has trained. An internal
    site is predicted with G + P_i, and rounds are selected by this sum; an external site is predicted with G. An
    inference with `network: global` predicts internal sites with G too.

    The authors' repository holds no code. One port adds 1 to each n_c; another takes the counts as they are, as the
    paper does: a class without samples then has probability 0 at the client, and its logit gets no gradient there. The
    paper's variant that makes P_i from a client's class distribution is left out.
    """

    paper = "Chen et al. 2022"
    external = "external sites get the network with the generic head, internal sites add their personal heads"
    smoothing: float = Field(0.0, ge=0, description="number added to a client's samples of each class in the prior")

    def begin(self, local: Local) -> None:
        import torch

        weight, bias = _tensors(local.model)
        size = weight.numel() + (0 if bias is None else bias.numel())
        local.state.setdefault("head", weight.new_zeros(size).detach())
        counts = local.class_counts(len(weight)).to(weight.dtype) + self.smoothing
        local.scratch["prior"] = torch.log(len(weight) * counts / counts.sum())

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ..nn.features import head, inputs_of

        last, generic = head(local.model), []

        def with_prior(_: nn.Module, __: object, logits: Tensor) -> Tensor:
            generic.append(logits)
            prior = local.scratch["prior"]
            return logits + prior.view(-1, *[1] * (logits.dim() - 2))

        handle = last.register_forward_hook(with_prior)
        try:
            with inputs_of(last) as features:
                loss, _ = super().loss(local, x, y)
        finally:
            handle.remove()
        local.scratch["features"] = features[0].detach()
        return loss, generic[0]

    def gradient(self, local: Local, x: Tensor, y: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import linear, one_hot

        logits = super().gradient(local, x, y)
        weight, bias = _split(local)
        z = _rows(local.scratch["features"]).to(weight.dtype)
        weight = weight.flatten(1)
        labels = y.flatten()
        if len(z) != len(labels):
            problem = "enlarges the outputs of its last layer, and FedRoD adds a personal head to these outputs"
            raise UserError("model", problem, "use a network whose last layer gives the logits of each pixel, as unet")
        p = (_rows(logits).to(weight.dtype) + linear(z, weight, bias)).softmax(1)
        # The gradient of the mean cross-entropy with respect to the logits; no pass through the network is needed.
        error = (p - one_hot(labels, len(weight))) / len(labels)
        if local.class_weights is not None:
            error = error * local.class_weights.index_select(0, labels)[:, None]
        grad = torch.cat([(error.T @ z).flatten(), *([] if bias is None else [error.sum(0)])])
        local.descend("head", local.state["head"], grad)
        return logits

    def personal(self, local: Local) -> Tensor:
        import torch

        if "head" not in local.state:
            return local.state_vector
        vector = local.state_vector.clone()
        with local.holding(vector), torch.no_grad():
            for generic, own in zip(_tensors(local.model), _split(local), strict=True):
                if generic is not None and own is not None:
                    generic.add_(own)
        return vector


def _tensors(model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the weight (classes, features, ...) and the bias (classes,) of the network's last layer; None for no bias.

    Raises UserError if the last layer is a convolution over several pixels.
    """
    from ..nn.features import head

    last: Any = head(model)
    if last.weight[0].numel() != last.weight.shape[1]:
        problem = "ends in a convolution over several pixels, and FedRoD adds a personal head to a linear one"
        raise UserError("model", problem, "use a network that ends in a linear layer or a 1x1 convolution")
    return last.weight, last.bias


def _rows(outputs: Tensor) -> Tensor:
    """Return outputs (batch, numbers, ...) as a matrix (positions, numbers) with a row for each image or pixel."""
    return outputs.movedim(1, -1).flatten(0, -2)


def _split(local: Local) -> tuple[Tensor, Tensor | None]:
    """Return the weight and the bias of the client's personal head, as views of its vector in `local.state`."""
    head, (weight, bias) = local.state["head"], _tensors(local.model)
    size = weight.numel()
    return head[:size].view_as(weight), None if bias is None else head[size:]
