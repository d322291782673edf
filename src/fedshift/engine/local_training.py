"""Local training: the work of this process's clients in one round, one client after another, on one network."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ..addons import Addon, home_names
from ..algorithms import Algorithm, Blend, Local, Phase, Training, cross_entropy
from ..core.console import say
from ..core.errors import Interrupted
from ..core.rng import Draws, generator_state, reseed, seed_of, set_generators, stream, torch_stream, undisturbed
from ..data.samples import Samples, labels_of
from ..nn.batchnorm import untracked
from ..nn.bn_policy import BNPolicy
from .batches import batch_indices, batch_stream, phase_steps
from .client import Client, at_home
from .flat_network import Batch, FlatNetwork
from .joint_step import Exchange, FirstStep, joint_step
from .optimiser import SGD, Adam, optimiser
from .ranks import Ranks
from .read_ahead import read_ahead, wait_for
from .round_state import RoundState, SiteRecord
from .tally import Tally

LARGE = 100_000
"""Average number of floats in a tensor above which memory limits the speed of a step."""
HARMLESS = frozenset(
    {
        *("canonical", "require", "extend", "shared", "stays", "weights", "server_state", "client_state", "joint"),
        *(
            "broadcast",
            "download",
            "round_weights",
            "freezes_statistics",
            "begin",
            "loss",
            "personal",
            "report",
            "update",
        ),
    }
)
"""Hooks of an algorithm that it may override while each parameter has a gradient tensor of its own."""


def gradients_together(algorithm: Algorithm) -> bool:
    """Return whether a step's gradients must lie in one vector, because a hook of the algorithm may read or change it.

    Only hooks that are known to be harmless are exempt, so that a new hook is safe until it is named in `HARMLESS`.
    """
    hooks = [name for name, hook in vars(Algorithm).items() if callable(hook) and not name.startswith("_")]
    return any(getattr(type(algorithm), name) is not getattr(Algorithm, name) for name in hooks if name not in HARMLESS)


class LocalTrainer(FlatNetwork, Local):
    """The network on which clients train in turn, as the hooks of an algorithm see it.

    `take_turn` makes it the local training of one client, and replaces everything that belongs to that client alone.
    """

    samples: Samples
    validation: Samples | None

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        policy: BNPolicy,
        training: Training,
        *,
        addon: Addon | None = None,
        seed: int = 0,
        device: torch.device | None = None,
        channels_last: bool = False,
    ) -> None:
        stays = home_names(addon, algorithm, model)
        super().__init__(model, algorithm, policy, training, device or torch.device("cpu"), stays, channels_last)
        self.algorithm, self.seed, self.momentum = algorithm, seed, training.momentum
        self.objective = addon.loss if addon else cross_entropy
        self._leaves = [(p, p.grad) for p in self.model.parameters() if p.requires_grad]
        large = len(self.all_grad) > LARGE * len(self._leaves)
        self._together = not large or gradients_together(algorithm) or training.clip_norm is not None
        self._must_be_finite = self._finite_tensors()
        private, end = self.layout.private.stop, self.layout.trainable.stop
        self._spans = {"all": slice(0, end), "home": slice(0, private), "rest": slice(private, end)}
        self.end_turn()

    # ---- whose turn it is

    def take_turn(self, client: Client, rounds: RoundState, broadcast: Mapping[str, Tensor]) -> None:
        """Load a client's tensors, and everything that hooks may use in its local training of the next round."""
        self.end_turn()
        received = rounds.received(client)
        self.load(received, client.own, client.counters)
        self.client, self.share, self.clients = client.name, client.share, len(rounds.clients)
        self.samples, self.validation = client.train, client.val
        self.round, self.lr = rounds.round + 1, rounds.server.lr
        self.received, self.broadcast = received, broadcast
        self.state = {k: v.to(self.device) for k, v in client.state.items()}
        self.offers = client.offers
        weights = client.class_weights
        self.class_weights = None if weights is None else weights.to(self.state_vector)

    def load_personal(
        self, shared: Tensor, own: Tensor, counters: Tensor, state: Mapping[str, Tensor] | None = None
    ) -> Blend:
        """Load what a client is scored with, from the tensors that it uses and those of the algorithm, and return it.

        The first vector of the `Blend` becomes the state of the network.
        """
        self.load(shared, own, counters)
        if state is None:
            return Blend([self.state_vector], [1.0])
        self.state = {k: v.to(self.device) for k, v in state.items()}
        scored = self.algorithm.personal(self)
        blend = scored if isinstance(scored, Blend) else Blend([scored], [1.0])
        blend = replace(blend, networks=[vector.clone() for vector in blend.networks])
        self.answer_with(blend)
        return blend

    def end_turn(self) -> None:
        """Forget what a client's turn has left, except its tensors."""
        self.scratch, self.networks, self.state, self.broadcast = {}, {}, {}, {}
        self.steps, self.finishing = 0, False
        self._slots: dict[str, SGD | Adam] = {}
        self._extra: Iterator[Batch] | None = None

    @property
    def phases(self) -> list[Phase]:
        """The phases of this turn: those of a round, or those that follow after the last round."""
        return [phase for phase in self.algorithm.phases() if phase.finishes is self.finishing]

    @property
    def key(self) -> tuple[int, int, str]:
        """Key of everything random in this client's local training: seed, round and client."""
        return self.seed, self.round, self.client

    # ---- what hooks may ask for

    def draw(self) -> Batch:
        """Return another batch of the client's data; see `Local.draw`."""
        if self._extra is None:
            self._extra = self.batches(self.samples, *self.key, purpose="extra ", endless=True)
        return next(self._extra)

    def full_gradient(self) -> Tensor:
        """Return the gradient over all the client's data; see `Local.full_gradient`."""
        before, total = self.all_grad.clone(), torch.zeros_like(self.grad)
        self.mode(train=True)
        order = torch.randperm(len(self.samples), generator=torch_stream(*self.key, "full gradient")).numpy()
        with self.untracked():
            for index in batch_indices(order, self.training.batch_size):
                self.all_grad.zero_()
                self.algorithm.backward(self, *self.to_device(*self.samples.batch(index)))
                total.add_(self.grad, alpha=len(index) / len(self.samples))
        self.all_grad.copy_(before)
        return total

    def evaluation(self, validation: bool = False) -> tuple[float, float]:
        """Return mean cross-entropy and accuracy over all the client's samples; see `Local.evaluation`."""
        samples = self.validation if validation and self.validation is not None else self.samples
        train, frozen = self.model.training, self._frozen_statistics
        loss, accuracy, _ = self.evaluate(samples)
        self.mode(train, frozen)
        return loss, accuracy

    def untracked(self) -> AbstractContextManager[None]:
        """Return a context that leaves running statistics unchanged; see `Local.untracked`."""
        return untracked(self.model)

    def class_counts(self, classes: int) -> Tensor:
        """Return the number of the client's samples of each class; see `Local.class_counts`."""
        return torch.bincount(labels_of(self.samples), minlength=classes).to(self.device)

    @contextmanager
    def holding(self, state_vector: Tensor, draws: Draws | None = None) -> Iterator[None]:
        """Let the network hold the tensors of `state_vector` inside the context; see `Local.holding`."""
        self.settle()
        before, counters = self.state_vector.clone(), self.counters.clone()
        self.state_vector.copy_(state_vector)
        with undisturbed(self.device):
            if draws is not None:
                set_generators(draws, self.device)
            yield
        self.settle()
        state_vector.copy_(self.state_vector)
        self.state_vector.copy_(before)
        self.counters.copy_(counters)

    def next_draws(self) -> Draws:
        """Return the state of the generators of dropout; see `Local.next_draws`."""
        return generator_state(self.device)

    def descend(self, slot: str, params: Tensor, grad: Tensor) -> None:
        """Move `params` by one step of the client's optimiser along `grad`; see `Local.descend`."""
        if self.training.clip_norm is not None:
            clipped = params.detach()
            clipped.grad = grad
            clip_grad_norm_(clipped, self.training.clip_norm)
        if slot not in self._slots:
            self._slots[slot] = optimiser(self.training, [params])
        self._slots[slot].step([grad], self.lr)

    # ---- local steps

    def turn(self, client: Client, number: int) -> Turn:
        """Return the batches of a client's local training in a round, without reading any, and the seed of dropout."""
        key = self.seed, number, client.name
        return Turn(self.batches(client.train, *key), seed_of(*key, "dropout"))

    def batches(self, samples: Samples, *key: object, purpose: str = "", endless: bool = False) -> Iterator[Batch]:
        """Return the batches of one client's round, on the device; all random draws depend on `key` and `purpose`."""
        order = torch_stream(*key, f"{purpose}batches")
        augmentation = stream(*key, f"{purpose}augmentation") if samples.random else None
        indices = batch_stream(len(samples), self.training, order)
        steps = None if endless else sum(self.steps_in_phases(samples))
        batches = (self.to_device(*samples.batch(index, augmentation)) for index in itertools.islice(indices, steps))
        return batches if endless else read_ahead(batches, self.device)

    def steps_in_phases(self, samples: Samples) -> list[int]:
        """Return the number of local steps in each phase of a client's round."""
        return phase_steps(len(samples), self.training, self.phases)

    def _parts(self) -> Iterator[_Part]:
        """Yield what each local step of the current client trains; each phase has its own optimiser."""
        for phase, steps in zip(self.phases, self.steps_in_phases(self.samples), strict=True):
            span = self._spans[phase.trains]
            leaves: list[Tensor] = [p for p, _ in self._leaves]
            params = [self.all_params[span]] if self._together else leaves
            yield from itertools.repeat(self._part(params, span, phase.freezes_statistics), steps)

    def train(
        self, turn: Turn, should_stop: Callable[[], bool], tally: Tally, first: FirstStep | None = None
    ) -> dict[str, Tensor]:
        """Take the current client's local steps of one round, and return what the algorithm reports.

        `first` is the first step if all clients took it together. This seeds torch's default generators: call it inside
        `rng.undisturbed`. Raises UserError if a loss is not finite, and Interrupted if `should_stop` returns True
        between batches; `tally` tells later of a weight that is not finite after the last step.
        """
        algorithm, parts = self.algorithm, self._parts()
        frozen = algorithm.freezes_statistics(self.round)
        self.mode(train=True, frozen_statistics=frozen)
        reseed(turn.dropout, self.device)
        algorithm.begin(self)
        if first:
            self.state_vector[self.layout.statistics] = first.statistics
            self.counters.add_(first.ticks)
            self.all_grad.copy_(first.grad)
            span = next(parts).span
            self._step(self._part([self.all_params[span]], span), [self.all_grad[span]])  # as in the reference code
            tally.add(self.client, first.logits, first.y)
        try:
            for (x, y), part in zip(turn.batches, parts, strict=True):
                if should_stop():
                    raise Interrupted
                self.mode(train=True, frozen_statistics=frozen or part.frozen_statistics)
                self._clear_gradient()
                logits = algorithm.gradient(self, x, y)
                self._step(part, self._gradients(part))
                tally.add(self.client, logits, y)
        finally:
            for parameter, view in () if self._together else self._leaves:
                parameter.grad = view
        self.settle()
        tally.add_weights(self.client, self._must_be_finite)
        return algorithm.report(self)

    def _finite_tensors(self) -> list[Tensor]:
        """Return the tensors that must stay finite: all floats except buffers of modules other than batch norm.

        Such a buffer may be a mask of -inf. If there is no such buffer, all floats are one tensor.
        """
        known = {id(buffer) for layer in self.batch_norms for buffer in layer.buffers()}
        tracked = [view for _, _, view in self.buffers if id(view) in known and view.is_floating_point()]
        complete = sum(view.numel() for view in tracked) == self.layout.statistics.stop - self.layout.statistics.start
        return [self.state_vector] if complete else [self.all_params, *tracked]

    def _clear_gradient(self) -> None:
        """Clear the gradient before a pass: set the one vector to zero, or drop each parameter's gradient.

        Dropping gradients avoids a pass over all of them; one vector avoids an update for each tensor.
        """
        if self._together:
            self.all_grad.zero_()
        else:
            for parameter, _ in self._leaves:
                parameter.grad = None

    def _gradients(self, part: _Part) -> list[Tensor]:
        if self._together:
            return [self.all_grad[part.span]]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in part.params]

    def _part(self, params: list[Tensor], span: slice, frozen_statistics: bool = False) -> _Part:
        """Return a part of local training with an optimiser of its own."""
        return _Part(params, span, optimiser(self.training, params), frozen_statistics)

    def _step(self, part: _Part, grads: list[Tensor]) -> None:
        """Take one step along the gradients, after the algorithm has corrected them, and they were clipped."""
        self.algorithm.correct(self)
        if part.span != self._spans["all"]:  # what rests enters no norm of a gradient
            self.all_grad[: part.span.start] = self.all_grad[part.span.stop :] = 0
        if self.training.clip_norm is not None:
            clip_grad_norm_(self.all_params, self.training.clip_norm)
        part.optimiser.step(grads, self.lr)
        self.steps += 1

    def leave(self, client: Client) -> None:
        """Give a client what stays there between rounds, and end its turn."""
        client.own, client.state = self.own(), at_home(self.state)
        if self.layout.counters:
            client.counters.copy_(self.counters)
        self.end_turn()


class Turn(NamedTuple):
    """The batches of one client's local training in a round, and the seed of its dropout."""

    batches: Iterator[Batch]
    dropout: int


class _Part(NamedTuple):
    """A part of local training: its parameters, their slice of all that is trained, an optimiser, and how BN acts."""

    params: list[Tensor]
    span: slice
    optimiser: SGD | Adam
    frozen_statistics: bool = False


def finish(trainer: LocalTrainer, rounds: RoundState, should_stop: Callable[[], bool]) -> None:
    """Train what follows after the last round, at each client of this process, from the tensors that it receives.

    Nothing is sent: only what stays at the client changes. Raises as `LocalRound.run` does.
    """
    tally, broadcast = Tally(rounds.round), trainer.algorithm.broadcast(rounds.server)
    for client in rounds.here:
        trainer.take_turn(client, rounds, broadcast)
        trainer.finishing = True
        trainer.train(trainer.turn(client, trainer.round), should_stop, tally)
        tally.read()
        trainer.leave(client)


class LocalRound:
    """Local training of this process's clients in one round, given all clients that take part.

    Attributes
    ----------
    mean : sum of the clients' reports times their weights: this process's part of the mean over all clients; for
        tensors that are not averaged, a table with the rows of this process's clients, and zeros elsewhere
    """

    def __init__(self, trainer: LocalTrainer, rounds: RoundState, participants: Sequence[Client], ranks: Ranks) -> None:
        self.trainer, self.rounds, self.participants, self.ranks = trainer, rounds, participants, ranks
        self.clients = [client for client in participants if client.here]
        self.broadcast = trainer.algorithm.broadcast(rounds.server)
        weights = [client.weight / rounds.server.participation for client in participants]
        weights = list(trainer.algorithm.round_weights(rounds.server, weights))
        self.weights = [weight for client, weight in zip(participants, weights, strict=True) if client.here]
        number = rounds.round + 1
        self.turns = [trainer.turn(client, number) for client in self.clients]
        self.mean: dict[str, Tensor] = {}
        self.first: Sequence[FirstStep | None] = [None] * len(self.clients)
        self.floats = self.messages = 0
        self.seconds = 0.0

    def first_steps(self) -> None:
        """Take the first step, if the algorithm asks for a joint one: all processes at the same time."""
        trainer, number = self.trainer, self.rounds.round + 1
        joint = trainer.algorithm.joint(number)
        if joint is None:
            return
        began = time.perf_counter()
        batches = [next(turn.batches) for turn in self.turns]
        images = list(itertools.chain(*self.ranks.each(lambda: [len(y) for _, y in batches])))
        if number == 1 and not np.allclose(self.weights, [len(y) / sum(images) for _, y in batches]):
            say(
                "joint step: the clients' weights are not in proportion to their batches. Its gradient is not that of "
                "the union of batches; with equal batches, set weights: uniform"
            )
        exchange = Exchange(self.weights, joint, images, self.ranks)
        trainer.take_turn(self.clients[0], self.rounds, self.broadcast)
        objective = functools.partial(trainer.algorithm.loss, trainer)
        key = (trainer.seed, number, "joint dropout")
        self.first = joint_step(trainer, objective, batches, [c.own for c in self.clients], exchange, key)
        trainer.end_turn()
        self.floats, self.messages = exchange.floats, exchange.messages
        wait_for(trainer.device)
        self.seconds = (time.perf_counter() - began) / len(self.clients)

    def run(self, should_stop: Callable[[], bool]) -> list[SiteRecord]:
        """Take all local steps, and return a record of each client.

        Raises UserError if a loss or a weight is not finite, and Interrupted if `should_stop` returns True between
        batches.
        """
        tally, costs = Tally(self.rounds.round + 1), dict[str, tuple[float, int, int, int]]()
        for client, weight, turn, first in zip(self.clients, self.weights, self.turns, self.first, strict=True):
            costs[client.name] = self._train(client, weight, turn, first, should_stop, tally)
        return [
            SiteRecord(site, *tally.means(site), seconds, down, up, messages)
            for site, (seconds, down, up, messages) in costs.items()
        ]

    def _train(
        self,
        client: Client,
        weight: float,
        turn: Turn,
        first: FirstStep | None,
        should_stop: Callable[[], bool],
        tally: Tally,
    ) -> tuple[float, int, int, int]:
        """Train one client, and return seconds, floats down, floats up and messages."""
        began, trainer, shared = time.perf_counter(), self.trainer, self.rounds.server.shared
        trainer.take_turn(client, self.rounds, self.broadcast)
        report = trainer.train(turn, should_stop, tally, first)
        trainer.variances.gather(trainer.shared, shared)
        self._add(report, client, weight)
        trainer.leave(client)
        down, up = shared.numel() + _floats(self.broadcast) + self.floats, _floats(report) + self.floats
        return self.seconds + time.perf_counter() - began, down, up, self.messages + bool(down)

    def _add(self, report: Mapping[str, Tensor], client: Client, weight: float) -> None:
        for key, value in report.items():
            if key in self.trainer.algorithm.per_client:
                if key not in self.mean:
                    self.mean[key] = value.new_zeros(len(self.participants), *value.shape)
                self.mean[key][self.participants.index(client)] = value
            elif key in self.mean:
                self.mean[key].add_(value, alpha=weight)
            else:
                self.mean[key] = value * weight


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
