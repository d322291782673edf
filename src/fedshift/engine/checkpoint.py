"""Checkpoints: the state of a federation between two rounds as tensors and plain data, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .client import Client
from .ranks import Ranks
from .round_state import ClientTensors, RoundState, Selected


def gather(rounds: RoundState, ranks: Ranks) -> None:
    """Bring the tensors of all clients to every process, at most once a round."""
    # All processes must come here together: what is gathered below needs an answer of each.
    if ranks.count == 1 or rounds.gathered == rounds.round:
        return
    here = [n for n, client in enumerate(rounds.clients) if isinstance(client, Client) and client.here]
    _gather(rounds.clients, here, ranks)
    if rounds.selected:
        _gather(rounds.selected.clients, here, ranks)
    rounds.gathered = rounds.round


def _gather(clients: Sequence[ClientTensors], here: Sequence[int], ranks: Ranks) -> None:
    for process in ranks.each(lambda: {n: clients[n].kept() for n in here}):
        for n, tensors in process.items():
            clients[n].keep(tensors)


def tensors(rounds: RoundState) -> dict[str, Tensor]:
    """Return copies of all tensors that the next round depends on, and of the selected round's tensors, by name."""
    server = rounds.server
    out = {"server": server.shared, **{f"server/{k}": v for k, v in server.state.items()}}
    out |= _named("", rounds.clients)
    selected = rounds.selected
    if selected:
        out["selected"] = selected.shared
        out |= _named("selected/", selected.clients)
        out |= {f"selected/received/{n}": received for n, received in enumerate(selected.received)}
    return {k: v.clone() for k, v in out.items()}


def _named(prefix: str, clients: Sequence[ClientTensors]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    for n, client in enumerate(clients):
        out |= {f"{prefix}own/{n}": client.own, f"{prefix}counters/{n}": client.counters}
        out |= {f"{prefix}state/{n}/{k}": v for k, v in client.state.items()}
    return out


def progress(rounds: RoundState) -> dict[str, Any]:
    """Return everything that the next round depends on except tensors, as plain data for JSON."""
    selected = None
    if rounds.selected:
        selected = {"round": rounds.selected.round, "values": rounds.selected.values}
    return {
        "round": rounds.round,
        "selected": selected,
        "first_rounds": [client.first_round for client in rounds.clients],
        "history": [*rounds.history],
    }


def restore(
    rounds: RoundState, tensors: Mapping[str, Tensor], progress: Mapping[str, Any], device: torch.device
) -> None:
    """Set `rounds` to the state from which `tensors` and `progress` were taken; the server's tensors go to `device`."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {k.removeprefix(prefix): v.clone() for k, v in tensors.items() if k.startswith(prefix)}

    def kept(prefix: str, n: int) -> ClientTensors:
        own, counters = tensors[f"{prefix}own/{n}"], tensors[f"{prefix}counters/{n}"]
        return ClientTensors(own=own.clone(), counters=counters.clone(), state=under(f"{prefix}state/{n}/"))

    server = rounds.server
    server.shared = tensors["server"].to(device, copy=True)
    server.round = int(progress["round"])
    server.state = {k: v.to(device) for k, v in under("server/").items()}
    numbers = range(len(rounds.clients))
    for n, client in enumerate(rounds.clients):
        client.keep(kept("", n))
        client.first_round = progress["first_rounds"][n]
    rounds.gathered = rounds.round
    rounds.history = [dict(row) for row in progress["history"]]
    server.losses = [math.nan] * len(rounds.clients)
    rounds.note_losses(rounds.history)
    rounds.selected = None
    if progress["selected"]:
        selected, shared = progress["selected"], tensors["selected"].to(device, copy=True)
        clients = [kept("selected/", n) for n in numbers]
        rounds.selected = Selected(selected["round"], selected["values"], shared, clients)
        if rounds.download:
            rounds.selected.received = [tensors[f"selected/received/{n}"].to(device, copy=True) for n in numbers]
