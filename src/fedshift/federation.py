"""The engine: rounds of local training and aggregation, in one process.

Clients work one after another on one workbench. What travels is a single slice of a flat vector, and the server's mean
grows by one fused operation a client.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .algorithm import Algorithm, Local, Server
from .bn import POLICIES
from .errors import UserError, did_you_mean
from .registry import build, validated
from .samples import Samples, TensorSamples
from .training import Training
from .workbench import Workbench

Given = Mapping[str, Samples | tuple[Tensor, Tensor]]


def _never() -> bool:
    return False


@dataclass
class Client:
    """A site that trains. `own` holds the tensors that stay here, `counters` BN's integer buffers."""

    name: str
    train: Samples
    val: Samples | None
    weight: float
    own: Tensor
    counters: Tensor
    state: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Selected:
    """The round kept by model selection: the shared tensors, and each client's own in the order of clients."""

    round: int
    value: float
    shared: Tensor
    own: list[Tensor]
    counters: list[Tensor]


class Federation:
    """Clients that train one model together.

    Parameters
    ----------
    model : any network that maps a batch to (batch, classes) logits; it is copied once and not changed
    clients : name -> `(x, y)` tensors, or `Samples`
    validation : the same for validation, for any of the clients
    algorithm : a name, a mapping with `name` and settings, or an Algorithm
    bn : `aggregated`, `local`, `local_statistics` or `local_affine`
    training : settings of the local work and of the rounds, a mapping or a Training
    seed : of everything random: batches, augmentation, dropout
    device : where the work is done

    The order in which clients are given changes nothing: they work in the order of their names.
    Raises UserError for an unknown algorithm, policy or setting, and for a client without samples.

    Attributes
    ----------
    history : one dict a round, client and split: round, site, split, loss, accuracy, floats_down, floats_up, seconds
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Given,
        *,
        validation: Given | None = None,
        algorithm: str | dict[str, Any] | Algorithm = "fedavg",
        bn: str = "aggregated",
        training: Training | dict[str, Any] | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if bn not in POLICIES:
            raise UserError("bn", f"unknown BN policy {bn!r}", did_you_mean(bn, POLICIES))
        if not clients:
            raise UserError("clients", "there are none", "give at least one")
        self.algorithm: Algorithm = build("algorithm", algorithm)
        self.training = training if isinstance(training, Training) else validated(Training, training or {}, "training")
        self.seed = seed
        self.bench = bench = Workbench(model, POLICIES[bn], self.training, torch.device(device))
        trained = bench.span.stop - bench.span.start
        self.server = Server(
            shared=bench.flat[bench.shared].clone(),
            trainable=slice(0, trained),
            statistics=slice(trained, bench.shared.stop - bench.shared.start),
        )
        self.server.state = self.algorithm.server_state(self.server)
        samples = {name: _samples(given) for name, given in sorted(clients.items())}
        if empty := [name for name, given in samples.items() if not len(given)]:
            raise UserError(f"client {empty[0]!r}", "has no training samples", "leave it out")
        held = {name: _samples(given) for name, given in (validation or {}).items()}
        if lost := sorted(set(held) - set(samples)):
            raise UserError("validation", f"{lost[0]!r} is no client", did_you_mean(lost[0], samples))
        total = sum(map(len, samples.values()))
        self.clients = [
            Client(
                name=name,
                train=train,
                val=held.get(name) or None,
                weight=len(train) / total if self.training.weights == "size" else 1 / len(samples),
                own=bench.own(),
                counters=bench.counters.clone(),
                state=self.algorithm.client_state(self.server),
            )
            for name, train in samples.items()
        ]
        self.history: list[dict[str, Any]] = []
        self.selected: Selected | None = None

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
        raises Interrupted when it says so. Raises UserError where a loss is not finite.
        """
        rounds = self.training.rounds if rounds is None else rounds
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

    def round(self, should_stop: Callable[[], bool] = _never) -> None:
        """One round: every client works from the server's tensors, the server averages, clients validate.

        Where this raises, the round is half done: go on from a checkpoint (`restore`), not from this object.
        """
        number = self.server.round + 1
        sent = self.algorithm.broadcast(self.server)
        down = self.server.shared.numel() + _floats(sent)
        mean: dict[str, Tensor] = {}
        for client in self.clients:
            began = time.perf_counter()
            local = self._receive(client, sent, number)
            loss, accuracy = self.bench.train(client.train, local, self.algorithm, self.seed, should_stop)
            report = self.algorithm.report(local)
            for key, value in report.items():
                if key in mean:
                    mean[key].add_(value, alpha=client.weight)
                else:
                    mean[key] = value * client.weight
            client.own = self.bench.own()
            client.counters.copy_(self.bench.counters)
            self._log(number, client, "train", loss, accuracy, began, down, _floats(report))
        self.algorithm.update(self.server, mean)
        self.server.round = number
        self._validate(number)

    def _receive(self, client: Client, sent: dict[str, Tensor], number: int) -> Local:
        bench = self.bench
        bench.load(self.server.shared, client.own, client.counters)
        return Local(
            client=client.name,
            model=bench.model,
            start=self.server.shared,
            shared=bench.flat[bench.shared],
            params=bench.flat[bench.span],
            grad=bench.grad[bench.span],
            trainable=self.server.trainable,
            sent=sent,
            state=client.state,
            lr=self.training.rate(number),
            round=number,
        )

    def _validate(self, number: int) -> None:
        """Score every client that has validation samples, each with its own BN, and keep the best round."""
        scores = []
        for client in self.clients:
            if client.val is None:
                continue
            began = time.perf_counter()
            self.bench.load(self.server.shared, client.own, client.counters)
            loss, accuracy = self.bench.evaluate(client.val)
            self._log(number, client, "val", loss, accuracy, began)
            scores.append(accuracy)
        if self.training.select == "last" or not scores:
            return
        value = float(np.mean(scores))
        if self.selected is None or value > self.selected.value:
            self.selected = self._snapshot(value)

    def _snapshot(self, value: float) -> Selected:
        return Selected(
            round=self.server.round,
            value=value,
            shared=self.server.shared.clone(),
            own=[c.own.clone() for c in self.clients],
            counters=[c.counters.clone() for c in self.clients],
        )

    def _log(
        self,
        number: int,
        client: Client,
        split: str,
        loss: float,
        accuracy: float,
        began: float,
        down: int = 0,
        up: int = 0,
    ) -> None:
        row = {"round": number, "site": client.name, "split": split, "loss": loss, "accuracy": accuracy}
        self.history.append({**row, "floats_down": down, "floats_up": up, "seconds": time.perf_counter() - began})

    # ---- results

    def result(self) -> Selected:
        """The selected round, or the last where nothing was selected."""
        return self.selected or self._snapshot(math.nan)

    def global_state(self) -> dict[str, Tensor]:
        """The global network: what is shared, and for tensors that stay at clients, their plain mean.

        The mean over clients is what an external site gets under BN policy `local`: it has no BN of its own.
        """
        kept = self.result()
        return self._state(kept.shared, torch.stack(kept.own).mean(0), kept.counters[0])

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
        return {**layout.unpack(flat), **dict(zip(layout.counters, counters.cpu().clone(), strict=True)), **constants}

    def ledger(self) -> dict[str, int]:
        """Floats moved so far: `down` to every client (unicast), `down_broadcast` (once a round for all), and `up`."""
        rows = [r for r in self.history if r["split"] == "train"]
        first = self.clients[0].name
        return {
            "down": sum(r["floats_down"] for r in rows),
            "down_broadcast": sum(r["floats_down"] for r in rows if r["site"] == first),
            "up": sum(r["floats_up"] for r in rows),
        }

    # ---- checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all tensors that the next round depends on, and of the selected round's, by name."""
        out = {"server": self.server.shared, **{f"server/{k}": v for k, v in self.server.state.items()}}
        for c in self.clients:
            out |= {f"own/{c.name}": c.own, f"counters/{c.name}": c.counters}
            out |= {f"client/{c.name}/{k}": v for k, v in c.state.items()}
        if kept := self.selected:
            out["selected"] = kept.shared
            for c, own, counters in zip(self.clients, kept.own, kept.counters, strict=True):
                out |= {f"selected/own/{c.name}": own, f"selected/counters/{c.name}": counters}
        return {k: v.clone() for k, v in out.items()}

    def progress(self) -> dict[str, Any]:
        """What else a checkpoint needs, as plain data."""
        kept = {"round": self.selected.round, "value": self.selected.value} if self.selected else None
        return {"round": self.server.round, "selected": kept, "history": [*self.history]}

    def restore(self, tensors: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from what `tensors` and `progress` once returned."""
        here = {k: v.to(self.bench.device, copy=True) for k, v in tensors.items()}
        self.server.shared = here["server"]
        self.server.round = int(progress["round"])
        self.server.state = {k: here[f"server/{k}"] for k in self.server.state}
        for c in self.clients:
            c.own, c.counters = here[f"own/{c.name}"], here[f"counters/{c.name}"]
            c.state = {k: here[f"client/{c.name}/{k}"] for k in c.state}
        self.history = [dict(row) for row in progress["history"]]
        self.selected = None
        if kept := progress["selected"]:
            own = [here[f"selected/own/{c.name}"] for c in self.clients]
            counters = [here[f"selected/counters/{c.name}"] for c in self.clients]
            self.selected = Selected(kept["round"], kept["value"], here["selected"], own, counters)


def _samples(given: Samples | tuple[Tensor, Tensor]) -> Samples:
    return TensorSamples(*given) if isinstance(given, tuple) else given


def _floats(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() for t in tensors.values())
