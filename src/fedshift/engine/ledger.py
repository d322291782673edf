"""The communication ledger: how much data a federation moves, measured on what its hooks really send."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..algorithms import Collaboration


@dataclass(frozen=True)
class Traffic:
    """The floats of one exchange, such as the one before the first round, of all clients together.

    Attributes
    ----------
    down : floats that clients receive
    down_broadcast : floats that the server sends where one message reaches all clients
    up : floats that clients send
    """

    down: int = 0
    down_broadcast: int = 0
    up: int = 0

    @classmethod
    def passed_on(cls, sizes: Mapping[str, int], collaboration: Collaboration) -> Traffic:
        """Return the traffic of `sizes` floats that each client sends, and that every client gets from all others."""
        heard = [{k: n for k, n in collaboration.heard(client, sizes).items() if k != client} for client in sizes]
        sent = sum(n for client, n in sizes.items() if any(client in others for others in heard))
        return cls(sum(sum(others.values()) for others in heard), sent, sent)

    @classmethod
    def summed_up(cls, numbers: int, clients: Collection[str], collaboration: Collaboration) -> Traffic:
        """Return the traffic of vectors (numbers,) that each client sends, and whose sum all clients get."""
        if not cls.passed_on(dict.fromkeys(clients, numbers), collaboration).up:
            return cls()
        return cls(numbers * len(clients), numbers, numbers * len(clients))

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of two exchanges that take place together."""
        return Traffic(self.down + other.down, self.down_broadcast + other.down_broadcast, self.up + other.up)

    @property
    def messages(self) -> int:
        """Messages in one direction: one if anything is sent, since all of it can be sent together."""
        return int(self.up > 0)

    def floats(self, broadcast: bool) -> int:
        """Return the floats in both directions; with `broadcast`, what the server sends counts once."""
        if broadcast:
            return self.up + self.down_broadcast
        return self.up + self.down


def totals(history: Iterable[Mapping[str, Any]], unicast: bool, beforehand: Traffic) -> dict[str, int]:
    """Return the floats moved beforehand and in all rounds of a history, and the messages exchanged.

    `down` counts floats to every client separately (unicast), `down_broadcast` once a round for all clients together,
    and `up` from every client. With `unicast`, where clients receive different tensors, nothing can be broadcast, and
    both are the same. `messages` adds one for each time that all clients send something and wait for the answer.
    """
    rows = [row for row in history if row["split"] == "train"]
    rounds: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        rounds.setdefault(row["round"], []).append(row)

    def once(key: str) -> int:
        return sum(max(row[key] for row in clients) for clients in rounds.values())

    down = sum(row["floats_down"] for row in rows)
    return {
        "down": beforehand.down + down,
        "down_broadcast": beforehand.down_broadcast + (down if unicast else once("floats_down")),
        "up": beforehand.up + sum(row["floats_up"] for row in rows),
        "messages": beforehand.messages + once("messages"),
    }
