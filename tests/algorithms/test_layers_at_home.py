"""FedPer, FedRep, FedBABU, LG-FedAvg: with pencil, in NumPy, and against the algorithms that they equal in limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import TRAVELS, clients, differing, gap, kinds, network, of_clients, softmax

from fedshift import Federation, UserError
from fedshift.algorithms import Algorithm, Local, Phase
from fedshift.core.registry import build, discover, get
from fedshift.data.samples import TensorSamples
from fedshift.inferences import Personalise
from fedshift.nn import policies
from fedshift.nn.policies import LAYERS, LayerPolicy

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
HEAD = ("9.weight", "9.bias")
State = dict[str, Tensor]


def federation(algorithm: Any, model: nn.Module | None = None, data: Any = None, bn: str | None = None) -> Federation:
    training = {**BASE, "select": "last"}
    return Federation(model or network(), data or clients(), algorithm=algorithm, bn=bn, training=training)


def after(*arguments: Any, **options: Any) -> State:
    return of_clients(federation(*arguments, **options).run())


def with_fixed_head() -> nn.Module:
    model = network()
    for parameter in model[9].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    return model


def variant(name: str, **attributes: Any) -> Algorithm:
    """An algorithm with other class attributes or hooks."""
    made: Algorithm = type("Variant", (get("algorithm", name),), attributes)()
    return made


# ---- with pencil: y = u v x, where u is the body and v the head, x = 1, targets 2 and 0, squared loss, one step of 0.1

TARGETS = {"one": 2.0, "two": 0.0}


def squared(self: Any, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = local.model(x)
    return 0.5 * (out - TARGETS[local.client]).square().mean(), out


@pytest.mark.parametrize(
    ("name", "settings", "body", "heads"),
    [
        ("fedper", {}, [1.0, 1.0], [1.1, 0.9]),
        ("fedbabu", {}, [1.0, 1.0], [1.0, 1.0]),
        ("fedrep", {"head_epochs": 1}, [1.009, 1.009], [1.1, 0.9]),
        ("lg_fedavg", {}, [1.1, 0.9], [1.0, 1.0]),
    ],
)
def test_one_step_with_pencil(name: str, settings: dict[str, Any], body: list[float], heads: list[float]) -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    data = {site: (torch.ones(2, 1).double(), torch.zeros(2, dtype=torch.long)) for site in TARGETS}
    algorithm = type("Squared", (get("algorithm", name),), {"loss": squared})(**settings)
    training = {"lr": 0.1, "batch_size": 2, "rounds": 1, "select": "last"}
    trained = Federation(model, data, algorithm=algorithm, training=training).run()
    for site, u, v in zip(TARGETS, body, heads, strict=True):
        state = trained.client_state(site)
        assert [float(state["0.weight"]), float(state["1.weight"])] == pytest.approx([u, v], rel=1e-15)


# ---- in NumPy: logits V U x of two linear layers, with momentum and weight decay, two rounds

RATE, MOMENTUM, DECAY, SIZES = 0.1, 0.6, 0.05, {"a": 6, "b": 9}
Pair = dict[str, np.ndarray]


def gradients(theta: Pair, x: np.ndarray, y: np.ndarray) -> Pair:
    z = x @ theta["U"].T @ theta["V"].T
    error = (softmax(z) - np.eye(3)[y]) / len(y)
    return {"U": (error @ theta["V"]).T @ x, "V": error.T @ (x @ theta["U"].T)}


def steps(theta: Pair, trained: str, number: int, x: np.ndarray, y: np.ndarray) -> None:
    """Take steps of a new optimiser on the named matrices, in place."""
    buffer = {k: 0 * theta[k] for k in trained}
    for _ in range(number):
        g = gradients(theta, x, y)
        for k in trained:
            buffer[k] = MOMENTUM * buffer[k] + g[k] + DECAY * theta[k]
        for k in trained:
            theta[k] = theta[k] - RATE * buffer[k]


BY_HAND: dict[str, tuple[str, list[tuple[str, int]]]] = {
    "fedper": ("U", [("UV", 3)]),
    "fedrep": ("U", [("V", 2), ("U", 3)]),
    "fedbabu": ("U", [("U", 3)]),
    "lg_fedavg": ("V", [("UV", 3)]),
}
"""What travels, and which matrices the phases of a round train in how many steps."""


@pytest.mark.parametrize("name", BY_HAND)
def test_rounds_by_hand(name: str) -> None:
    rng = np.random.default_rng(0)
    data = {k: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in SIZES.items()}
    start = {"U": rng.normal(size=(2, 4)), "V": rng.normal(size=(3, 2))}
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)).double()
    model.load_state_dict({"0.weight": torch.from_numpy(start["U"]), "1.weight": torch.from_numpy(start["V"])})
    travels, phases = BY_HAND[name]
    thetas = {site: dict(start) for site in data}
    for _ in range(2):
        for site, theta in thetas.items():
            for trained, number in phases:
                steps(theta, trained, number, *data[site])
        mean = sum(SIZES[site] * theta[travels] for site, theta in thetas.items()) / sum(SIZES.values())
        for theta in thetas.values():
            theta[travels] = mean
    spec = {"name": name, **({"head_epochs": 2} if name == "fedrep" else {})}
    training = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "batch_size": 16, "local_steps": 3}
    tensors = {site: (torch.from_numpy(x), torch.from_numpy(y)) for site, (x, y) in data.items()}
    options: Any = {"algorithm": spec, "training": {**training, "rounds": 2, "select": "last"}}
    federated = Federation(model, tensors, **options).run()
    for site, theta in thetas.items():
        state = federated.client_state(site)
        np.testing.assert_allclose(state["0.weight"], theta["U"], rtol=0, atol=1e-13)
        np.testing.assert_allclose(state["1.weight"], theta["V"], rtol=0, atol=1e-13)
    heads = np.mean([theta["V"] for theta in thetas.values()], axis=0)
    np.testing.assert_allclose(federated.global_state()["1.weight"], heads, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("trains", "moves"), [("home", True), ("rest", False)])
def test_layers_at_rest_keep_every_bit_and_running_statistics_move(trains: Any, moves: bool) -> None:
    """Also under weight decay and momentum. The head's phase is one pass over 13 images, in batches of 4, 4 and 5."""
    algorithm = variant("fedper", phases=lambda self: (Phase(trains, epochs=1),))
    trained = federation(algorithm, data={"a": clients()["a"]}).run(1)  # a mean over one client is exact
    start = network().state_dict()
    state = trained.client_state("a")
    moved = {k for k in differing(state, start) if not k.endswith("num_batches_tracked")}
    weights = {"0.weight", "1.weight", "1.bias", "3.weight", "4.weight", "4.bias"}
    assert moved & {*HEAD} == ({*HEAD} if moves else set())
    assert moved & weights == (set() if moves else weights)
    assert set(kinds(network())["statistics"]) <= moved
    assert int(state["1.num_batches_tracked"]) == 3


# ---- limits


@pytest.mark.parametrize("bn", TRAVELS)
def test_fedbabu_is_fedavg_with_a_fixed_head(bn: str) -> None:
    """A head of which no algorithm knows, since it needs no gradient, neither travels nor moves."""
    expected = after("fedavg", with_fixed_head(), bn=bn)
    assert gap(after("fedbabu", bn=bn), expected) < 1e-12
    assert gap(after("fedper", bn=bn), expected) > 1e-3


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_fedrep_without_a_phase_for_the_head_is_fedbabu(bn: str) -> None:
    expected = after("fedbabu", bn=bn)
    assert differing(after({"name": "fedrep", "head_epochs": 0}, bn=bn), expected) == []
    assert gap(after({"name": "fedrep", "head_epochs": 1}, bn=bn), expected) > 1e-3


def test_fedbabu_whose_head_is_trained_and_sent_is_fedavg() -> None:
    assert differing(after(variant("fedbabu", layers="full", phases=Algorithm.phases)), after("fedavg")) == []
    assert gap(after("fedbabu"), after("fedavg")) > 1e-3


def test_fedper_of_one_client_is_local() -> None:
    one = {"b": clients()["b"]}
    assert gap(after("fedper", data=one), after("local", data=one)) < 1e-12
    assert gap(after("fedper"), after("local")) > 1e-3


def test_lg_fedavg_whose_head_rests_is_local_with_a_fixed_head() -> None:
    expected = after("local", with_fixed_head())
    assert gap(after(variant("lg_fedavg", phases=lambda self: (Phase("home"),))), expected) < 1e-12
    assert gap(after("lg_fedavg"), expected) > 1e-3


def test_head_and_body_at_home_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies.LAYERS, "all_home", LayerPolicy(head=False, body=False))
    assert gap(after(variant("fedavg", layers="all_home"), bn="local"), after("local")) < 1e-12
    assert gap(after(variant("fedavg", layers="head_home"), bn="local"), after("local")) > 1e-3


# ---- what travels, and what others get


@pytest.mark.parametrize("bn", TRAVELS)
def test_the_head_stays_beside_what_the_bn_policy_keeps(bn: str) -> None:
    trained = federation("fedper", bn=bn).run(1)
    travels = [n for kind in TRAVELS[bn] for n in kinds(network())[kind] if n not in HEAD]
    size = sum(network().state_dict()[name].numel() for name in travels)
    everything = {name for names in kinds(network()).values() for name in names}
    assert everything - {*trained.trainer.own_names, *kinds(network())["counters"]} == set(travels)
    assert {(row["floats_down"], row["floats_up"]) for row in trained.history} == {(size, size)}


def test_of_lg_fedavg_only_the_head_travels() -> None:
    trained = federation("lg_fedavg").run(1)
    assert set(network().state_dict()) - {*trained.trainer.own_names} == {*HEAD}
    assert {(row["floats_down"], row["floats_up"]) for row in trained.history} == {(21, 21)}, "6 * 3 weights, 3 biases"


class Misnamed(nn.Module):
    """Its last linear layer is called `bn`, and one that is not the last is called `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.bn = nn.Linear(72, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.head(x.flatten(1)))
        return out


def test_the_head_is_found_by_its_place_in_the_network() -> None:
    for layers, home in {"full": [], "head_home": ["bn"], "body_home": ["head"]}.items():
        expected = [f"{layer}.{leaf}" for layer in home for leaf in ("weight", "bias")]
        assert LAYERS[layers].stays(Misnamed()) == expected
    convolution = nn.Sequential(nn.Conv2d(1, 1, 1))
    assert LAYERS["head_home"].stays(convolution) == ["0.weight", "0.bias"], (
        "without a linear layer, the last convolution"
    )
    with pytest.raises(UserError, match="no linear layer"):
        LAYERS["head_home"].stays(nn.BatchNorm2d(1))


def test_an_external_site_is_predicted_with_the_mean_of_the_clients_logits() -> None:
    """The mean of heads on one body gives the mean of logits, which is no client's."""
    trained = federation("fedper").run()
    x, model = clients()["a"][0], network().eval()

    def logits(state: State) -> Tensor:
        model.load_state_dict(state)
        return model(x).detach()

    each = torch.stack([logits(trained.client_state(name)) for name in "abc"])
    assert float((logits(trained.global_state()) - each.mean(0)).abs().max()) < 1e-12
    assert float((each[0] - each[1]).abs().max()) > 1e-2


def test_fedbabus_external_head_is_the_random_one() -> None:
    state, start = federation("fedbabu").run().global_state(), network().state_dict()
    assert gap({k: state[k] for k in HEAD}, {k: start[k] for k in HEAD}) < 1e-15
    assert gap({"0": state["0.weight"]}, {"0": start["0.weight"]}) > 1e-3


def test_every_algorithm_with_layers_at_home_says_what_external_sites_get() -> None:
    for name in discover("algorithm"):
        algorithm: Any = build("algorithm", name)
        assert algorithm.layers == "full" or algorithm.external
        assert not algorithm.external or algorithm.external.startswith("external sites ")


def test_fedbabus_head_is_tuned_where_an_inference_asks_for_it() -> None:
    """The network before and after: nothing else in the study has to know that training left the head alone."""
    trained, model = federation("fedbabu").run(), network()
    before = trained.client_state("a")
    model.load_state_dict(before)
    images = TensorSamples(*clients()["a"])
    Personalise(steps=2, lr=0.1).adapt(model, images, images, "a")
    moved = differing(model.state_dict(), before)
    assert {"9.weight", "9.bias", "0.weight"} <= set(moved)
    assert differing({k: before[k] for k in HEAD}, {k: network().state_dict()[k] for k in HEAD}) == []


def test_lg_fedavg_has_no_model_for_external_sites() -> None:
    together = build("algorithm", "lg_fedavg").collaboration
    assert together.tested(("in",), ("out",)) == ("in",)
    assert together.values({"a": 0.5, "b": 1.0}, ["a", "b"]) == [0.75], "but one round is selected for all clients"
