"""The table of algorithms for the documentation, made from the plug-ins: what they send is measured, not copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..algorithms import Algorithm
from ..analysis.table import Table
from ..analysis.values import DASH
from ..core import registry
from ..engine.federation import Federation
from ..models import initialise
from ..nn.bn_policy import POLICIES

LATE = 10_000
"""Number of a round in which every phase that an algorithm begins with has ended."""
TEXT = """# Algorithms

Made by `fedshift algorithms` from the plug-ins in `src/fedshift/algorithms/`, whose docstrings say more: equations,
defaults and where they come from, and what reference implementations do otherwise.

P are the trainable parameters, W those outside of batch norm and A those inside; S are the running means and variances.
A model has L batch-norm layers. Floats are those of one client in one round, counted on what a client of a small
network really receives and sends. Messages are those in one direction that clients wait for. What a client keeps
includes what the BN policy keeps local. Penalties, control variates and server moments cover only parameters that are
trained and travel. Running statistics are averaged where they travel; BN's counters never travel. There is one client
here: a server that keeps one float for it keeps N for N clients.

"""


def algorithms() -> str:
    """Return the page of all algorithms, in Markdown."""
    rows = tuple(tuple(_row(name, cls)) for name, cls in sorted(registry.discover("algorithm").items()))
    header = (
        "Name",
        "What it does",
        "Paper",
        "BN policies",
        "Down, up",
        "Down, up with local BN",
        "Messages",
        "Client keeps",
        "Server keeps",
    )
    table = Table("Names are what a study says under algorithm", header, rows, 9)
    return TEXT + table.md()


def _row(name: str, cls: type[registry.Plugin]) -> Iterator[str]:
    algorithm: Algorithm = registry.build("algorithm", name)
    trained = {bn: _after_a_round(algorithm, bn) for bn in ("aggregated", "local") if bn in algorithm.policies}
    first = trained.get("aggregated") or next(iter(trained.values()), None) or _after_a_round(algorithm)
    yield name
    yield cls.summary().replace("`", "")
    yield algorithm.paper
    yield "all" if algorithm.policies == tuple(POLICIES) else ", ".join(algorithm.policies)
    yield _moved(trained["aggregated"]) if "aggregated" in trained else _moved(first) if not trained else DASH
    yield _moved(trained["local"]) if "local" in trained else DASH
    yield _then(first, lambda row: f"{row['messages'] - 1} L + 1" if row["messages"] > 1 else str(row["messages"]))
    state = sum(t.numel() for t in first.clients[0].state.values())
    yield " + ".join([*_staying(first), *([_floats(first, state)] if state else [])]) or DASH
    held = sum(t.numel() for t in first.server.state.values())
    yield _floats(first, held) if held else DASH


def _after_a_round(algorithm: Algorithm, bn: str | None = None) -> Federation:
    """Return a federation after its first round and a late one, which some algorithms do differently."""
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    training = {"batch_size": 4, "select": "last"}
    model = initialise(registry.build("model", "mlp"), (1, 28, 28), 10, 0)
    federation = Federation(model, {"client": (x, torch.arange(4))}, algorithm=algorithm, bn=bn, training=training)
    federation.round()
    federation.server.round = LATE
    federation.round()
    return federation


def _staying(trained: Federation) -> list[str]:
    """Return the parts of the model that stay at a client."""
    shared, layout = trained.trainer.travels, trained.trainer.layout
    spans = {"A": layout.affine, "W": layout.weights, "S": layout.statistics}
    stays = [name for name, span in spans.items() if not (shared.start <= span.start and span.stop <= shared.stop)]
    return ["P", *stays[2:]] if stays[:2] == ["A", "W"] else stays


def _then(trained: Federation, cell: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the text of a cell for the first round and, if it differs, for the late one."""
    return ", then ".join(dict.fromkeys(map(cell, trained.history)))


def _moved(trained: Federation) -> str:
    def cell(row: Mapping[str, Any]) -> str:
        return ", ".join(dict.fromkeys(_floats(trained, row[key]) for key in ("floats_down", "floats_up")))

    return _then(trained, cell)


def _floats(trained: Federation, count: int) -> str:
    """Return a number of floats as multiples of P or W, S and 1, such as `2P + S`."""
    layout = trained.trainer.layout
    affine, weights, statistics = (s.stop - s.start for s in (layout.affine, layout.weights, layout.statistics))
    whole = trained.trainer.travels.start <= layout.affine.start
    trainable, name = (affine + weights, "P") if whole else (weights, "W")
    many, rest = divmod(count, trainable)
    few, ones = divmod(rest, statistics)
    named = [(many, name), (few, "S")]
    parts = [f"{n if n > 1 else ''}{what}" for n, what in named if n] + ([str(ones)] if ones else [])
    return " + ".join(parts) or "0"
