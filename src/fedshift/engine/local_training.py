"""What the clients of this process do in one round, one after another on the federation's workbench."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from ..algorithms import cross_entropy
from ..core.console import say
from .client import Client, at_home
from .joint_step import Exchange, joint_step
from .tally import Outcome, Tally
from .workbench import FirstStep, Work

if TYPE_CHECKING:
    from .federation import Federation


class LocalWork:
    """The local work of one round, of the clients `here`, from what the server has `sent` besides the shared tensors.

    `mean` is what they report, each by its weight: this process's part of the mean over all clients.
    """

    def __init__(self, federation: Federation, number: int, here: Sequence[Client], sent: dict[str, Tensor]) -> None:
        self.federation, self.number, self.here, self.sent = federation, number, here, sent
        self.weights = [client.weight / federation.server.fraction for client in here]
        self.batches = [federation.bench.batches(c.train, federation.seed, number, c.name) for c in here]
        self.mean: dict[str, Tensor] = {}
        self.first: Sequence[FirstStep | None] = [None] * len(here)
        self.floats = self.messages = 0
        self.seconds = 0.0

    def first_steps(self) -> None:
        """Take the first step, if the algorithm asks for a joint one: all processes at the same time."""
        joint = self.federation.algorithm.joint(self.number)
        if joint is None:
            return
        began = time.perf_counter()
        bench, server, ranks = self.federation.bench, self.federation.server, self.federation.ranks
        given = [next(b) for b in self.batches]
        images = list(itertools.chain(*ranks.each(lambda: [len(y) for _, y in given])))
        if self.number == 1 and not np.allclose(self.weights, [len(y) / sum(images) for _, y in given]):
            say(
                "joint step: clients' weights are not in proportion to their batches, so that its gradient is not that "
                "of the union of batches; with equal batches, say weights: uniform"
            )
        bench.load(server.shared, self.here[0].own, self.here[0].counters)
        exchange = Exchange(self.weights, joint, images, ranks)
        self.first = joint_step(bench, self.work(self.here[0]), given, [c.own for c in self.here], exchange)
        self.floats, self.messages = exchange.floats, exchange.messages
        self.seconds = (time.perf_counter() - began) / len(self.here)

    def run(self, should_stop: Callable[[], bool]) -> list[Outcome]:
        """All local steps; returns what came of them at each client.

        Raises UserError where a loss or a weight is not finite, Interrupted where `should_stop` says so between
        batches.
        """
        bench, server = self.federation.bench, self.federation.server
        tally, moved = Tally(self.number), dict[str, tuple[float, int, int, int]]()
        for client, weight, given, first in zip(self.here, self.weights, self.batches, self.first, strict=True):
            began = time.perf_counter()
            bench.load(server.shared, client.own, client.counters)
            work = self.work(client)
            bench.train(work, given, should_stop, tally, first)
            report = self.federation.algorithm.report(work)
            bench.variances.gather(work.shared, server.shared)
            self._add(report, weight)
            client.own, client.state = bench.own(), at_home(work.state)
            client.counters.copy_(bench.counters)
            down, up = server.shared.numel() + _floats(self.sent) + self.floats, _floats(report) + self.floats
            seconds = self.seconds + time.perf_counter() - began
            moved[client.name] = seconds, down, up, self.messages + bool(down)
        return [
            Outcome(site, *tally.means(site), seconds, down, up, messages)
            for site, (seconds, down, up, messages) in moved.items()
        ]

    def _add(self, report: Mapping[str, Tensor], weight: float) -> None:
        for key, value in report.items():
            if key in self.mean:
                self.mean[key].add_(value, alpha=weight)
            else:
                self.mean[key] = value * weight

    def work(self, client: Client) -> Work:
        """The local work of one client, with its own state on the device."""
        federation, bench = self.federation, self.federation.bench
        return Work(
            bench=bench,
            algorithm=federation.algorithm,
            samples=client.train,
            seed=federation.seed,
            client=client.name,
            share=client.share,
            clients=len(federation.clients),
            model=bench.model,
            start=federation.server.shared,
            whole=bench.flat,
            shared=bench.shared_part,
            params=bench.shared_params,
            grad=bench.shared_grad,
            all_params=bench.params,
            all_grad=bench.grad,
            trainable=federation.server.trainable,
            sent=self.sent,
            state={k: v.to(bench.device) for k, v in client.state.items()},
            lr=federation.server.lr,
            momentum=federation.training.momentum,
            round=self.number,
            objective=federation.addon.loss if federation.addon else cross_entropy,
            autocast=bench.autocast,
        )


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
