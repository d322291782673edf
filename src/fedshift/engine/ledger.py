"""The communication ledger: how much data a federation moves, measured on what its hooks really send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def totals(history: Iterable[Mapping[str, Any]], unicast: bool = False) -> dict[str, int]:
    """Return the floats moved in all rounds of a history, and the messages exchanged.

    `down` counts floats to every client separately (unicast), `down_broadcast` once a round for all clients together,
    and `up` from every client. With `unicast`, where clients receive different tensors, nothing can be broadcast, and
    both are the same. `messages` adds one for each time that all clients send something and wait for the
    answer.
    """
    rows = [row for row in history if row["split"] == "train"]
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round"], []).append(row)

    def once(key: str) -> int:
        return sum(max(row[key] for row in clients) for clients in rounds.values())

    down = sum(row["floats_down"] for row in rows)
    return {
        "down": down,
        "down_broadcast": down if unicast else once("floats_down"),
        "up": sum(row["floats_up"] for row in rows),
        "messages": once("messages"),
    }
