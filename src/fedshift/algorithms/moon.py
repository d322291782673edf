"""MOON: Li et al., Model-Contrastive Federated Learning (2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local

if TYPE_CHECKING:
    from torch import Tensor, nn


class Moon(Algorithm):
    """A contrastive loss draws a client's features towards the global model's and away from its previous model's.

    Let z be the features in training, z_g the features of the model at the start of the round, z_p the features of the
    client's model at the end of its previous round, and s the cosine similarity. The networks of z_g and z_p are
    frozen, in evaluation mode. The loss is the cross-entropy plus mu times the mean of -log(exp(s(z, z_g)/T) /
    (exp(s(z, z_g)/T) + exp(s(z, z_p)/T))), with the temperature T. In a client's first round z_p = z_g, and the term
    has no gradient. With local batch norm, "the global model" is the received tensors with the client's own (our
    decision).

    Features are the inputs of the last linear layer, for images as an add-on changed them. By default the network has
    no projection head, so that it is the same as for the other methods (our decision; the paper has a head of size
    256). Server and clients exchange the tensors of FedAvg. Each client keeps its previous model. A step takes two more
    forward passes. Defaults: T 0.5; mu 1 (the paper chooses it from 0.1, 1, 5 and 10; UniFed's value is not known).
    """

    display_name = "MOON"
    paper = "Li et al. 2021b"
    needs_body = "it compares features of layers that would not be trained"
    network_fields = frozenset({"projection_dim"})
    mu: float = Field(1.0, ge=0, description="weight of the contrastive term")
    temperature: float = Field(0.5, gt=0, description="temperature by which the similarities are divided (T)")
    projection_dim: int | None = Field(
        None, ge=1, description="size of a projection head before the last layer, which gets new weights; null: no head"
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

        from ..nn.features import head, inputs_of

        # `images` are those that the network sees, after an add-on has changed them.
        with inputs_of(local.model) as images, inputs_of(head(local.model)) as features:
            loss, logits = super().loss(local, x, y)
        similar = []
        for network in local.networks.values():
            with torch.no_grad(), inputs_of(head(network)) as frozen_features:
                network(images[0])
            similar.append(cosine_similarity(features[0].flatten(1), frozen_features[0].flatten(1)) / self.temperature)
        towards_global = y.new_zeros(len(y))
        return loss + self.mu * cross_entropy(torch.stack(similar, 1), towards_global), logits

    def report(self, local: Local) -> dict[str, Tensor]:
        if "previous" in local.state:
            local.state["previous"].copy_(local.state_vector)
        else:
            local.state["previous"] = local.state_vector.clone()
        return super().report(local)
