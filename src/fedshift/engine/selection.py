"""Evaluation of networks after each round, and model selection."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ..algorithms import Blend, Collaboration, Training
from ..core import registry
from ..data.samples import Samples
from ..metrics import Metric
from .checkpoint import gather
from .client import Client
from .local_training import LocalTrainer
from .ranks import Ranks
from .round_state import RoundState, SiteRecord, diverged


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
        """Return the criterion's value from the record of one client's validation."""
        if record.score is not None:
            return record.score
        return record.loss if self.name == "loss" else record.accuracy

    def improved(self, new: float, old: float) -> bool:
        """Return True if the validation value `new` is better than `old`, or if one of them is undefined (NaN)."""
        # Negated, so that a comparison with NaN counts as better: the first round has no earlier value.
        if self.higher_is_better:
            return not new <= old
        return not new >= old


class Choice:
    """Model selection: decides by validation values which round is kept. It needs no data."""

    def __init__(self, rounds: RoundState, training: Training, collaboration: Collaboration) -> None:
        self.rounds, self.training, self.collaboration = rounds, training, collaboration
        self.criterion = Criterion(training.select_by)

    def choose(self, records: Sequence[SiteRecord], outside: bool = False) -> list[int]:
        """Log the validation of the current round, and keep the round if it is the best so far.

        `records` are the sites' results; `outside` says that they are of sites that do not train. Returns the positions
        of the clients for which the round was kept: all or none, unless each client trains alone. Raises UserError for
        a loss that is not finite.
        """
        for record in sorted(records):
            if not math.isfinite(record.loss):
                raise diverged(self.rounds.round, record.site, f"the validation loss is {record.loss}")
        self.rounds.log("val", [records])
        if self.training.select != "best_validation" or not records:
            return []
        scores = {record.site: self.criterion.value(record) for record in sorted(records)}
        if outside:
            return self._select([sum(scores.values()) / len(scores)])
        return self._select(self.collaboration.values(scores, [client.name for client in self.rounds.clients]))

    def _select(self, values: list[float]) -> list[int]:
        rounds = self.rounds
        before = rounds.selected.values if rounds.selected else [math.nan] * len(values)
        better = [self.criterion.improved(new, old) for new, old in zip(values, before, strict=True)]
        if not any(better):
            return []
        best = [new if improved else old for new, old, improved in zip(values, before, better, strict=True)]
        apart = better if len(better) == len(rounds.clients) else ()
        rounds.selected = rounds.snapshot(best, apart)
        return [k for k in range(len(rounds.clients)) if not apart or apart[k]]


class Selection:
    """Evaluates networks after each round: validation, tests for learning curves, and model selection.

    Attributes
    ----------
    elsewhere : samples of the sites of `training.select_at`, which choose the round if there are any
    watched : samples of sites on which the global network is tested for curves
    """

    def __init__(
        self,
        rounds: RoundState,
        clients: Sequence[Client],
        trainer: LocalTrainer,
        ranks: Ranks,
        elsewhere: Mapping[str, Samples],
        watched: Mapping[str, Samples],
    ) -> None:
        self.rounds, self.clients, self.trainer, self.ranks = rounds, clients, trainer, ranks
        self.elsewhere = elsewhere
        self.watched = watched
        self.training = trainer.training
        self.choice = Choice(rounds, self.training, trainer.algorithm.collaboration)

    def validate(self) -> None:
        """Evaluate every client that has validation samples, each with its own tensors, and keep the round if best.

        Clients with personal networks are evaluated with these. With samples of sites `elsewhere`, these alone count,
        and the global network is evaluated on them. Raises UserError for a loss that is not finite.
        """
        trainer, clients, metric = self.trainer, self.clients, self.choice.criterion.metric

        def local() -> list[SiteRecord]:
            here = [k for k in self._here if clients[k].val is not None]
            return [validated(trainer, clients[k], self.rounds.received(k), metric) for k in here]

        parts = self._outside(self.elsewhere, metric) if self.elsewhere else self.ranks.each(local)
        self.choice.choose(list(itertools.chain(*parts)), outside=bool(self.elsewhere))

    def watch(self) -> None:
        """Test the global network, if there is one, at the watched sites, and log it. Nothing depends on it."""
        every = self.training.watch_every
        if not self.watched or not every or self.rounds.round % every:
            return
        if self.trainer.algorithm.collaboration.has_global_model:
            self.rounds.log("test", self._outside(self.watched))

    def evaluate_training(self) -> None:
        """Log loss and accuracy of the averaged model on each client's training images, with the client's own BN.

        This is the training loss of the FedBN and FedTAN papers. The rows with split `train` are those of local steps,
        before averaging, where BN normalises by the batch under every policy. Nothing depends on this evaluation.
        """
        every = self.training.training_loss_every
        if every and self.rounds.round % every == 0:
            trainer, clients, received = self.trainer, self.clients, self.rounds.received
            parts = self.ranks.each(lambda: [averaged(trainer, clients[k], received(k)) for k in self._here])
            self.rounds.log("averaged", parts)

    @property
    def _here(self) -> Sequence[int]:
        """Positions of the clients whose local training this process does."""
        return [k for k, client in enumerate(self.clients) if client.here]

    def _outside(self, sites: Mapping[str, Samples], metric: Metric | None = None) -> list[list[SiteRecord]]:
        """Evaluate the global network at `sites`, which do not train, and return each process's list of records."""
        rounds, trainer = self.rounds, self.trainer
        gather(rounds, self.ranks)
        own = rounds.mean_own(rounds.clients, rounds.round)
        blend = self._ensemble() if trainer.algorithm.blended == "external" else None

        def local() -> list[SiteRecord]:
            records = []
            for site in list(sites)[self.ranks.rank :: self.ranks.count]:
                trainer.load(rounds.server.shared, own, rounds.clients[0].counters)
                if blend is not None:
                    trainer.answer_with(blend)
                records.append(_evaluated(trainer, site, sites[site], metric))
            return records

        return self.ranks.each(local)

    def _ensemble(self) -> Blend:
        """Return the networks of all clients that have trained, to predict together with equal weights."""
        rounds, trainer = self.rounds, self.trainer
        trained = rounds.trained(rounds.round)
        vectors = [torch.empty_like(trainer.state_vector) for _ in trained]
        for vector, k in zip(vectors, trained, strict=True):
            trainer.assemble(vector, rounds.received(k), rounds.clients[k].own)
        return Blend(vectors, [1 / len(trained)] * len(trained), "probabilities")


def validated(trainer: LocalTrainer, client: Client, received: Tensor, metric: Metric | None) -> SiteRecord:
    """Evaluate a client's network on its validation samples, given the shared tensors that it receives.

    It is the client's personal network under an algorithm that has any.
    """
    assert client.val is not None
    state = client.state if trainer.algorithm.has_personal_networks else None
    trainer.load_personal(received, client.own, client.counters, state)
    return _evaluated(trainer, client.name, client.val, metric)


def averaged(trainer: LocalTrainer, client: Client, received: Tensor) -> SiteRecord:
    """Evaluate the averaged model, with the client's own tensors, on a client's training samples.

    With `training_loss_images`, evenly spaced samples stand for all.
    """
    n = len(client.train)
    count = min(n, trainer.training.training_loss_images or n)
    rows = np.linspace(0, n - 1, count).round().astype(np.int64)
    trainer.load(received, client.own, client.counters)
    return _evaluated(trainer, client.name, client.train, rows=rows)


def _evaluated(
    trainer: LocalTrainer, site: str, samples: Samples, metric: Metric | None = None, rows: np.ndarray | None = None
) -> SiteRecord:
    """Return a record of the loaded network at `site`: loss, accuracy and value of the metric, and the seconds taken.

    `rows` are the indices of the samples that count; by default all do.
    """
    began = time.perf_counter()
    loss, accuracy, score = trainer.evaluate(samples, metric, rows)
    return SiteRecord(site, loss, accuracy, time.perf_counter() - began, score=score)
