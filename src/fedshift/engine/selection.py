"""Validation after a round, tests on watched sites, and the choice of the round to keep."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from ..algorithms import Blend
from ..core import registry
from ..data.samples import Samples
from ..metrics import Metric
from .checkpoint import gather
from .local_training import LocalTrainer
from .ranks import Ranks
from .round_state import RoundState, SiteRecord
from .tally import diverged


class Criterion:
    """The validation value by which rounds are compared: accuracy, the loss, or any metric."""

    def __init__(self, select_by: str | None) -> None:
        self.name = select_by or "accuracy"
        self.metric: Metric | None = None
        self.higher_is_better = self.name != "loss"
        if self.name not in ("accuracy", "loss"):
            self.metric = registry.build("metric", self.name)
            self.higher_is_better = self.metric.higher_is_better

    def value(self, record: SiteRecord) -> float:
        """Return the value of one client's validation."""
        if record.score is not None:
            return record.score
        return record.loss if self.name == "loss" else record.accuracy

    def improved(self, new: float, old: float) -> bool:
        """Return whether a value is better than the earlier one; True if either of them is undefined (NaN)."""
        return not (new <= old if self.higher_is_better else new >= old)


def validate(
    rounds: RoundState,
    trainer: LocalTrainer,
    ranks: Ranks,
    criterion: Criterion,
    elsewhere: Mapping[str, Samples] | None = None,
) -> None:
    """Evaluate every client that has validation samples, each with its own tensors, and keep the round if it is best.

    Clients with personal networks are evaluated with these. With samples of sites `elsewhere`, these alone count, and
    the global network is evaluated on them.
    """
    if elsewhere:
        parts = _outside(rounds, trainer, ranks, elsewhere, criterion)
        _require_finite(rounds, itertools.chain(*parts))
        rounds.log("val", parts)
        if trainer.training.select == "best_validation":
            values = [criterion.value(record) for record in sorted(itertools.chain(*parts))]
            _select(rounds, [sum(values) / len(values)], criterion)
        return

    def local() -> list[SiteRecord]:
        records = []
        for client in rounds.here:
            if client.val is not None:
                state = client.state if rounds.personal else None
                place = client.name, client.val, client.own, client.counters
                shared = rounds.received(client)
                records.append(_evaluate(rounds, trainer, *place, criterion, state=state, shared=shared))
                _require_finite(rounds, records[-1:])
        return records

    parts = ranks.each(local)
    rounds.log("val", parts)
    scores = {record.site: criterion.value(record) for record in sorted(itertools.chain(*parts))}
    if trainer.training.select == "best_validation" and scores:
        names = [client.name for client in rounds.clients]
        _select(rounds, trainer.algorithm.collaboration.values(scores, names), criterion)


def _require_finite(rounds: RoundState, records: Iterable[SiteRecord]) -> None:
    """Raise UserError for a validation loss that is not finite."""
    for record in records:
        if not math.isfinite(record.loss):
            raise diverged(rounds.round, record.site, f"the validation loss is {record.loss}")


def watch(rounds: RoundState, trainer: LocalTrainer, ranks: Ranks, sites: Mapping[str, Samples]) -> None:
    """Log how the global network, if there is one, performs at the watched sites. Nothing depends on it."""
    every = trainer.training.watch_every
    if not sites or not every or rounds.round % every or not trainer.algorithm.collaboration.has_global_model:
        return
    rounds.log("test", _outside(rounds, trainer, ranks, sites))


def _outside(
    rounds: RoundState,
    trainer: LocalTrainer,
    ranks: Ranks,
    sites: Mapping[str, Samples],
    criterion: Criterion | None = None,
) -> list[list[SiteRecord]]:
    """Return how the global network performs at sites that are no clients, in one list for each process."""
    gather(rounds, ranks)
    own, counters = rounds.mean_own([c.own for c in rounds.clients], rounds.round), rounds.clients[0].counters
    here = list(sites.items())[ranks.rank :: ranks.count]
    blend = _ensemble(rounds, trainer) if trainer.algorithm.blended == "external" else None

    def local() -> list[SiteRecord]:
        return [
            _evaluate(rounds, trainer, site, samples, own, counters, criterion, blend=blend) for site, samples in here
        ]

    return ranks.each(local)


def _ensemble(rounds: RoundState, trainer: LocalTrainer) -> Blend:
    """Return the networks of all clients that have trained, which predict with equal weights."""
    trained = [rounds.clients[k] for k in rounds.trained(rounds.round)]
    vectors = [torch.empty_like(trainer.state_vector) for _ in trained]
    for vector, client in zip(vectors, trained, strict=True):
        trainer.assemble(vector, rounds.received(client), client.own)
    return Blend(vectors, [1 / len(trained)] * len(trained), "probabilities")


def evaluate_training(rounds: RoundState, trainer: LocalTrainer, ranks: Ranks) -> None:
    """Log how the averaged model performs on each client's training images, with the client's own BN.

    This is the training loss of the FedBN and FedTAN papers. The rows with split `train` are those of local steps,
    before averaging, where BN normalises by the batch under every policy. Nothing depends on this evaluation.
    """
    every, most = trainer.training.training_loss_every, trainer.training.training_loss_images
    if not every or rounds.round % every:
        return

    def local() -> list[SiteRecord]:
        records = []
        for client in rounds.here:
            n = len(client.train)
            rows = np.linspace(0, n - 1, min(n, most or n)).round().astype(np.int64)
            place, shared = (client.name, client.train, client.own, client.counters), rounds.received(client)
            records.append(_evaluate(rounds, trainer, *place, rows=rows, shared=shared))
        return records

    rounds.log("averaged", ranks.each(local))


def _evaluate(
    rounds: RoundState,
    trainer: LocalTrainer,
    site: str,
    samples: Samples,
    own: Tensor,
    counters: Tensor,
    criterion: Criterion | None = None,
    rows: np.ndarray | None = None,
    state: Mapping[str, Tensor] | None = None,
    shared: Tensor | None = None,
    blend: Blend | None = None,
) -> SiteRecord:
    """Return loss, accuracy and score of the shared tensors with the given tensors of a site, and the seconds taken.

    `rows` are the indices of the samples that count; by default all do. With `state`, the algorithm's tensors of a
    client, it is the client's personal network that is evaluated. `shared` takes the place of the server's tensors,
    and the networks of `blend` that of all.
    """
    began = time.perf_counter()
    trainer.load_personal(rounds.server.shared if shared is None else shared, own, counters, state)
    if blend is not None:
        trainer.answer_with(blend)
    loss, accuracy, score = trainer.evaluate(samples, criterion.metric if criterion else None, rows)
    return SiteRecord(site, loss, accuracy, time.perf_counter() - began, score=score)


def _select(rounds: RoundState, values: list[float], criterion: Criterion) -> None:
    """Keep this round if it is the best: for all clients, or for each client if each trains alone."""
    before = rounds.selected.values if rounds.selected else [math.nan] * len(values)
    better = [criterion.improved(new, old) for new, old in zip(values, before, strict=True)]
    if any(better):
        best = [new if improved else old for new, old, improved in zip(values, before, better, strict=True)]
        rounds.selected = rounds.snapshot(best, better if len(better) == len(rounds.clients) else ())
