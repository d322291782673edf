"""After a round: how clients, and sites that are only watched, fare, and whether it is the round to keep."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..data.samples import Samples
from . import checkpoint as resume
from .client import Selected
from .tally import Outcome, diverged

if TYPE_CHECKING:
    from .federation import Federation


def validate(federation: Federation) -> None:
    """Score every client that has validation samples, each with its own BN, and keep the best round."""
    number = federation.server.round

    def local() -> list[Outcome]:
        rows = []
        for client in federation.here:
            if client.val is not None:
                row = _score(federation, client.name, client.val, client.own, client.counters)
                if not math.isfinite(row.loss):
                    raise diverged(number, client.name, f"the validation loss is {row.loss}")
                rows.append(row)
        return rows

    parts = federation.ranks.each(local)
    federation.log(number, "val", parts)
    scores = {found.site: found.accuracy for found in sorted(itertools.chain(*parts))}
    if federation.training.select == "last" or not scores:
        return
    if federation.algorithm.isolated:
        _select(federation, [scores.get(c.name, math.nan) for c in federation.clients])
    else:
        _select(federation, [float(np.mean(list(scores.values())))])


def watch(federation: Federation) -> None:
    """Log how the global network, if there is one, does at the watched sites. Nothing depends on it."""
    number, every = federation.server.round, federation.training.watch_every
    if not federation.watched or not every or number % every or federation.algorithm.isolated:
        return
    resume.gather(federation)
    own, counters = federation.mean_own([c.own for c in federation.clients], number), federation.clients[0].counters
    mine = list(federation.watched.items())[federation.ranks.rank :: federation.ranks.count]
    parts = federation.ranks.each(lambda: [_score(federation, site, given, own, counters) for site, given in mine])
    federation.log(number, "test", parts)


def _score(federation: Federation, site: str, given: Samples, own: Tensor, counters: Tensor) -> Outcome:
    """Loss and accuracy of the shared tensors with these, and the seconds it took."""
    began = time.perf_counter()
    federation.bench.load(federation.server.shared, own, counters)
    loss, accuracy = federation.bench.evaluate(given)
    return Outcome(site, loss, accuracy, time.perf_counter() - began)


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
