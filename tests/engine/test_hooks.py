"""What hooks of an algorithm and an add-on are told and may say: offers, numbers, phases, passes, who takes part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift import Federation, Training
from fedshift.addons import Addon
from fedshift.algorithms import Algorithm, Images, Local, Mean, Phase, Server, task_loss
from fedshift.core.errors import UserError

SIZES = {"a": 6, "b": 10, "c": 4, "d": 8}


def clients() -> dict[str, tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(0)
    labels = {k: torch.ones(n).long() if k == "c" else torch.arange(n) % 2 for k, n in SIZES.items()}
    return {k: (torch.randn(n, 3, generator=g), labels[k]) for k, n in SIZES.items()}


def federation(algorithm: Any, addon: Any = None, net: nn.Module | None = None, **training: Any) -> Federation:
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return Federation(net, clients(), algorithm=algorithm, addon=addon, training={"batch_size": 4, **training})


class _Counted(Algorithm):
    """Clients send their class counts before the first round."""

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        assert len(images) == len(labels)
        return {"counts": labels.bincount(minlength=server.classes)}


def test_offers_reach_the_server_and_are_counted() -> None:
    trained = federation(_Counted())
    assert trained.server.offers["counts"].tolist() == [[3, 3, 0], [5, 5, 0], [0, 4, 0], [4, 4, 0]]
    plain = federation("fedavg").run(2).ledger()
    ours = trained.run(2).ledger()
    assert ours == plain | {"up": plain["up"] + 4 * 3, "messages": plain["messages"] + 1}


class _Uneven(Algorithm):
    """Clients send tensors of other shapes."""

    def offer(self, server: Server, images: Images, labels: Tensor) -> dict[str, Tensor]:
        return {"labels": labels}


def test_offers_of_other_shapes_are_refused() -> None:
    with pytest.raises(UserError, match=r"client 'b' and 'a' send tensors of different names or shapes"):
        federation(_Uneven())


@pytest.mark.parametrize("net", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 4))])
def test_the_server_knows_classes_features_and_shares(net: nn.Module) -> None:
    server = federation("fedavg", net=net).server
    last = net if isinstance(net, nn.Linear) else net[2]
    assert (server.classes, server.features) == (last.out_features, last.in_features)
    assert server.shares == pytest.approx([6 / 28, 10 / 28, 4 / 28, 8 / 28])


class _Told(Algorithm):
    """Two phases; the hooks note what they see."""

    def phases(self) -> tuple[Phase, ...]:
        return Phase(epochs=1), Phase(epochs=2)

    def correct(self, local: Local) -> None:
        local.logged["steps_of_1"] = local.logged.get("steps_of_1", 0) + local.phase

    def report(self, local: Local) -> dict[str, Tensor]:
        x, y = (torch.cat(parts) for parts in zip(*local.own_batches(), strict=True))
        assert torch.equal(x, clients()[local.client][0])
        assert torch.equal(y, clients()[local.client][1])
        return super().report(local)

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        server.logged["worst"] = max([0.0, *(loss for loss in server.losses if not math.isnan(loss))])


def test_phases_own_data_and_numbers() -> None:
    """Steps of the second phase: two passes of ceil(n / 4) batches. The server's number is in every row."""
    trained = federation(_Told()).run(2)
    rows = [row for row in trained.history if row["split"] == "train"]
    assert [row["log_steps_of_1"] for row in rows] == [2 * math.ceil(n / 4) for n in SIZES.values()] * 2
    assert [row["log_worst"] for row in rows[:4]] == [0.0] * 4
    assert [row["log_worst"] for row in rows[4:]] == [max(row["loss"] for row in rows[:4])] * 4


def test_own_batches_restore_training_mode() -> None:
    seen = []

    class _Modes(Algorithm):
        """Looks at the network's mode."""

        def begin(self, local: Local) -> None:
            seen.append(local.model.training)
            seen.extend(local.model.training for _ in local.own_batches())
            seen.append(local.model.training)

    federation(_Modes()).run(1)
    assert seen[:4] == [True, False, False, True]


class _Largest(Algorithm):
    """The clients with the most samples take part."""

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        return np.argsort(server.shares)[::-1][:count].tolist()


class _Worst(Algorithm):
    """The clients with the largest last losses take part; those without one come first."""

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        losses = [math.inf if math.isnan(loss) else loss for loss in server.losses]
        return np.argsort(np.negative(losses), kind="stable")[:count].tolist()


class _Scheduled(Algorithm):
    """Clients take turns."""

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        return [(server.round * count + k) % server.clients for k in range(count)]


def taking_part(trained: Federation) -> list[list[str]]:
    rounds: dict[int, list[str]] = {}
    for row in trained.history:
        rounds.setdefault(row["round"], []).append(row["site"])
    return list(rounds.values())


def test_rules_of_sampling() -> None:
    half = {"participation": 0.5, "rounds": 4}
    assert taking_part(federation(_Largest(), **half).run()) == [["b", "d"]] * 4
    assert taking_part(federation(_Scheduled(), **half).run()) == [["a", "b"], ["c", "d"]] * 2
    trained = federation(_Worst(), **half).run()
    names = taking_part(trained)
    assert names[:2] == [["a", "b"], ["c", "d"]]
    losses = {row["site"]: row["loss"] for row in trained.history if row["round"] < 3}
    assert names[2] == sorted(sorted(losses, key=lambda site: -losses[site])[:2])


def test_clients_that_are_not_drawn_do_not_train() -> None:
    trained = federation(_Largest(), participation=0.5, rounds=2).run()
    floats = {row["floats_up"] for row in trained.history}
    assert trained.ledger()["up"] == 2 * 2 * floats.pop()
    assert [client.first_round for client in trained.clients] == [None, 1, None, 1]


def test_sampling_by_losses_goes_on_after_a_resume() -> None:
    half = {"participation": 0.5, "rounds": 6}
    whole = federation(_Worst(), **half).run()
    first = federation(_Worst(), **half).run(3)
    resumed = federation(_Worst(), **half)
    resumed.restore(first.tensors(), first.progress())
    assert taking_part(resumed.run()) == taking_part(whole)


class _Odd(Algorithm):
    """Names a client twice."""

    def sample(self, server: Server, count: int, rng: np.random.Generator) -> Sequence[int]:
        return [0] * count


def test_a_client_is_drawn_once() -> None:
    with pytest.raises(UserError, match=r"sample: names the clients \[0, 0\] in round 1; return 2 positions below 4"):
        federation(_Odd(), participation=0.5).run(1)


def test_epochs_of_single_clients() -> None:
    """c passes over its data three times, and ends where a federation of three passes brings it."""
    some = federation("local", local_epochs=1, epochs_at={"c": 3}, select="last").run(1)
    one, three = (federation("local", local_epochs=n, select="last").run(1) for n in (1, 3))
    for name in SIZES:
        same = three if name == "c" else one
        assert all(torch.equal(v, same.client_state(name)[k]) for k, v in some.client_state(name).items())


def test_epochs_of_an_unknown_client_are_refused() -> None:
    with pytest.raises(UserError, match=r"training.epochs_at: 'e' is not a client"):
        federation("fedavg", epochs_at={"e": 2})
    with pytest.raises(UserError, match="local_steps both say how long"):
        federation("fedavg", epochs_at={"a": 2}, local_steps=3)


def test_epochs_at_change_no_identity_where_they_are_not_used() -> None:
    assert "epochs_at" not in Training().identity()
    assert Training(epochs_at={"a": 2}).identity()["epochs_at"] == {"a": 2}


class _Anchored(Addon):
    """A pull towards what the client saw first."""

    paper = "ours"

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"anchored_rounds": torch.zeros(1)}

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if not local.steps:
            local.state["anchored_rounds"] += 1
        return task_loss(local, x, y)


def test_an_addon_keeps_state_at_clients() -> None:
    trained = federation("scaffold", _Anchored()).run(3)
    assert [client.state["anchored_rounds"].item() for client in trained.clients] == [3] * 4
    assert all("c" in client.state for client in trained.clients)


class _Clashing(_Anchored):
    """Keeps a tensor under SCAFFOLD's name."""

    def client_state(self, server: Server) -> dict[str, Tensor]:
        return {"c": torch.zeros(1)}


def test_two_plugins_keep_no_tensor_of_one_name() -> None:
    with pytest.raises(UserError, match="scaffold keeps a tensor under this name, too"):
        federation("scaffold", _Clashing())
