"""Checkpoints: the state of a federation between two rounds as tensors and plain data, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .ranks import Ranks
from .round_state import RoundState, Selected


def gather(rounds: RoundState, ranks: Ranks) -> None:
    """Bring the tensors of all clients to every process, at most once a round."""
    selected = rounds.selected
    if ranks.count == 1 or rounds.gathered == rounds.round:
        return
    clients = rounds.clients
    here = [n for n, client in enumerate(clients) if client.here]
    for states in ranks.each(lambda: [(n, clients[n].own, clients[n].counters, clients[n].state) for n in here]):
        for n, own, counters, state in states:
            clients[n].own, clients[n].counters, clients[n].state = own, counters, state
    if selected:
        for selections in ranks.each(
            lambda: [(n, selected.own[n], selected.counters[n], selected.state[n : n + 1]) for n in here]
        ):
            for n, own, counters, states_of_one in selections:
                selected.own[n], selected.counters[n] = own, counters
                selected.state[n : n + 1] = states_of_one
    rounds.gathered = rounds.round


def tensors(rounds: RoundState) -> dict[str, Tensor]:
    """Return copies of all tensors that the next round depends on, and of the selected round's tensors, by name."""
    server = rounds.server
    out = {"server": server.shared, **{f"server/{k}": v for k, v in server.state.items()}}
    for n, c in enumerate(rounds.clients):
        out |= {f"own/{n}": c.own, f"counters/{n}": c.counters}
        out |= {f"state/{n}/{k}": v for k, v in c.state.items()}
    if selected := rounds.selected:
        out["selected"] = selected.shared
        out |= {f"selected/own/{n}": own for n, own in enumerate(selected.own)}
        out |= {f"selected/counters/{n}": counters for n, counters in enumerate(selected.counters)}
        out |= {f"selected/received/{n}": received for n, received in enumerate(selected.received)}
        for n, state in enumerate(selected.state):
            out |= {f"selected/state/{n}/{k}": v for k, v in state.items()}
    return {k: v.clone() for k, v in out.items()}


def progress(rounds: RoundState) -> dict[str, Any]:
    """Return everything else that the next round depends on, as plain data."""
    selected = rounds.selected
    return {
        "round": rounds.round,
        "selected": {"round": selected.round, "values": selected.values} if selected else None,
        "first_rounds": [client.first_round for client in rounds.clients],
        "history": [*rounds.history],
    }


def restore(
    rounds: RoundState, tensors: Mapping[str, Tensor], progress: Mapping[str, Any], device: torch.device
) -> None:
    """Restore the state from which `tensors` and `progress` were taken."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}

    def each(prefix: str) -> list[Tensor]:
        parts = under(prefix)
        return [parts[str(n)] for n in range(len(rounds.clients))]

    server = rounds.server
    server.shared = tensors["server"].to(device, copy=True)
    server.round = int(progress["round"])
    server.state = {k: v.to(device) for k, v in under("server/").items()}
    for n, (client, own, counters) in enumerate(zip(rounds.clients, each("own/"), each("counters/"), strict=True)):
        client.own, client.counters, client.state = own, counters, under(f"state/{n}/")
        client.first_round = progress["first_rounds"][n]
    rounds.gathered = rounds.round
    rounds.history = [dict(row) for row in progress["history"]]
    rounds.selected = None
    if selected := progress["selected"]:
        shared = tensors["selected"].to(device, copy=True)
        received = [part.to(device) for part in each("selected/received/")] if rounds.download else []
        states = [under(f"selected/state/{n}/") for n in range(len(rounds.clients))] if rounds.personal else []
        rounds.selected = Selected(
            selected["round"],
            selected["values"],
            shared,
            each("selected/own/"),
            each("selected/counters/"),
            received,
            states,
        )
