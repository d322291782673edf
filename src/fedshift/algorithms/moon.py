"""MOON: Li et al., Model-Contrastive Federated Learning (2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor, nn


class Moon(Algorithm):
    """A contrastive term draws a client's features towards the global model's and away from its own previous model's.

    With z the features in training, z_g those of the model as the round began, z_p those of the client's model at the
    end of its previous round (both frozen, in evaluation mode), and s the cosine similarity, the loss is the
    cross-entropy plus mu times the mean of -log(exp(s(z, z_g)/T) / (exp(s(z, z_g)/T) + exp(s(z, z_p)/T))). In a
    client's first round z_p = z_g, and the term has no gradient. With local batch norm "the global model" is the
    received tensors with the client's own, our decision.

    Features are what enters the last linear layer, of the images as an add-on changed them. There is no projection
    head by default, so that the network is that of the other methods (our decision; the paper has one of 256). Down
    and up each round as FedAvg. Kept: each client's previous model. Two more forward passes a step. Defaults: T 0.5;
    mu 1 (the paper tunes it from 0.1, 1, 5, 10; UniFed's is not known).
    """

    paper = "Li et al. 2021b"
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    temperature: float = Field(0.5, gt=0, description="divides the similarities")
    projection_dim: int | None = Field(
        None, ge=1, description="size of a projection head before the last layer, which is drawn anew; null: no head"
    )

    def extend(self, model: nn.Module) -> nn.Module:
        if self.projection_dim is None:
            return model
        import copy

        from torch import nn

        from ..nn.features import classifier

        last = classifier(model)
        size, head = last.in_features, self.projection_dim
        layers = [nn.Linear(size, size), nn.ReLU(), nn.Linear(size, head), nn.Linear(head, last.out_features)]
        projection = nn.Sequential(*layers).to(last.weight)
        if last is model:
            return projection
        name = next(name for name, module in model.named_modules() if module is last)
        model = copy.deepcopy(model)
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, projection)
        return model

    def begin(self, local: Local) -> None:
        previous = local.state.get("previous", local.state_vector)
        local.networks = {
            "global": local.frozen("global", local.state_vector),
            "previous": local.frozen("previous", previous),
        }

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        import torch
        from torch.nn.functional import cosine_similarity, cross_entropy

        from ..nn.features import classifier, inputs_of

        with inputs_of(local.model) as given, inputs_of(classifier(local.model)) as seen:
            loss, logits = super().loss(local, x, y)
        similar = []
        for network in local.networks.values():
            with torch.no_grad(), inputs_of(classifier(network)) as frozen:
                network(given[0])
            similar.append(cosine_similarity(seen[0], frozen[0]) / self.temperature)
        towards_global = torch.zeros_like(y)
        return loss + self.mu * cross_entropy(torch.stack(similar, 1), towards_global), logits

    def report(self, local: Local) -> dict[str, Tensor]:
        if "previous" in local.state:
            local.state["previous"].copy_(local.state_vector)
        else:
            local.state["previous"] = local.state_vector.clone()
        return super().report(local)
