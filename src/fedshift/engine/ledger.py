"""The communication ledger: how much a federation moves, as measured on what its hooks really send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def totals(history: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Floats moved in all rounds of a history, and messages exchanged.

    `down` is to every client by itself (unicast), `down_broadcast` once a round for all of them, `up` from every
    client; `messages` counts one for each time that all clients send something and wait for the answer.
    """
    rows = [row for row in history if row["split"] == "train"]
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round"], []).append(row)

    def once(key: str) -> int:
        return sum(max(row[key] for row in of) for of in rounds.values())

    return {
        "down": sum(row["floats_down"] for row in rows),
        "down_broadcast": once("floats_down"),
        "up": sum(row["floats_up"] for row in rows),
        "messages": once("messages"),
    }
