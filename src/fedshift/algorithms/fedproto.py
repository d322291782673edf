"""FedProto: Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients (2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ._base import Algorithm, Local, Mean, Server
from ._collaboration import SharedPrototypes

if TYPE_CHECKING:
    from torch import Tensor

    from ..nn.flat_state import Layout
    from ..nn.policies import BNPolicy


class FedProto(Algorithm):
    """Each client trains its own network; they share the mean features of each class, its prototypes.

    The loss is the cross-entropy plus `weight` times the mean, over batch and features, of (f - c)^2. f are the
    features of an image, the inputs of the last linear layer, and c is the prototype of its class. An image of a class
    without a prototype adds 0. In round 1 no class has one. After its local steps a client takes the mean features of
    each class over its training images, in evaluation mode. The server's prototype is the plain mean over the clients
    of the round that have images of the class; a class that none of them has keeps its prototype.

    The authors' code takes the mean features during the last local epoch, in training mode, while the network changes.
    Here they are the features of the network that the client ends with, as the paper defines them. The paper weights a
    class's clients by their images; the authors' code does not, and neither does this. All batch norm stays at the
    clients. A client is predicted with its own network; the paper's other test, by the nearest prototype, is not
    offered. External sites have no network.

    From the second round on, the server sends K prototypes of F features for K classes, and for each class whether it
    has a prototype; clients send the same. They exchange nothing else: networks stay at the clients. Default: `weight`
    1, as in the authors' code. With 0 the networks are those of `local`.
    """

    tasks = ("classification",)
    paper = "Tan et al. 2022"
    policies = ("local",)
    why = "no tensor of the network is aggregated"
    needs_body = "it compares features of layers that would not be trained"
    collaboration = SharedPrototypes()
    per_client = frozenset({"prototypes", "has"})
    weight: float = Field(1.0, ge=0, description="weight of the squared distance to the prototypes (lambda)")

    def shared(self, policy: BNPolicy, layout: Layout) -> slice:
        return slice(0, 0)

    def server_state(self, server: Server) -> dict[str, Tensor]:
        floats = server.shared.new_zeros
        return {"prototypes": floats(server.classes, server.features), "has": floats(server.classes)}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return dict(server.state) if server.round else {}

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        from ..nn.features import classifier, inputs_of

        if not local.broadcast:
            return super().loss(local, x, y)
        with inputs_of(classifier(local.model)) as features:
            loss, logits = super().loss(local, x, y)
        distances = (features[0] - local.broadcast["prototypes"][y]).square().mean(1)
        return loss + self.weight * (distances * local.broadcast["has"][y]).mean(), logits

    def report(self, local: Local) -> dict[str, Tensor]:
        import torch

        from ..nn.features import classifier, inputs_of

        last = classifier(local.model)
        sums = local.state_vector.new_zeros(local.classes, last.in_features)
        counts = local.state_vector.new_zeros(local.classes)
        with torch.no_grad(), inputs_of(last) as features:
            for x, y in local.own_batches():
                local.model(x)
                sums.index_add_(0, y, features.pop().to(sums))
                counts += y.bincount(minlength=local.classes)
        return {"prototypes": sums / counts.clamp(min=1)[:, None], "has": (counts > 0).to(counts)}

    def update(self, server: Server, mean: Mean) -> None:
        has = mean["has"]
        clients = has.sum(0)
        prototypes = (mean["prototypes"] * has[:, :, None]).sum(0) / clients.clamp(min=1)[:, None]
        server.state["prototypes"] = prototypes.where(clients[:, None] > 0, server.state["prototypes"])
        server.state["has"] = server.state["has"].maximum((clients > 0).to(clients))
