"""What clients report reaches the server as a mean, or one row for each client; and a server can weight its means."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from toy import SIZES, clients, gap, network

from fedshift import Federation
from fedshift.algorithms import Algorithm, Joint, Local, Mean, Server

TRAINING = {"rounds": 4, "batch_size": 4, "select": "last"}
NUMBER = {name: float(k + 1) for k, name in enumerate(SIZES)}
SEEN: list[tuple[list[int], Tensor, Tensor]] = []


class Numbered(Algorithm):
    """Clients report a number and its square, once as a mean and once each."""

    per_client = frozenset({"each"})

    def report(self, local: Local) -> dict[str, Tensor]:
        pair = local.params.new_tensor([NUMBER[local.client], NUMBER[local.client] ** 2])
        return super().report(local) | {"each": pair, "mean": pair}

    def update(self, server: Server, mean: Mean) -> None:
        super().update(server, mean)
        SEEN.append((list(server.participants), mean["each"].clone(), mean["mean"].clone()))


class Unequal(Algorithm):
    """The server gives all weight to the last client of a round."""

    def round_weights(self, server: Server, weights: Sequence[float]) -> Sequence[float]:
        assert sum(weights) == pytest.approx(1)
        assert len(weights) == len(server.participants)
        return [*[0.0] * (len(weights) - 1), 1.0]


def with_first_step(cls: type[Algorithm], joint: bool) -> Algorithm:
    """Return the algorithm, with a joint first step of all clients if asked for."""
    hooks = {"joint": lambda self, number: Joint(gradients=True, bessel="none") if joint else None}
    return type("Stepped", (cls,), {**hooks, "__module__": __name__})()


class Evaluated(Algorithm):
    """Clients evaluate themselves before the first and after the last step of a round."""

    def begin(self, local: Local) -> None:
        SEEN_LOSSES.append((local.evaluation(), local.evaluation(validation=True)))
        assert local.model.training

    def report(self, local: Local) -> dict[str, Tensor]:
        local.evaluation()
        return super().report(local)


SEEN_LOSSES: list[tuple[tuple[float, float], tuple[float, float]]] = []


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_rows_are_in_the_order_of_clients_and_means_are_weighted(participation: float, joint: bool) -> None:
    SEEN.clear()
    training = TRAINING | {"participation": participation}
    data = {name: clients()[name] for name in "cab"}
    federation = Federation(network(), data, algorithm=with_first_step(Numbered, joint), training=training).run()
    assert len(SEEN) == 4
    for number, (participants, each, mean) in enumerate(SEEN, 1):
        names = [client.name for client in federation.participants(number)]
        assert [federation.clients[k].name for k in participants] == names
        numbers = [NUMBER[name] for name in names]
        assert each.tolist() == [[n, n**2] for n in numbers]
        shares = torch.tensor([SIZES[name] for name in names]).double()
        torch.testing.assert_close(mean, shares @ each / shares.sum(), rtol=1e-12, atol=0)
    if participation < 1:
        assert len({tuple(participants) for participants, _, _ in SEEN}) > 1
    counted = {row["floats_up"] - row["floats_down"] for row in federation.history if row["split"] == "train"}
    assert counted == {4}, "each float counts once, whichever way it reaches the server"


@pytest.mark.parametrize("joint", [False, True])
def test_weights_of_a_round_are_those_of_its_means(joint: bool) -> None:
    """Also of the means that a joint step takes layer by layer."""
    training = TRAINING | {"rounds": 1}
    unequal, equal = (with_first_step(cls, joint) for cls in (Unequal, Algorithm))
    federation = Federation(network(), clients(), algorithm=unequal, training=training).run()
    alone = Federation(network(), {"c": clients()["c"]}, algorithm=equal, training=training).run()
    assert gap({"": federation.server.shared}, {"": alone.server.shared}) < 1e-12
    plain = Federation(network(), clients(), algorithm=equal, training=training).run()
    assert gap({"": federation.server.shared}, {"": plain.server.shared}) > 1e-4


@pytest.mark.parametrize("frozen", [False, True])
def test_an_evaluation_has_no_effect_on_training(frozen: bool) -> None:
    """It is that of the received network over all samples in evaluation mode, and leaves all modes as they were."""
    SEEN_LOSSES.clear()
    hooks = {"freezes_statistics": lambda self, number, rounds: frozen, "__module__": __name__}
    evaluated, plain = (type("Plain", (cls,), hooks)() for cls in (Evaluated, Algorithm))
    x, y = clients()["a"]
    validation = {"a": (x[:5], y[:5])}
    one, two = (
        Federation(network(dropout=0.2), clients(), validation=validation, algorithm=algorithm, training=TRAINING).run()
        for algorithm in (evaluated, plain)
    )
    assert gap(one.global_state(), two.global_state()) == 0
    model = network().eval()
    for (given, held_out), (x, y) in zip(SEEN_LOSSES[:3], clients().values(), strict=True):
        with torch.no_grad():
            logits = model(x)
        loss = float(torch.nn.functional.cross_entropy(logits, y))
        accuracy = float((logits.argmax(1) == y).double().mean())
        assert given == pytest.approx((loss, accuracy), rel=1e-12)
        on_validation = (
            float(torch.nn.functional.cross_entropy(logits[:5], y[:5])),
            float((logits[:5].argmax(1) == y[:5]).double().mean()),
        )
        assert held_out == pytest.approx(on_validation if len(y) == SIZES["a"] else given, rel=1e-12)
