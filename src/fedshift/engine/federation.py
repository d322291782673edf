"""The federation: rounds of local training and aggregation, and the models that result.

Clients train one after another on one network, or several at once (`stack`). What travels is a single slice of a flat
vector, and the server's mean grows by one fused operation for each client. If several processes share the clients, each
process has its own server, and all servers make the same updates.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Traffic
from ..core.console import say
from ..core.errors import UserError, did_you_mean
from ..core.rng import undisturbed
from ..data.samples import example_of, shape_of
from ..nn.device import channels_last, wait_for
from . import checkpoint
from .client import (
    Client,
    SamplesBySite,
    float_of,
    give_tensors,
    offer_of,
    open_clients,
    open_sites,
    outputs,
    passing_on,
    put_together,
    require_classes,
    weigh_classes,
)
from .joint_step import Exchange, FirstStep
from .local_training import LocalTrainer, Networks, client_networks
from .ranks import ALONE, Ranks
from .round_state import Assignment, Selected, SiteRecord, Tally, at_home
from .selection import Selection
from .server_side import ServerRound, ServerSide, cost, drawn, report_disproportion
from .specification import Specification
from .stack import Stack, stacked

Cost = tuple[float, int, int, int, dict[str, float]]
"""What a client's round takes: seconds, floats down, floats up, messages; and the numbers that plug-ins log."""


class LocalRound:
    """Local training of this process's clients in one round.

    Parameters
    ----------
    trainer : the network on which clients train
    server_round : the server's part of the round, which gets the reports of this process's clients
    clients : all clients of the federation
    ranks : the processes that share the clients
    stack : networks on which several clients train together; None if each trains alone
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        server_round: ServerRound,
        clients: Sequence[Client],
        ranks: Ranks,
        stack: Stack | None = None,
    ) -> None:
        self.stack = stack
        self.trainer, self.server_round, self.ranks = trainer, server_round, ranks
        self.number = server_round.number
        here = [k for k in server_round.participants if clients[k].here]
        self.clients = [clients[k] for k in here]
        self.positions = here
        # Opened before any client trains: a joint step takes the first batch of each.
        self.batches = [trainer.batches(c.train, self.number, c.name) for c in self.clients]
        self.first: Sequence[FirstStep | None] = [None] * len(self.clients)
        # What each client sends, receives and takes in the joint step, beside its local training.
        self.floats = self.messages = 0
        self.seconds = 0.0

    def first_steps(self) -> None:
        """Take the joint first step of this process's clients, if the algorithm asks for one.

        All processes must call this at the same time.
        """
        trainer = self.trainer
        joint = trainer.algorithm.joint(self.number)
        if joint is None:
            return
        began = time.perf_counter()
        batches = [next(client_batches) for client_batches in self.batches]
        images = list(itertools.chain(*self.ranks.each(lambda: [len(y) for _, y in batches])))
        weights = [self.server_round.weights[k] for k in self.positions]
        if self.number == 1:
            report_disproportion(weights, [len(y) for _, y in batches], images)
        exchange = Exchange(weights, joint, images, self.ranks)
        # The tensors that travel are the same for all clients, so any client's turn serves.
        trainer.take_turn(self.clients[0], self.server_round.assignment(self.positions[0]))
        self.first = trainer.first_steps(batches, [c.own for c in self.clients], exchange)
        trainer.end_turn()
        self.floats = exchange.floats
        self.messages = exchange.messages
        wait_for(trainer.device)
        self.seconds = (time.perf_counter() - began) / len(self.clients)

    def run(self, should_stop: Callable[[], bool]) -> list[SiteRecord]:
        """Take all local steps, and return a record of each client.

        Raises UserError if a loss or a weight is not finite, and Interrupted if `should_stop` returns True between
        batches.
        """
        tally = Tally(self.number, self.trainer.task)
        costs = [*(self._alone if self.stack is None else self._together)(should_stop, tally)]
        # Losses are read after the last client, so that no client waits for the device.
        return [
            SiteRecord(client.name, *tally.means(client.name), seconds, down, up, messages, logged=logged)
            for client, (seconds, down, up, messages, logged) in zip(self.clients, costs, strict=True)
        ]

    def _alone(self, should_stop: Callable[[], bool], tally: Tally) -> Iterator[Cost]:
        """Train one client after another, and yield the `Cost` of each."""
        turns = zip(self.positions, self.clients, self.batches, self.first, strict=True)
        for position, client, batches, first in turns:
            began = time.perf_counter()
            assigned = self.server_round.assignment(position)
            with self.trainer.trained(client, assigned, batches, should_stop, tally, first) as report:
                added = self._add(position, assigned, report)
                logged = self.trainer.logged
            yield self.seconds + time.perf_counter() - began, *added, logged

    def _together(self, should_stop: Callable[[], bool], tally: Tally) -> Iterator[Cost]:
        """Train clients in groups, as many at once as the stack has rows, and yield the `Cost` of each client.

        Each client is charged an equal share of its group's time.
        """
        assert self.stack
        chunk = len(self.stack.rows)
        for start in range(0, len(self.clients), chunk):
            began = time.perf_counter()
            clients, positions = self.clients[start : start + chunk], self.positions[start : start + chunk]
            assigned = [self.server_round.assignment(position) for position in positions]
            rows = self.stack.train(clients, assigned, self.batches[start : start + chunk], should_stop, tally)
            costs = []
            for client, position, one, row in zip(clients, positions, assigned, rows, strict=True):
                with row.reported(client, one) as report:
                    costs.append((*self._add(position, one, report), row.logged))
            seconds = (time.perf_counter() - began) / len(clients)
            yield from ((seconds, *cost) for cost in costs)

    def _add(self, position: int, assigned: Assignment, report: Mapping[str, Tensor]) -> tuple[int, int, int]:
        """Add a client's report to the server's mean, and return floats down, floats up, and messages of its round.

        `position` is the client's place among all, and `assigned` the inputs of its local training.
        """
        self.server_round.add(position, report)
        return cost(assigned, report, self.floats, self.messages)


class Federation(ServerSide):
    """Clients that train one model together. `fedshift.Federation`, which extends it, documents the other parameters.

    Parameters
    ----------
    specification : network, plug-ins and settings
    ranks : the processes that share the clients, each with an equal federation; by default there is only this one
    beforehand : traffic of preparing the samples, such as exchanging statistics of clients; the traffic of add-ons and
        of class counts is added here

    Attributes
    ----------
    clients : states of the clients, in the order of their names
    """

    def __init__(
        self,
        specification: Specification,
        clients: SamplesBySite,
        *,
        validation: SamplesBySite | None = None,
        watched: SamplesBySite | None = None,
        device: torch.device | str = "cpu",
        ranks: Ranks = ALONE,
        beforehand: Traffic | None = None,
    ) -> None:
        if not clients:
            raise UserError("clients", "there are none", "give at least one")
        super().__init__(specification)
        self.ranks = ranks
        settings = specification.training
        sites = open_sites(
            clients, validation or {}, watched or {}, settings, self.algorithm, self.task, float_of(specification.model)
        )
        members = open_clients(sites.train, sites.validation, settings.weights == "size", self.algorithm)
        self.clients = members
        self._exchange_beforehand(beforehand)
        for name in settings.epochs_at.keys() - {client.name for client in members}:
            raise UserError("training.epochs_at", f"{name!r} is not a client", did_you_mean(name, sorted(clients)))
        self.training = settings.equalised(len(client.train) for client in members)
        labelled = {"client": sites.train, "validation": sites.validation | sites.elsewhere, "watched": sites.watched}
        require_classes(specification.model, self.task, labelled)
        device = torch.device(device)
        layout = channels_last(settings.channels_last, specification.model, shape_of(members[0].train), device)
        self.trainer = LocalTrainer(specification, self.training, device, layout)
        with self.trainer.arithmetic():
            self._open_rounds()
        self.selection = Selection(self.rounds, members, self.trainer, ranks, sites.elsewhere, sites.watched)

    def _exchange_beforehand(self, beforehand: Traffic | None) -> None:
        """Exchange class counts and the add-on's tensors between clients before the first round, and count the traffic.

        `beforehand` is traffic to add.
        """
        self.beforehand = weigh_classes(self.clients, self.specification.training, self.algorithm.collaboration)
        if beforehand:
            self.beforehand += beforehand
        if self.addon:
            offers = {client.name: at_home(self.addon.offer(client.train)) for client in self.clients}
            for client in self.clients:
                client.offers = self.algorithm.collaboration.heard(client.name, offers)
            self.beforehand += passing_on(offers, self.algorithm)

    def _open_rounds(self) -> None:
        """Set the state of server and clients before the first round, and assign each client to one process."""
        clients, trainer = self.clients, self.trainer
        classes = outputs(trainer.model, self.task, example_of(clients[0].train).to(trainer.device))
        server = self._new_server(clients, classes)
        offers = {client.name: offer_of(client.train, self.algorithm, server) for client in clients}
        self.beforehand += put_together(offers, self.algorithm, server)
        server.state = self.algorithm.server_state(server)
        give_tensors(clients, trainer, self.algorithm, self.addon, server)
        owners = self.ranks.share_out([trainer.steps_in_round(c.name, len(c.train)) for c in clients])
        for client, owner in zip(clients, owners, strict=True):
            client.here = owner == self.ranks.rank
        self._require_everyone(len(clients))
        self.rounds = self._round_state(server, clients)

    def _require_everyone(self, clients: int) -> None:
        """Raise UserError if joint steps need all processes, but a process may have no client in a round."""
        may_idle = self.ranks.count > clients or self.training.participation < 1
        if self.algorithm.joint(1) is not None and self.ranks.count > 1 and may_idle:
            problem = f"{self.algorithm.name} needs a client in each of {self.ranks.count} processes in every round"
            raise UserError("ranks", problem, "use at most one process for each client, and participation: 1")

    @functools.cached_property
    def _stack(self) -> Stack | None:
        """The networks on which this process's clients train together, or None if they train one after another."""
        if not self.training.stacked:
            return None
        here = [client for client in self.clients if client.here]
        made = stacked(self.trainer, here)
        if isinstance(made, str):
            say(f"training.stacked: clients train one after another, since {made}")
            return None
        say(f"training.stacked: up to {len(made.rows)} clients take each local step together")
        return made

    # ---- rounds

    def participants(self, number: int) -> list[Client]:
        """Return the clients that take part in round `number`, in the order of names; `participation` says how many.

        Raises UserError if the algorithm names another number of clients, or one twice.
        """
        return [self.clients[k] for k in drawn(self.algorithm, self.server, self.training, self.seed, number)]

    def round(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Do one round: local training from the server's tensors, aggregation, validation.

        If this raises, the round is half done: go on from a checkpoint (`restore`), not from this object.
        """
        with self.trainer.arithmetic():
            with undisturbed(self.trainer.device):
                self._train(should_stop)
                if self.finishes:
                    self.ranks.each(lambda: self._finish(should_stop))
                    self._note_finish()
            self.selection.validate()
            self.selection.evaluate_training()
            self.selection.watch()

    def _train(self, should_stop: Callable[[], bool]) -> None:
        """Train the clients that take part, update the server, and log the round."""
        server_round = self._begin_round()
        local = LocalRound(self.trainer, server_round, self.clients, self.ranks, self._stack)
        local.first_steps()
        records = self.ranks.each(lambda: local.run(should_stop))
        server_round.close(self.trainer.variances, self.ranks.sum(server_round.mean))
        self.rounds.log("train", records, self.server.logged)

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        """Train the phases that follow the last round, at each client of this process. Nothing is sent."""
        broadcast = self.algorithm.broadcast(self.server)
        for k, client in enumerate(self.clients):
            if client.here:
                self.trainer.finish(client, self.rounds.assignment(k, broadcast), should_stop)

    # ---- results

    def result(self) -> Selected:
        """Return the selected round, or the last if none was selected.

        If several processes share the clients, all of them must call this method, and likewise `global_state`,
        `client_state`, `networks` and `tensors`.
        """
        checkpoint.gather(self.rounds, self.ranks)
        return self.best()

    def global_state(self) -> dict[str, Tensor]:
        """Return the `state_dict` of the global network; tensors that stay at clients have their unweighted mean.

        An external site gets this mean under BN policy `local`, since it has no local BN. Clients that have not trained
        yet, because only some take part in a round, do not count.
        """
        best = self.result()
        own = self.rounds.mean_own(best.clients, best.round)
        return self.trainer.named_state(best.shared, own, best.clients[0].counters)

    def client_state(self, name: str) -> dict[str, Tensor]:
        """Return the `state_dict` of the network of client `name`: the shared tensors with the client's own.

        Under an algorithm with personal networks, it is the client's personal network, also where this predicts
        together with others (see `networks`).
        """
        return self.networks(name).states[0]

    def networks(self, name: str = "") -> Networks:
        """Return the networks that predict the client `name` or, without a name, a site outside of the federation.

        Most algorithms give one. Where several predict a client together, the first is the client's personal network.
        """
        best = self.result()
        names = [c.name for c in self.clients]
        if name:
            k = names.index(name)
            shared = best.received_by(k)
            return client_networks(self.trainer, name, shared, best.clients[k])
        if self.algorithm.blended != "external":
            return Networks((name,), [self.global_state()], [1.0])
        trained = [names[k] for k in self.rounds.trained(best.round)]
        states = [self.client_state(client) for client in trained]
        return Networks(tuple(trained), states, [1 / len(trained)] * len(trained), "probabilities")

    @property
    def own_names(self) -> list[str]:
        """Names of the tensors of `client_state` that a client does not share with the global network."""
        names = [*self.trainer.layout.places, *self.trainer.layout.counters, *self.trainer.layout.aliases]
        return names if self.rounds.personal else self.trainer.own_names

    # ---- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors that the next round depends on, and of the selected round's tensors, by name."""
        checkpoint.gather(self.rounds, self.ranks)
        return checkpoint.tensors(self.rounds)

    def progress(self) -> dict[str, Any]:
        """Return the part of a checkpoint that is no tensor, as plain data for JSON."""
        return checkpoint.progress(self.rounds)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Set the state to that of a checkpoint, given what the methods `tensors` and `progress` returned."""
        checkpoint.restore(self.rounds, tensors, progress, self.trainer.device)
