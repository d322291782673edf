"""Layer policies: which layers of a network are aggregated and which stay at home, beside what the BN policy keeps.

| policy | last linear layer, or else convolution (head) | all other layers (body) | used by |
|---|---|---|---|
| full | travels | travels | FedAvg and most other algorithms |
| head_home | stays | travels | FedPer, FedRep, FedBABU |
| body_home | travels | stays | LG-FedAvg |

Batch norm is part of the body. What the BN policy keeps at home stays there under every layer policy.

What `training.train` leaves out rests: it has no gradient and no weight decay, is the same at all clients for ever, and
does not travel.

| train | head | gamma, beta of norms | running statistics | all else |
|---|---|---|---|---|
| all | trained | trained | move | trained |
| head (linear probe) | trained | rest | rest: batch norm is in evaluation mode in training, too | rests |
| norm, head (norm tuning) | trained | trained | move | rests |
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class LayerPolicy:
    """Choice of the layers that are aggregated: the head and the layers before it, each True or False."""

    head: bool
    body: bool

    def stays(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters that stay at home, in the order of the network.

        The head is found as a module, never by name; parameters that an add-on put into it belong to it. In a flat
        state `[private | affine | weights | statistics]` they are private, so that what travels is still one slice.
        Raises UserError if the network has neither a linear layer nor a convolution to be its head.
        """
        if self.head and self.body:
            return []
        from .features import head

        last = {id(parameter) for parameter in head(model).parameters()}
        travels = {True: self.head, False: self.body}
        return [name for name, parameter in model.named_parameters() if not travels[id(parameter) in last]]


LAYERS: dict[str, LayerPolicy] = {
    "full": LayerPolicy(head=True, body=True),
    "head_home": LayerPolicy(head=False, body=True),
    "body_home": LayerPolicy(head=True, body=False),
}


def rest(model: nn.Module, train: str | Collection[str]) -> set[str]:
    """Stop the gradient of all that is not trained, and return the names of the tensors that stay as they are.

    `train` is `all`, `head`, or the parts `norm` and `head`. Norms are found by type; without them, batch norm rests
    with its running statistics and counters, and the caller keeps it in evaluation mode. Of dropout nothing is said
    here: it goes on, as part of the training of the head.
    """
    if train == "all":
        return set()
    from .features import head
    from .norms import norm_layers

    trained = {id(parameter) for parameter in head(model).parameters()}
    names = set[str]()
    if "norm" in train:
        trained |= {id(p) for layer in norm_layers(model).values() for p in layer.parameters(recurse=False)}
    else:
        names = {name for layer, m in norm_layers(model).items() for name, _ in m.named_buffers(layer)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in trained:
            parameter.requires_grad_(False)
            names.add(name)
    return names
