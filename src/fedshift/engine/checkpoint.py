"""A federation between two rounds as tensors and plain data, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .client import Selected

if TYPE_CHECKING:
    from .federation import Federation


def gather(federation: Federation) -> None:
    """Bring home to every process what clients of the others hold, once a round."""
    ranks, kept = federation.ranks, federation.selected
    if ranks.count == 1 or federation.gathered == federation.server.round:
        return
    here = [n for n, client in enumerate(federation.clients) if client in federation.here]
    clients = federation.clients
    for held in ranks.each(lambda: [(n, clients[n].own, clients[n].counters, clients[n].state) for n in here]):
        for n, own, counters, state in held:
            clients[n].own, clients[n].counters, clients[n].state = own, counters, state
    if kept:
        for chosen in ranks.each(lambda: [(n, kept.own[n], kept.counters[n]) for n in here]):
            for n, own, counters in chosen:
                kept.own[n], kept.counters[n] = own, counters
    federation.gathered = federation.server.round


def tensors(federation: Federation) -> dict[str, Tensor]:
    """Copies of all tensors that the next round depends on, and of the selected round's, by name."""
    gather(federation)
    server = federation.server
    out = {"server": server.shared, **{f"server/{k}": v for k, v in server.state.items()}}
    for n, c in enumerate(federation.clients):
        out |= {f"own/{n}": c.own, f"counters/{n}": c.counters}
        out |= {f"state/{n}/{k}": v for k, v in c.state.items()}
    if kept := federation.selected:
        out["selected"] = kept.shared
        out |= {f"selected/own/{n}": own for n, own in enumerate(kept.own)}
        out |= {f"selected/counters/{n}": counters for n, counters in enumerate(kept.counters)}
    return {k: v.clone() for k, v in out.items()}


def progress(federation: Federation) -> dict[str, Any]:
    """What else the next round depends on, as plain data."""
    kept = federation.selected
    selected = {"round": kept.round, "values": kept.values} if kept else None
    return {"round": federation.server.round, "selected": selected, "history": [*federation.history]}


def restore(federation: Federation, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
    """Bring a federation to where `tensors` and `progress` were taken."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}

    def each(prefix: str) -> list[Tensor]:
        found = under(prefix)
        return [found[str(n)] for n in range(len(federation.clients))]

    server, device = federation.server, federation.bench.device
    server.shared = tensors["server"].to(device, copy=True)
    server.round = int(progress["round"])
    server.state = {k: v.to(device) for k, v in under("server/").items()}
    for n, (c, own, counters) in enumerate(zip(federation.clients, each("own/"), each("counters/"), strict=True)):
        c.own, c.counters, c.state = own, counters, under(f"state/{n}/")
    federation.gathered = server.round
    federation.history = [dict(row) for row in progress["history"]]
    federation.selected = None
    if kept := progress["selected"]:
        shared = tensors["selected"].to(device, copy=True)
        federation.selected = Selected(
            kept["round"], kept["values"], shared, each("selected/own/"), each("selected/counters/")
        )
