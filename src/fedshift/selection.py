"""After a round: how clients, and sites that are only watched, fare, and whether it is the round to keep."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from .clients import Selected
from .tally import diverged

if TYPE_CHECKING:
    from .federation import Federation


def validate(federation: Federation) -> None:
    """Score every client that has validation samples, each with its own BN, and keep the best round."""
    scores: dict[str, float] = {}
    for client in federation.clients:
        if client.val is None:
            continue
        began = time.perf_counter()
        federation.bench.load(federation.server.shared, client.own, client.counters)
        loss, accuracy = federation.bench.evaluate(client.val)
        if not math.isfinite(loss):
            raise diverged(federation.server.round, client.name, f"the validation loss is {loss}")
        federation.log(federation.server.round, client.name, "val", loss, accuracy, time.perf_counter() - began)
        scores[client.name] = accuracy
    if federation.training.select == "last" or not scores:
        return
    if federation.algorithm.isolated:
        _select(federation, [scores.get(c.name, math.nan) for c in federation.clients])
    else:
        _select(federation, [float(np.mean(list(scores.values())))])


def watch(federation: Federation) -> None:
    """Log how the global network does at the watched sites, every so many rounds. Nothing depends on it."""
    number, every = federation.server.round, federation.training.watch_every
    if not federation.watched or not every or number % every:
        return
    own, counters = torch.stack([c.own for c in federation.clients]).mean(0), federation.clients[0].counters
    for site, given in federation.watched.items():
        began = time.perf_counter()
        federation.bench.load(federation.server.shared, own, counters)
        loss, accuracy = federation.bench.evaluate(given)
        federation.log(number, site, "test", loss, accuracy, time.perf_counter() - began)


def _select(federation: Federation, values: list[float]) -> None:
    """Keep this round where it is the best: of all clients, or of each by itself; always where that is unknown."""
    kept = federation.selected
    before = kept.values if kept else [math.nan] * len(values)
    better = [not new <= old for new, old in zip(values, before, strict=True)]
    if any(better):
        best = [new if wins else old for new, old, wins in zip(values, before, better, strict=True)]
        federation.selected = snapshot(federation, best, better if federation.algorithm.isolated else ())


def snapshot(federation: Federation, values: list[float], better: Sequence[bool] = ()) -> Selected:
    """The state after this round; a client that `better` says no of keeps what was selected before."""
    new = Selected(
        round=federation.server.round,
        values=values,
        shared=federation.server.shared.clone(),
        own=[c.own.clone() for c in federation.clients],
        counters=[c.counters.clone() for c in federation.clients],
    )
    for k, wins in enumerate(better):
        if federation.selected and not wins:
            new.own[k], new.counters[k] = federation.selected.own[k], federation.selected.counters[k]
    return new
