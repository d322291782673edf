"""The federation: rounds of local training and aggregation, and the models that result.

Clients train one after another on one network. What travels is a single slice of a flat vector, and the server's mean
grows by one fused operation for each client. If several processes share the clients, each process has its own server,
and all servers make the same updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from ..addons import Addon, extended
from ..algorithms import Algorithm, Mean, Server, Training
from ..core.console import say
from ..core.errors import UserError, did_you_mean
from ..core.registry import build, validated
from ..core.rng import stream, undisturbed
from ..data.samples import example_of, shape_of
from ..nn.batchnorm import batch_norms
from ..nn.blend import Outputs
from ..nn.bn_policy import POLICIES
from ..nn.features import classifier
from ..nn.memory_format import channels_last
from ..tasks import CLASSIFICATION, Task
from . import checkpoint
from .batches import equal_steps
from .class_weights import weigh_classes
from .client import (
    Client,
    SamplesBySite,
    collect_offers,
    exchange_offers,
    give_tensors,
    open_clients,
    open_sites,
    outputs,
)
from .ledger import Traffic, totals
from .local_round import LocalRound, finish
from .local_training import LocalTrainer
from .ranks import ALONE, Ranks
from .round_state import RoundState, Selected
from .selection import Selection


class Networks(NamedTuple):
    """Networks that predict a site together: a name, a `state_dict` and a weight of each, and what is averaged."""

    names: Sequence[str]
    states: Sequence[dict[str, Tensor]]
    weights: Sequence[float]
    of: Outputs = "logits"


def _never() -> bool:
    return False


class Federation:
    """Clients that train one model together. `fedshift.Federation`, which extends it, documents the other parameters.

    Parameters
    ----------
    ranks : the processes that share the clients, each with an equal federation; by default there is only this one
    beforehand : traffic of what made the samples, such as statistics of clients; that of add-ons and of class counts is
        added here

    Attributes
    ----------
    rounds : state between two rounds: server, clients, selected round, history
    trainer : the network on which clients train in turn
    beforehand : traffic before the first round, which the ledger adds to that of the rounds
    """

    def __init__(
        self,
        model: nn.Module,
        clients: SamplesBySite,
        *,
        validation: SamplesBySite | None = None,
        watched: SamplesBySite | None = None,
        algorithm: str | dict[str, Any] | Algorithm = "fedavg",
        bn: str | None = None,
        addon: str | dict[str, Any] | Addon | None = None,
        training: Training | dict[str, Any] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        ranks: Ranks = ALONE,
        beforehand: Traffic | None = None,
        task: str | dict[str, Any] | Task = CLASSIFICATION,
    ) -> None:
        if not clients:
            raise UserError("clients", "there are none", "give at least one")
        requested: Algorithm = self._plugin("algorithm", algorithm)
        settings = training if isinstance(training, Training) else validated(Training, training or {}, "training")
        bn = bn or requested.policies[0]
        requested.require(settings, bn)
        self.algorithm = requested.canonical()
        self.task: Task = build("task", task)
        self.addon: Addon | None = self._plugin("addon", addon) if addon else None
        if self.addon:
            self.addon.require(settings)
        self.seed = seed
        self.ranks = ranks
        sites = open_sites(clients, validation or {}, watched or {}, settings, self.algorithm, self.task)
        members = open_clients(sites.train, sites.validation, settings.weights == "size", self.algorithm)
        self.beforehand = weigh_classes(members, settings, self.algorithm.collaboration)
        if beforehand:
            self.beforehand += beforehand
        if self.addon:
            self.beforehand += exchange_offers(members, self.addon, self.algorithm)
        for name in settings.epochs_at.keys() - {client.name for client in members}:
            raise UserError("training.epochs_at", f"{name!r} is not a client", did_you_mean(name, sorted(clients)))
        self.training = equal_steps(settings, [len(c.train) for c in members]) if settings.equal_steps else settings
        _report_missing_batch_norm(model, requested, bn)
        model = extended(self.algorithm, model, seed)
        self._features = features_of(model)
        model = extended(self.addon, model, seed)
        sites.require_classes(model, self.task)
        device = torch.device(device)
        self.trainer = LocalTrainer(
            model,
            self.algorithm,
            POLICIES[bn],
            self.training,
            addon=self.addon,
            seed=seed,
            device=device,
            channels_last=channels_last(settings.channels_last, model, shape_of(members[0].train), device),
            task=self.task,
        )
        self.rounds = self._open_rounds(members)
        self.selection = Selection(self.rounds, self.trainer, ranks, sites.elsewhere, sites.watched)

    def _plugin(self, kind: str, spec: Any) -> Any:
        """Return a plug-in, given its name, a mapping with `name` and settings, or itself."""
        return build(kind, spec)

    def _open_rounds(self, members: list[Client]) -> RoundState:
        """Return the state before the first round, with each client assigned to one process."""
        server = self._open_server(members)
        give_tensors(members, self.trainer, self.algorithm, self.addon, server)
        owners = self.ranks.share_out([sum(self.trainer.steps_in_phases(c.name, len(c.train))) for c in members])
        for client, owner in zip(members, owners, strict=True):
            client.here = owner == self.ranks.rank
        self._require_everyone(len(members))
        download = self.algorithm.download if self.algorithm.has_downloads else None
        return RoundState(server, members, personal=self.algorithm.has_personal_networks, download=download)

    def _open_server(self, clients: list[Client]) -> Server:
        trainer = self.trainer
        trained = trainer.trainable.stop
        shared = trainer.shared.clone()
        server = Server(shared=shared, trainable=slice(0, trained), statistics=slice(trained, len(shared)))
        server.clients = len(clients)
        server.shares = [client.share for client in clients]
        server.losses = [math.nan] * len(clients)
        server.rounds = self.training.rounds
        server.features = self._features
        server.classes = outputs(trainer.model, self.task, example_of(clients[0].train).to(trainer.device))
        server.channels = [len(layer.running_mean) for layer in trainer.batch_norms if layer.running_mean is not None]
        self.beforehand += collect_offers(clients, self.algorithm, server)
        server.state = self.algorithm.server_state(server)
        return server

    def _require_everyone(self, clients: int) -> None:
        """Raise UserError if joint steps need all processes, but a process may have no client in a round."""
        may_idle = self.ranks.count > clients or self.training.participation < 1
        if self.algorithm.joint(1) is not None and self.ranks.count > 1 and may_idle:
            problem = f"{self.algorithm.name} needs a client in each of {self.ranks.count} processes in every round"
            raise UserError("ranks", problem, "use at most one process for each client, and participation: 1")

    @property
    def server(self) -> Server:
        """State of the server."""
        return self.rounds.server

    @property
    def clients(self) -> list[Client]:
        """States of the clients, in the order of their names."""
        return self.rounds.clients

    @property
    def selected(self) -> Selected | None:
        """The round kept by model selection, if any."""
        return self.rounds.selected

    @property
    def history(self) -> list[dict[str, Any]]:
        """One dict for each round, site and split: round, site, split and the columns of `round_state.COLUMNS`."""
        return self.rounds.history

    # ---- rounds

    def run(
        self,
        rounds: int | None = None,
        *,
        after_round: Callable[[Federation], None] | None = None,
        should_stop: Callable[[], bool] = _never,
    ) -> Self:
        """Train until `rounds` (by default the training's) are done in all, or patience ends. Return this federation.

        `after_round` is called with the federation after each round. `should_stop` is called between batches; if it
        returns True, Interrupted is raised. Raises UserError if a loss is not finite, and for rounds past the end of a
        schedule that falls to zero.
        """
        if rounds is None:
            rounds = self.training.rounds
        if rounds > self.training.rounds and self.training.schedule == "cosine":
            problem = f"{rounds}, but the cosine schedule ends after {self.training.rounds}"
            raise UserError("rounds", problem, "raise training.rounds")
        while self.rounds.round < rounds and not self.exhausted:
            self.round(should_stop)
            if after_round:
                after_round(self)
        return self

    @property
    def exhausted(self) -> bool:
        """True if patience has ended."""
        patience = self.training.patience
        return bool(patience and self.selected and self.rounds.round - self.selected.round >= patience)

    def participants(self, number: int) -> list[Client]:
        """Return the clients that take part in a round, in their order: `participation` says how many.

        Raises UserError if the algorithm names another number of them, or one twice.
        """
        return [self.clients[k] for k in drawn(self.algorithm, self.server, self.training, self.seed, number)]

    def round(self, should_stop: Callable[[], bool] = _never) -> None:
        """Do one round: local training from the server's tensors, aggregation, validation.

        If this raises, the round is half done: go on from a checkpoint (`restore`), not from this object.
        """
        with undisturbed(self.trainer.device):
            self._train(should_stop)
            if self.rounds.round == self.training.rounds and any(p.finishes for p in self.algorithm.phases()):
                self.ranks.each(lambda: finish(self.trainer, self.rounds, should_stop))
                for client in self.clients:
                    client.first_round = client.first_round or self.rounds.round
        self.selection.validate()
        self.selection.evaluate_training()
        self.selection.watch()

    def _train(self, should_stop: Callable[[], bool]) -> None:
        """Train the clients that take part, and update the server."""
        server = self.server
        number = server.round + 1
        participants = self.participants(number)
        everyone = len(participants) == len(self.clients)
        # Exactly 1 where all take part, which a sum of floats need not be.
        server.participation = 1.0 if everyone else sum(client.weight for client in participants)
        server.participants = [self.clients.index(client) for client in participants]
        server.lr = self.training.rate(number)
        server.logged = {}
        local = LocalRound(self.trainer, self.rounds, participants, self.ranks)
        local.first_steps()
        records = self.ranks.each(lambda: local.run(should_stop))
        mean = Mean(self.ranks.sum(local.mean), server.trainable)
        variances = self.trainer.variances
        # Clients' variances were turned into mean squares around the means before this round; the update moves them.
        before = server.shared.clone() if variances.pooled else server.shared
        self.algorithm.update(server, mean)
        variances.pool(server.shared, before)
        for client in participants:
            client.first_round = client.first_round or number
        server.round = number
        self.rounds.log("train", records, server.logged)
        self.rounds.note_losses()

    # ---- results

    def result(self) -> Selected:
        """Return the selected round, or the last if none was selected.

        If several processes share the clients, all of them must call this method and those below it.
        """
        checkpoint.gather(self.rounds, self.ranks)
        return self.selected or self.rounds.snapshot([])

    def global_state(self) -> dict[str, Tensor]:
        """Return the `state_dict` of the global network; tensors that stay at clients have their plain mean.

        An external site gets this mean under BN policy `local`, since it has no local BN. Clients that have not
        trained yet, because only some take part in a round, do not count.
        """
        best = self.result()
        own = self.rounds.mean_own(best.clients, best.round)
        return self.trainer.named_state(best.shared, own, best.clients[0].counters)

    def client_state(self, name: str) -> dict[str, Tensor]:
        """Return the `state_dict` of the network as this client uses it: the shared tensors with the client's own.

        Under an algorithm with personal networks, it is the client's personal network, also where this predicts
        together with others (see `networks`).
        """
        return self.networks(name).states[0]

    def networks(self, name: str = "") -> Networks:
        """Return the networks that predict a client together, or without a name those of a site outside.

        Most algorithms give one. Where several predict a client, the first is the client's personal network.
        """
        best = self.result()
        names = [c.name for c in self.clients]
        if name:
            k = names.index(name)
            shared = best.received[k] if best.received else best.shared
            kept = best.clients[k]
            state = kept.state if self.rounds.personal else None
            blend = self.trainer.load_personal(shared, kept.own, kept.counters, state)
            states = [self.trainer.named(vector, kept.counters) for vector in blend.networks]
            return Networks((name, *(f"{name}/{n}" for n in range(1, len(states)))), states, blend.weights, blend.of)
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

    def ledger(self) -> dict[str, int]:
        """Return how many floats and messages have moved so far; see `ledger.totals`."""
        return totals(self.history, self.algorithm.has_downloads, self.beforehand)

    # ---- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of all tensors that the next round depends on, and of the selected round's tensors, by name."""
        checkpoint.gather(self.rounds, self.ranks)
        return checkpoint.tensors(self.rounds)

    def progress(self) -> dict[str, Any]:
        """Return everything else that a checkpoint needs, as plain data."""
        return checkpoint.progress(self.rounds)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, given what the methods `tensors` and `progress` returned."""
        checkpoint.restore(self.rounds, tensors, progress, self.trainer.device)


def drawn(algorithm: Algorithm, server: Server, training: Training, seed: int, number: int) -> list[int]:
    """Return the positions of the clients that take part in round `number`, ascending.

    Raises UserError if the algorithm names another number of clients than `participation` asks for, or one twice.
    """
    count = training.clients_in_round(server.clients)
    chosen = sorted(algorithm.sample(server, count, stream(seed, number, "participants")))
    if len(set(chosen)) != count or not set(chosen) <= set(range(server.clients)):
        problem = f"names the clients {chosen} in round {number}"
        raise UserError(f"{algorithm.name}.sample", problem, f"return {count} positions below {server.clients}")
    return chosen


def features_of(model: nn.Module) -> int:
    """Return the inputs of a network's last linear layer; 0 if it has none."""
    try:
        return classifier(model).in_features
    except UserError:
        return 0


def _report_missing_batch_norm(model: nn.Module, algorithm: Algorithm, bn: str) -> None:
    """Say which settings have no effect on a network without batch norm."""
    if batch_norms(model):
        return
    if bn != "aggregated" and algorithm.collaboration.has_global_model:
        say(f"bn: {bn!r} has no effect, since the network has no batch-norm layer")
    if algorithm.joint(1) or algorithm.freezes_statistics(1):
        say(f"algorithm: {algorithm.name} is FedAvg here, since the network has no batch-norm layer")
