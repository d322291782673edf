"""Clients that take their local steps together: the same results as one after another, or a reason why not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from toy import LARGE, NORMS, clients, differing, gap, network, softmax

from fedshift import Federation, Training, UserError
from fedshift.algorithms import Algorithm, Local
from fedshift.contract.fixtures import FEATURES, VECTORS, outlined, outlining_network
from fedshift.core.errors import Interrupted
from fedshift.core.registry import discover
from fedshift.engine import stack

SIZES = {"a": 13, "b": 40, "c": 9, "d": 40, "e": 8, "f": 13, "g": 31, "h": 17}
SETTINGS = {"rounds": 10, "batch_size": 8, "lr": 0.02, "select": "last"}
TOGETHER = "training.stacked: up to 8 clients take each local step together\n"


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together in all steps in which three clients have batches of one size, whether or not that is faster."""
    monkeypatch.setattr(stack, "FEWEST", 3)


def vector_network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Without the bias before batch norm, whose gradient is zero but for rounding: Adam would make steps of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).to(dtype)


def vectors(dtype: torch.dtype = torch.float64, sizes: dict[str, int] = SIZES) -> dict[str, tuple[Tensor, Tensor]]:
    """Clients whose inputs have mean 0 and variance 1, so that training does not enlarge rounding."""
    given = clients(sizes, shape=(FEATURES,))
    return {name: (((x - x.mean()) / x.std()).to(dtype), y) for name, (x, y) in given.items()}


def federation(stacked: Any = True, model: nn.Module | None = None, data: Any = None, **options: Any) -> Federation:
    model = model or vector_network()
    data = data or vectors(next(model.parameters()).dtype)
    training = SETTINGS | options.pop("training", {}) | {"stacked": stacked}
    return Federation(model, data, training=training, **options)


def apart(one: Federation, two: Federation) -> float:
    """The largest difference between global and personal networks, relative to the larger of 1 and the size."""
    names = [client.name for client in one.clients]
    pairs = [(one.global_state(), two.global_state()), *((one.client_state(n), two.client_state(n)) for n in names)]
    return max(gap(first, second) for first, second in pairs)


def alone_and_together(**options: Any) -> float:
    return apart(federation(False, **options).run(), federation(True, **options).run())


# ---- equal results


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "fedprox", "scaffold", "feddyn", "fednova", "fedavgm", "fedadam", "fedbn", "silobn", "feddc"],
)
def test_ten_rounds_together_are_ten_rounds_one_after_another(
    algorithm: str, dtype: torch.dtype, bound: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert alone_and_together(model=vector_network(dtype), algorithm=algorithm) <= bound
    assert capsys.readouterr().err == TOGETHER


def test_a_round_by_hand() -> None:
    """Softmax regression of four clients with 3, 3, 3 and 5 images: one step each, then their mean by size."""
    rng = np.random.default_rng(0)
    data = {k: (rng.normal(size=(n, 2)), rng.integers(0, 3, n)) for k, n in {"a": 3, "b": 3, "c": 3, "d": 5}.items()}
    model = nn.Linear(2, 3, dtype=torch.float64)
    weight, mean = model.weight.detach().numpy().copy(), np.zeros((3, 2))
    for x, y in data.values():
        logits = x @ weight.T + model.bias.detach().numpy()
        # The gradient of the mean loss, times n / 14.
        mean += (weight - 0.1 * (softmax(logits) - np.eye(3)[y]).T @ x / len(y)) * len(y) / 14
    trained = Federation(model, data, training={"rounds": 1, "lr": 0.1, "batch_size": 8, "stacked": True}).run()
    np.testing.assert_allclose(trained.global_state()["weight"], mean, rtol=1e-12)


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9, "weight_decay": 1e-3, "local_epochs": 2},
        {"optimiser": "adamw", "lr": 0.003, "weight_decay": 0.1},
        {"clip_norm": 0.3},
        {"clip_adaptive": 0.05},
        {"class_weights": [1.0, 3.0, 0.5]},
        {"class_weights": "balanced", "weights": "uniform"},
        {"local_steps": 3, "replacement": True},
        {"equal_steps": True, "schedule": "cosine"},
        {"epochs_at": {"b": 3, "c": 2}},
        {"running_variance": "pooled"},
        {"train": "head"},
        {"train": ["norm", "head"]},
    ],
    ids=str,
)
def test_settings_of_training_have_the_same_effect(
    training: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert alone_and_together(training=training) <= 1e-12
    assert TOGETHER in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["scaffold", "feddyn", "silobn"])
def test_a_part_of_the_clients_keeps_its_state(algorithm: str) -> None:
    assert alone_and_together(algorithm=algorithm, training={"participation": 0.6}) <= 1e-12


@pytest.mark.parametrize("norm", NORMS)
def test_convolutions_with_the_channels_last(norm: str) -> None:
    assert alone_and_together(model=network(norm), data=clients(SIZES)) <= 1e-12


def test_masks() -> None:
    data = {f"{k}{name}": given for k in (1, 2) for name, given in outlined().items()}
    assert alone_and_together(model=outlining_network(), data=data, task="segmentation") <= 1e-12


def test_statistics_that_stand_still() -> None:
    assert alone_and_together(algorithm={"name": "fixbn", "freeze_after": 5}) <= 1e-12


def test_losses_of_the_history_are_the_same() -> None:
    one, two = (pd.DataFrame(federation(stacked).run().history) for stacked in (False, True))
    np.testing.assert_allclose(one["loss"], two["loss"], rtol=1e-12)
    assert one["accuracy"].tolist() == two["accuracy"].tolist()


# ---- streams, chunks, interruptions


class _Noise(Algorithm):
    """Noise on each gradient and on the report, which each client draws from its own generator."""

    def correct(self, local: Local) -> None:
        local.grad.add_(torch.randn_like(local.grad), alpha=0.1)

    def report(self, local: Local) -> dict[str, Tensor]:
        return {"shared": local.shared + torch.rand(1)}


class _ByName(Algorithm):
    """The gradient of one layer is doubled, by its name."""

    def correct(self, local: Local) -> None:
        for name, parameter in local.model.named_parameters():
            if name == "0.weight" and parameter.grad is not None:
                parameter.grad.mul_(2)


@pytest.mark.parametrize("algorithm", [_Noise(), _ByName()])
def test_hooks_draw_from_their_clients_generator_and_see_its_network(algorithm: Algorithm) -> None:
    assert alone_and_together(algorithm=algorithm) <= 1e-12
    assert apart(federation(algorithm=algorithm).run(), federation().run()) > 1e-3


@pytest.mark.parametrize(("most", "memory"), [(5, 2**30), (3, 2**30), (8, 1)])
def test_chunks_make_no_difference(most: int, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = federation(algorithm="scaffold").run()
    monkeypatch.setattr(stack, "MOST", most)
    monkeypatch.setattr(stack, "MEMORY", memory)
    assert apart(whole, federation(algorithm="scaffold").run()) <= 1e-12


def test_a_resumed_training_has_the_same_bits() -> None:
    whole, first = federation(algorithm="scaffold").run(4), federation(algorithm="scaffold").run(2)
    second = federation(algorithm="scaffold")
    second.restore(first.tensors(), first.progress())
    assert not differing(whole.tensors(), second.run(4).tensors())


def test_it_stops_between_batches() -> None:
    asked: list[None] = []

    def should_stop() -> bool:
        asked.append(None)
        return len(asked) > 11

    with pytest.raises(Interrupted):
        federation().run(should_stop=should_stop)
    assert len(asked) == 12


def test_a_loss_that_is_not_finite_names_its_client() -> None:
    data = vectors()
    data["d"][0][3] = float("nan")
    with pytest.raises(UserError, match=r"round 1, client 'd': the training loss is nan"):
        federation(data=data).run()


# ---- who trains one after another


def _first_statistics() -> nn.Module:
    """Batch norm with the cumulative mean of all batches, whose weight is a number on the processor."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)).double()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "own loss": ({"algorithm": "moon"}, "moon has its own loss"),
    "own gradient": ({"algorithm": "fedsam"}, "fedsam has its own gradient"),
    "phases": ({"algorithm": "fedrep"}, "fedrep has its own phases"),
    "joint step": ({"algorithm": "fedtan", "training": {"weights": "uniform"}}, "fedtan has its own joint"),
    "add-on": ({"addon": "mixup"}, "the add-on has its own loss"),
    "dropout": ({"model": network(VECTORS, dropout=0.5)}, "its network cannot: vmap: called random operation"),
    "cumulative": ({"model": _first_statistics()}, "its network cannot: vmap: It looks like you're "),
    "large": ({"model": network(LARGE), "data": clients(SIZES)}, "tensors of the network are so large that "),
    "few": ({"data": vectors(sizes=dict.fromkeys("ab", 20))}, "there are fewer than 3 clients"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_who_cannot_trains_one_after_another_and_the_log_says_why(why: str, capsys: pytest.CaptureFixture[str]) -> None:
    options, reason = REFUSED[why]
    trained = federation(True, **options).run(2)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("training.stacked")]
    assert len(lines) == 1
    assert lines[0].startswith(f"training.stacked: clients train one after another, since {reason}")
    assert not differing(trained.tensors(), federation(False, **options).run(2).tensors())


def test_auto_is_for_small_networks_without_convolutions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation("auto").run(1)
    assert capsys.readouterr().err == TOGETHER
    federation("auto", network(), clients(SIZES)).run(1)
    assert capsys.readouterr().err.endswith("since the network convolves, which is no faster together\n")
    monkeypatch.setattr(stack, "SMALL", 80 + 8 + 8 + 24 + 3 - 1)
    federation("auto").run(1)
    assert capsys.readouterr().err.endswith("has more than 122 parameters, which is no faster together\n")
    federation(False).run(1)
    assert not capsys.readouterr().err


# ---- identity


def test_the_setting_is_part_of_the_identity_where_it_is_given() -> None:
    assert "stacked" not in Training().identity()
    assert Training(stacked=True).identity() == Training().identity() | {"stacked": True}
    assert Training(stacked="auto").identity() == Training().identity() | {"stacked": "auto"}


def test_another_value_is_refused() -> None:
    with pytest.raises(UserError, match=r"training\.stacked"):
        federation("always")


@pytest.mark.parametrize("name", sorted(discover("algorithm")))
def test_every_algorithm_trains_with_the_setting(name: str) -> None:
    options: dict[str, Any] = {"fedtan2": {"exchange_rounds": 1}}.get(name, {})
    given = {"algorithm": {"name": name, **options}, "training": {"rounds": 3}}
    assert alone_and_together(**given) <= 1e-12
