"""The engine: rounds of local training and aggregation.

Clients work one after another on one workbench. What travels is a single slice of a flat vector, and the server's mean
grows by one fused operation a client. Where several processes share the clients, each has a server of its own, which
all bring forward alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..addons import Addon, extended
from ..algorithms import Algorithm, Server, Training
from ..core.console import say
from ..core.errors import UserError
from ..core.registry import build, validated
from ..core.rng import stream, undisturbed
from ..nn.batchnorm import batch_norms
from ..nn.bn_policy import POLICIES
from . import checkpoint as resume
from . import selection
from .batches import equal_steps, round_steps
from .client import Client, Given, Selected, opened, samples
from .ledger import totals
from .local_training import LocalWork
from .ranks import ALONE, Ranks
from .tally import Outcome
from .workbench import Workbench

COLUMNS = ("loss", "accuracy", "floats_down", "floats_up", "messages", "seconds")


def _never() -> bool:
    return False


class Federation:
    """Clients that train one model together.

    Parameters
    ----------
    model : any network that maps a batch to (batch, classes) logits; it is copied once and not changed
    clients : name -> `(x, y)` tensors, or `Samples`
    validation : the same for validation, for any of the clients
    watched : the same for any sites, which the global network is tested on every `training.watch_every` rounds: for
        curves, since nothing depends on it
    algorithm : a name, a mapping with `name` and settings, or an Algorithm
    bn : `aggregated`, `local`, `local_statistics` or `local_affine`; by default what the algorithm asks for
    addon : a name, a mapping with `name` and settings, or an Addon
    training : settings of the local work and of the rounds, a mapping or a Training
    seed : of everything random: batches, augmentation, dropout, who takes part
    device : where the work is done
    ranks : the processes that share the clients, each with this same federation; by default there is only this one

    The order in which clients are given changes nothing: they work in the order of their names.
    Raises UserError for an unknown algorithm, policy or setting, for a combination without meaning, and for a client
    without samples.

    Attributes
    ----------
    history : one dict a round, client and split: round, site, split, loss, accuracy, floats_down, floats_up, messages,
        seconds
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Given,
        *,
        validation: Given | None = None,
        watched: Given | None = None,
        algorithm: str | dict[str, Any] | Algorithm = "fedavg",
        bn: str | None = None,
        addon: str | dict[str, Any] | Addon | None = None,
        training: Training | dict[str, Any] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        ranks: Ranks = ALONE,
    ) -> None:
        if not clients:
            raise UserError("clients", "there are none", "give at least one")
        self.training = training if isinstance(training, Training) else validated(Training, training or {}, "training")
        named: Algorithm = build("algorithm", algorithm)
        bn = bn or named.policies[0]
        named.require(self.training, bn)
        self.algorithm = named.canonical()
        if self.training.equal_steps and not named.pools:
            self.training = equal_steps(self.training, map(len, samples(clients).values()))
        self.addon: Addon | None = build("addon", addon) if addon else None
        self.seed = seed
        if not batch_norms(model):
            if bn != "aggregated" and not named.isolated:
                say(f"bn: {bn!r} has no effect, since the network has no batch-norm layer")
            if named.joint(1) or named.freezes_statistics(1):
                say(f"algorithm: {named.name} is FedAvg here, since the network has no batch-norm layer")
        model = extended(self.addon, extended(self.algorithm, model, seed), seed)
        stays = self.addon.stays(model) if self.addon else ()
        self.bench = Workbench(model, self.algorithm, POLICIES[bn], self.training, torch.device(device), stays)
        self.server = self._open()
        self.clients = opened(clients, validation or {}, self.algorithm, self.bench, self.server)
        self.watched = samples(watched or {})
        self.ranks = ranks
        owners = ranks.share_out([round_steps(len(c.train), self.training) for c in self.clients])
        self.here = [c for c, owner in zip(self.clients, owners, strict=True) if owner == ranks.rank]
        self._require_everyone()
        self.history: list[dict[str, Any]] = []
        self.selected: Selected | None = None
        self.gathered = 0  # the last round after which all clients' tensors were in this process

    def _require_everyone(self) -> None:
        """Joint steps go through all processes: UserError where one of them may have no client in a round."""
        may_idle = self.ranks.count > len(self.clients) or self.training.participation < 1
        if self.algorithm.joint(1) is not None and self.ranks.count > 1 and may_idle:
            what = f"{self.algorithm.name} needs a client in each of {self.ranks.count} processes in every round"
            raise UserError("ranks", what, "take fewer processes, and participation: 1")

    def _open(self) -> Server:
        bench = self.bench
        trained = bench.span.stop - bench.span.start
        server = Server(
            shared=bench.flat[bench.shared].clone(),
            trainable=slice(0, trained),
            statistics=slice(trained, bench.shared.stop - bench.shared.start),
        )
        server.state = self.algorithm.server_state(server)
        return server

    # ---- rounds

    def run(
        self,
        rounds: int | None = None,
        *,
        after_round: Callable[[Federation], None] | None = None,
        should_stop: Callable[[], bool] = _never,
    ) -> Federation:
        """Train until `rounds` (default: the training's) are done in all, or patience ends.

        `after_round` is called with the federation after each round; `should_stop` is asked between batches, and
        raises Interrupted when it says so. Raises UserError where a loss is not finite, and for rounds past the end of
        a schedule that falls to zero.
        """
        rounds = self.training.rounds if rounds is None else rounds
        if rounds > self.training.rounds and self.training.schedule == "cosine":
            what = f"{rounds}, but the cosine schedule ends after {self.training.rounds}"
            raise UserError("rounds", what, "raise training.rounds")
        while self.server.round < rounds and not self.exhausted:
            self.round(should_stop)
            if after_round:
                after_round(self)
        return self

    @property
    def exhausted(self) -> bool:
        """Whether patience has ended."""
        patience = self.training.patience
        return bool(patience and self.selected and self.server.round - self.selected.round >= patience)

    def participants(self, number: int) -> list[Client]:
        """The clients that take part in a round: all, or a fraction drawn from a stream of its own."""
        count = self.training.clients_in_round(len(self.clients))
        if count == len(self.clients):
            return self.clients
        drawn = stream(self.seed, number, "participants").permutation(len(self.clients))[:count]
        return [self.clients[k] for k in sorted(drawn)]

    def round(self, should_stop: Callable[[], bool] = _never) -> None:
        """One round: clients work from the server's tensors, the server averages, clients validate.

        Where this raises, the round is half done: go on from a checkpoint (`restore`), not from this object.
        """
        with undisturbed(self.bench.device):
            self._train(should_stop)
        selection.validate(self)
        selection.watch(self)

    def _train(self, should_stop: Callable[[], bool]) -> None:
        """Local work of those who take part, and the server's update."""
        number, bench, server = self.server.round + 1, self.bench, self.server
        chosen = self.participants(number)
        server.fraction = sum(client.weight for client in chosen) if len(chosen) < len(self.clients) else 1.0
        server.lr = self.training.rate(number)
        sent = self.algorithm.broadcast(server)
        work = LocalWork(self, number, [client for client in chosen if client in self.here], sent)
        work.first_steps()
        rows = self.ranks.each(lambda: work.run(should_stop))
        mean = self.ranks.sum(work.mean)
        before = server.shared.clone() if bench.variances.pooled else server.shared
        self.algorithm.update(server, mean)
        bench.variances.pool(server.shared, before)
        server.round = number
        self.log(number, "train", rows)

    def log(self, number: int, split: str, parts: Iterable[Iterable[Outcome]]) -> None:
        """Add what each process has found in a round to the history, in the order of sites."""
        for found in sorted(itertools.chain(*parts)):
            row = {"round": number, "site": found.site, "split": split}
            self.history.append(row | {key: getattr(found, key) for key in COLUMNS})

    # ---- results

    def result(self) -> Selected:
        """The selected round, or the last where nothing was selected.

        Where several processes share the clients, this and what follows must be asked in all of them.
        """
        resume.gather(self)
        return self.selected or selection.snapshot(self, [])

    def global_state(self) -> dict[str, Tensor]:
        """The global network: what is shared, and for tensors that stay at clients, their plain mean.

        The mean over clients is what an external site gets under BN policy `local`: it has no BN of its own. Clients
        that have not trained yet, since only some take part in a round, do not count.
        """
        kept = self.result()
        return self._state(kept.shared, self.mean_own(kept.own, kept.round), kept.counters[0])

    def mean_own(self, own: Sequence[Tensor], number: int) -> Tensor:
        """The plain mean of the clients' tensors that stay, of those that have trained by that round, if any has."""
        trained = {row["site"] for row in self.history if row["split"] == "train" and row["round"] <= number}
        known = [of for client, of in zip(self.clients, own, strict=True) if client.name in trained]
        return torch.stack(known or list(own)).mean(0)

    def client_state(self, name: str) -> dict[str, Tensor]:
        """The network as that client uses it: the shared tensors with its own."""
        kept, index = self.result(), [c.name for c in self.clients].index(name)
        return self._state(kept.shared, kept.own[index], kept.counters[index])

    def _state(self, shared: Tensor, own: Tensor, counters: Tensor) -> dict[str, Tensor]:
        flat = torch.empty_like(self.bench.flat)
        self.bench.assemble(flat, shared, own)
        layout = self.bench.layout
        here = self.bench.model.state_dict()
        constants = {k: here[k].cpu().clone() for k in layout.constants}
        state = {**layout.unpack(flat), **dict(zip(layout.counters, counters.cpu().clone(), strict=True)), **constants}
        return state | {k: state[first].clone() for k, first in layout.aliases.items()}

    def ledger(self) -> dict[str, int]:
        """What has moved so far, see `ledger.totals`."""
        return totals(self.history)

    # ---- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all tensors that the next round depends on, and of the selected round's, by name."""
        return resume.tensors(self)

    def progress(self) -> dict[str, Any]:
        """What else a checkpoint needs, as plain data."""
        return resume.progress(self)

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from what `tensors` and `progress` once returned."""
        resume.restore(self, tensors, progress)
