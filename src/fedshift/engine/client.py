"""The sites of a federation that train: their samples, weights, and what they keep between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..algorithms import Algorithm, Server
from ..core.errors import UserError, did_you_mean
from ..data.samples import Pooled, Samples, TensorSamples
from .workbench import Workbench

Given = Mapping[str, Samples | tuple[Tensor, Tensor]]
POOLED = "pooled"
"""The one client of an algorithm that pools all data."""


@dataclass(eq=False)
class Client:
    """A site that trains.

    `share` is its part of all training samples, or an equal one; `weight` is what the algorithm makes of it. `own`
    holds the tensors that stay here, `counters` BN's integer buffers, `state` the algorithm's; between rounds they lie
    on the CPU, once.
    """

    name: str
    train: Samples
    val: Samples | None
    share: float
    weight: float
    own: Tensor
    counters: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Selected:
    """The round kept by model selection: the shared tensors, and each client's own in the order of clients.

    `values` holds the mean validation accuracy. Where each client trains alone, it holds each one's, and `round` is the
    last in which any client improved.
    """

    round: int
    values: list[float]
    shared: Tensor
    own: list[Tensor]
    counters: list[Tensor]


def opened(given: Given, validation: Given, algorithm: Algorithm, bench: Workbench, server: Server) -> list[Client]:
    """The clients before the first round, in the order of their names.

    Raises UserError for a client without training samples, and for validation samples of no client.
    """
    data, held = samples(given), samples(validation)
    if empty := [name for name, of in data.items() if not len(of)]:
        raise UserError(f"client {empty[0]!r}", "has no training samples", "leave it out")
    if lost := sorted(set(held) - set(data)):
        raise UserError("validation", f"{lost[0]!r} is no client", did_you_mean(lost[0], data))
    held = {name: of for name, of in held.items() if len(of)}
    if algorithm.pools:
        data = {POOLED: Pooled(list(data.values()))}
        held = {POOLED: Pooled(list(held.values()))} if held else {}
    total, by_size = sum(map(len, data.values())), bench.training.weights == "size"
    shares = [len(of) / total if by_size else 1 / len(data) for of in data.values()]
    return [
        Client(
            name=name,
            train=train,
            val=held.get(name),
            share=share,
            weight=weight,
            own=bench.own(),
            counters=bench.counters.to("cpu", copy=True),
            state=at_home(algorithm.client_state(server)),
        )
        for (name, train), share, weight in zip(data.items(), shares, algorithm.weights(shares), strict=True)
    ]


def at_home(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A client's tensors on the CPU, where they lie between rounds."""
    return {k: v.detach().cpu() for k, v in state.items()}


def samples(given: Given) -> dict[str, Samples]:
    """The samples of each site, by name."""
    return {site: TensorSamples(*of) if isinstance(of, tuple) else of for site, of in sorted(given.items())}
