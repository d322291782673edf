"""The joint first step of FedTAN and its relatives: union gradients, each client's own, statistics, traffic, errors."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rotation import of_day
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from toy import Noted, clients, differing, gap, kinds, network, watching

from fedshift import Federation, UserError
from fedshift.core.registry import build
from fedshift.core.rng import keyed
from fedshift.models import initialise

State = dict[str, Tensor]
Array = NDArray[np.float64]
Batches = list[tuple[Array, NDArray[np.int64]]]
ONE = {"rounds": 1, "local_steps": 1, "batch_size": 64, "lr": 1.0, "weights": "size", "select": "last"}
"""One step on whole clients at rate 1: the start minus the end is the gradient."""
EPS = 1e-5


def watched(
    algorithm: str, model: nn.Module, data: dict[str, Any], /, settings: Any = None, seed: int = 0, **training: Any
) -> tuple[Federation, list[dict[str, State]]]:
    """A trained federation, and each client's whole state after its local work, by round."""
    made, seen = watching({"name": algorithm, **(settings or {})})
    return Federation(model, data, algorithm=made, training={**ONE, **training}, seed=seed).run(), seen


def gradient(before: State, after: State, names: Iterable[str]) -> Tensor:
    """Return the gradient of a step at rate 1, as one vector."""
    return torch.cat([(before[k] - after[k]).flatten() for k in names])


def mean_gradient(algorithm: str, model: nn.Module, data: dict[str, Any], **training: Any) -> Tensor:
    trained, _ = watched(algorithm, model, data, **training)
    return gradient(model.state_dict(), trained.global_state(), dict(model.named_parameters()))


def union_gradient(model: nn.Module, data: dict[str, Any]) -> Tensor:
    """Return the gradient of the mean loss over all clients' images, through ordinary batch norm."""
    own = copy.deepcopy(model).train()
    x, y = (torch.cat(column) for column in zip(*data.values(), strict=True))
    of = torch.autograd.grad(cross_entropy(own(x), y), list(own.parameters()))
    return torch.cat([g.flatten() for g in of])


def off(got: Tensor, expected: Tensor) -> float:
    """The difference of two vectors relative to the second."""
    return float((got - expected).norm() / expected.norm())


def images(sizes: dict[str, int], shape: tuple[int, ...], classes: int = 3) -> dict[str, Any]:
    """Images of clients that differ in brightness and contrast."""
    out = {}
    for k, (name, n) in enumerate(sizes.items()):
        rng = np.random.default_rng([1, k])
        x = (1 + k) * rng.normal(size=(n, *shape)) + k
        out[name] = torch.from_numpy(x), torch.from_numpy(rng.integers(0, classes, n))
    return out


class Mixed(nn.Module):
    """A residual connection, a concatenation, dropout, ReLU in place, channels sliced and added to in place."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv, self.norm1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm2, self.norm3 = nn.BatchNorm2d(4), nn.BatchNorm1d(8)
        self.relu, self.dropout, self.head = nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x + self.dropout(self.relu(self.norm1(x)))
        y = torch.cat([x, self.norm2(x)[:, [3, 0, 1, 2]]], 1)
        y += relu(-y)
        return self.head(self.norm3(y.mean((2, 3))))


def mixed(dropout: float = 0.0) -> nn.Module:
    with keyed(0):
        return Mixed(dropout).double()


def networks(name: str) -> nn.Module:
    if name == "toy":
        return network()
    if name == "mixed":
        return mixed()
    shape = {"mlp": (3, 4, 4)}.get(name, (3, 32, 32))
    return initialise(build("model", name), shape, 3, seed=0).double()


SHAPES = {"toy": (2, 6, 6), "mlp": (3, 4, 4), "mixed": (3, 5, 5)}
KINDS = ("equal batches, uniform", "unequal batches, by size")
CASES = [*product(("toy", "mlp", "mixed"), KINDS), *of_day(product(("resnet20", "densenet121"), KINDS), 4)]


# ---- the mean of the clients' gradients


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_mean_gradient_is_that_of_the_union_of_batches(name: str, kind: str) -> None:
    """The reference is an ordinary BN network. FedAvg, algorithm 2 and FedTAN with unmatched weights differ from it."""
    model, equal = networks(name), kind.startswith("equal")
    sizes = {"a": 3, "b": 3, "c": 3} if equal else {"a": 2, "b": 5, "c": 3}
    data = images(sizes, SHAPES.get(name, (3, 32, 32)))
    expected = union_gradient(model, data)
    weights = "uniform" if equal else "size"
    assert off(mean_gradient("fedtan", model, data, weights=weights), expected) < 1e-10
    for other in ("fedavg", "fedavg_alg2"):
        assert off(mean_gradient(other, model, data, weights=weights), expected) > 1e-3
    if not equal:
        assert off(mean_gradient("fedtan", model, data, weights="uniform"), expected) > 1e-3


def test_the_union_is_that_of_the_clients_that_take_part() -> None:
    model, data = network(), clients()
    trained, seen = watched("fedtan", model, data, participation=0.67)
    got = gradient(model.state_dict(), trained.global_state(), dict(model.named_parameters()))
    assert len(seen[0]) == 2
    assert off(got, union_gradient(model, {name: data[name] for name in seen[0]})) < 1e-10
    assert off(got, union_gradient(model, data)) > 1e-3


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_frozen_affine_parameters_still_act(leaf: str) -> None:
    """A network may come with gamma or beta that are not trained."""
    model, data = network(), clients()
    model.get_parameter(f"1.{leaf}").requires_grad_(False)
    got = watched("fedtan", model, data)[0].global_state()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    names = [k for k, _ in model.named_parameters() if k != f"1.{leaf}"]
    expected = watched("fedtan", model, data)[0].global_state()
    assert gap({k: got[k] for k in names}, {k: expected[k] for k in names}) < 1e-12


def test_batches_smaller_than_a_clients_data_count_by_their_own_size() -> None:
    """Equal batches drawn from unequal clients: the weights that match them are uniform."""
    model, noted = network(), {name: Noted(*given) for name, given in clients().items()}
    got = mean_gradient("fedtan", model, noted, batch_size=4, weights="uniform")
    taken = {name: (of.x[of.taken[0]], of.y[of.taken[0]]) for name, of in noted.items()}
    assert [len(y) for _, y in taken.values()] == [4, 4, 4]
    assert off(got, union_gradient(model, taken)) < 1e-10
    assert off(mean_gradient("fedtan", model, noted, batch_size=4, weights="size"), union_gradient(model, taken)) > 1e-3


# ---- each client's own gradient, by the paper's formulas


def perceptron(seed: int = 0) -> nn.Sequential:
    """Linear, BN, linear, with gamma, beta and statistics that are not the initial ones."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    rng = np.random.default_rng(seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.from_numpy(rng.uniform(0.5, 1.5, tuple(tensor.shape))))
    return model


def by_hand(state: State, batches: Batches, p: list[float], way: str) -> tuple[list[State], Array, Array]:
    """Each client's gradient of its own loss, and the shared mean and variance.

    `way` says what becomes of dF_i/dmu and dF_i/dv: `shared`, their means (FedTAN); `own`, each its own (algorithm 2);
    `trap`, as FedTAN but with the path from mu through v_i added at each client.
    """
    w1, b1, gamma, beta, w2, b2 = (
        state[k].numpy() for k in ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    )
    inputs = [x @ w1.T + b1 for x, _ in batches]
    mu = sum(w * z.mean(0) for w, z in zip(p, inputs, strict=True))
    v = sum(w * ((z - mu) ** 2).mean(0) for w, z in zip(p, inputs, strict=True))
    direct, to_mu, to_v, grads = [], [], [], []
    for (_, y), z in zip(batches, inputs, strict=True):
        hat = (z - mu) / np.sqrt(v + EPS)
        out = gamma * hat + beta
        odds = np.exp(out @ w2.T + b2)
        error = (odds / odds.sum(1, keepdims=True) - np.eye(3)[y]) / len(y)
        du = error @ w2
        grads.append({"2.weight": error.T @ out, "2.bias": error.sum(0)})
        grads[-1] |= {"1.weight": (du * hat).sum(0), "1.bias": du.sum(0)}
        u = du * gamma
        direct.append(u / np.sqrt(v + EPS))
        to_v.append(-0.5 * (v + EPS) ** -1.5 * (u * (z - mu)).sum(0))
        to_mu.append(-((v + EPS) ** -0.5) * u.sum(0))
        if way == "trap":
            to_mu[-1] = to_mu[-1] + to_v[-1] * -2 * (z - mu).mean(0)
    if way != "own":
        to_mu, to_v = ([sum(w * g for w, g in zip(p, of, strict=True))] * len(p) for of in (to_mu, to_v))
    for (x, y), z, d, of_mu, of_v, grad in zip(batches, inputs, direct, to_mu, to_v, grads, strict=True):
        dz = d + of_mu / len(y) + 2 * (z - mu) * of_v / len(y)
        grad |= {"0.weight": dz.T @ x, "0.bias": dz.sum(0)}
    return [{k: torch.from_numpy(g) for k, g in grad.items()} for grad in grads], mu, v


def rows(sizes: dict[str, int]) -> dict[str, Any]:
    return images(sizes, (4,))


def arrays(data: dict[str, Any]) -> Batches:
    return [(x.numpy(), y.numpy()) for x, y in data.values()]


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(("algorithm", "way"), [("fedtan", "shared"), ("fedavg_alg2", "own")])
def test_each_clients_own_gradient_is_the_papers(algorithm: str, way: str, weights: str) -> None:
    """Unequal batches under both weightings: the formulas hold for any weights."""
    model, data = perceptron(), rows({"a": 4, "b": 9, "c": 6})
    p = [4 / 19, 9 / 19, 6 / 19] if weights == "size" else [1 / 3] * 3
    _, seen = watched(algorithm, model, data, weights=weights)
    names = [k for k, _ in model.named_parameters()]

    def distance(other: str) -> float:
        expected, _, _ = by_hand(model.state_dict(), arrays(data), p, other)
        whole = (torch.cat([grad[k].flatten() for k in names]) for grad in expected)
        got = (gradient(model.state_dict(), seen[0][name], names) for name in data)
        return max(off(*pair) for pair in zip(got, whole, strict=True))

    assert distance(way) < 1e-12
    for other in {"shared", "own", "trap"} - {way}:
        assert distance(other) > 1e-3


# ---- running statistics of the joint step


CORRECTIONS = {"none": 1.0, "torch": (3 * 4 * 30) / (3 * 4 * 30 - 1), "fedtan_code": 4 / 3}
"""Counts for a joint variance over three clients' four images of 5 x 6: elements of all, or images of one client."""


def first_layer(momentum: float | None = 0.1) -> nn.Module:
    """BN on the images themselves, whose statistics are those of the data."""
    return nn.Sequential(
        nn.BatchNorm2d(2, momentum=momentum), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)
    ).double()


@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg_alg2", "fedtan2"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_running_statistics_move_towards_the_joint_ones(correction: str, algorithm: str) -> None:
    data = images(dict.fromkeys("abc", 4), (2, 5, 6))
    settings = {"running_var_bessel": correction} | ({"exchange_rounds": 2} if algorithm == "fedtan2" else {})
    union = np.concatenate([x.numpy() for x, _ in data.values()])
    mu, v = union.mean((0, 2, 3)), union.var((0, 2, 3)) * CORRECTIONS[correction]
    for momentum, kept in ((0.1, 0.9**2), (None, 0.0)):
        trained, seen = watched(algorithm, first_layer(momentum), data, settings, rounds=2)
        for state in (trained.global_state(), *seen[1].values()):
            np.testing.assert_allclose(state["0.running_mean"], (1 - kept) * mu, rtol=1e-13)
            np.testing.assert_allclose(state["0.running_var"], kept + (1 - kept) * v, rtol=1e-13)
            assert int(state["0.num_batches_tracked"]) == 2


@pytest.mark.parametrize(("correction", "factor"), [("none", 1.0), ("torch", 300 / 299)])
def test_statistics_of_unequal_batches_in_proportion_are_the_unions(correction: str, factor: float) -> None:
    data = images({"a": 2, "b": 5, "c": 3}, (2, 5, 6))
    union = np.concatenate([x.numpy() for x, _ in data.values()])
    trained, _ = watched("fedtan", first_layer(), data, {"running_var_bessel": correction})
    state = trained.global_state()
    np.testing.assert_allclose(state["0.running_mean"], 0.1 * union.mean((0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(state["0.running_var"], 0.9 + 0.1 * factor * union.var((0, 2, 3)), rtol=1e-13)


# ---- the other steps, and the round's end


def ordinary(state: State, batches: Batches, momentum: float) -> State:
    """Local steps of torch's own SGD from a state, one a batch, through ordinary batch norm."""
    model = perceptron()
    model.load_state_dict(state)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for x, y in batches:
        optimiser.zero_grad()
        cross_entropy(model.train()(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        optimiser.step()
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(("algorithm", "way"), [("fedtan", "shared"), ("fedavg_alg2", "own")])
def test_later_steps_are_each_clients_own(algorithm: str, way: str, weights: str, momentum: float) -> None:
    """Two rounds of a joint step and two local ones, then the mean of everything; momentum begins after the first."""
    noted = {name: Noted(*given) for name, given in rows({"a": 7, "b": 12}).items()}
    training: dict[str, Any] = {"rounds": 2, "local_steps": 3, "batch_size": 4, "lr": 0.1}
    trained, _ = watched(algorithm, perceptron(), noted, **training, momentum=momentum, weights=weights)
    p = [7 / 19, 12 / 19] if weights == "size" else [0.5, 0.5]
    state = {k: v.clone() for k, v in perceptron().state_dict().items()}
    for number in range(2):
        given: list[Batches] = [
            [(of.x[index].numpy(), of.y[index].numpy()) for index in of.taken[3 * number : 3 * number + 3]]
            for of in noted.values()
        ]
        first: Batches = [batches[0] for batches in given]
        grads, mu, v = by_hand(state, first, p, way)
        n = sum(len(y) for _, y in first)
        ends = []
        for grad, batches in zip(grads, given, strict=True):
            begun = {k: state[k] - 0.1 * g for k, g in grad.items()}
            begun["1.running_mean"] = 0.9 * state["1.running_mean"] + 0.1 * torch.from_numpy(mu)
            begun["1.running_var"] = 0.9 * state["1.running_var"] + 0.1 * torch.from_numpy(v * n / (n - 1))
            begun["1.num_batches_tracked"] = state["1.num_batches_tracked"] + 1
            ends.append(ordinary(begun, batches[1:], momentum))
        counted = ends[0]["1.num_batches_tracked"]
        state = {k: sum(w * end[k] for w, end in zip(p, ends, strict=True)) for k in ends[0]}
        state["1.num_batches_tracked"] = counted
    assert gap(trained.global_state(), state) < 1e-13
    assert all(len(of.taken) == 6 for of in noted.values())


@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg_alg2"])
def test_one_clients_joint_step_is_an_ordinary_one(algorithm: str) -> None:
    """Running statistics and the count of batches included."""
    data = rows({"a": 8})
    trained, _ = watched(algorithm, perceptron(), data, lr=0.1)
    expected = ordinary(perceptron().state_dict(), arrays(data), 0.0)
    assert gap(trained.global_state(), expected) < 1e-14


# ---- what is sent


@pytest.mark.parametrize(
    ("algorithm", "times_s", "messages"),
    [
        ({"name": "fedtan"}, (3, 3, 3), (7, 7, 7)),
        ({"name": "fedavg_alg2"}, (2, 2, 2), (5, 5, 5)),
        ({"name": "fedtan2", "exchange_rounds": 2}, (3, 3, 1), (7, 7, 1)),
        ({"name": "fedavg"}, (1, 1, 1), (1, 1, 1)),
    ],
    ids=lambda given: given["name"] if isinstance(given, dict) else "",
)
def test_floats_and_messages(algorithm: dict[str, Any], times_s: tuple[int, ...], messages: tuple[int, ...]) -> None:
    """P + 3 S floats each way and client, 3 L + 1 messages a round with L = 2 layers; P + 2 S and 2 L + 1 without G."""
    tensors, of = network().state_dict(), kinds(network())
    P, S = (sum(tensors[k].numel() for k in names) for names in (of["affine"] + of["weights"], of["statistics"]))
    training = {**ONE, "rounds": 3, "local_steps": 2}
    trained = Federation(network(), clients(), algorithm=algorithm, training=training).run()
    got = [(r["round"], r["floats_down"], r["floats_up"], r["messages"]) for r in trained.history]
    by_round = enumerate(zip(times_s, messages, strict=True), 1)
    assert got == [row for n, (k, m) in by_round for row in [(n, P + k * S, P + k * S, m)] * 3]


def test_resnet20s_traffic_is_that_of_the_papers_table() -> None:
    """Five clients, downlink counted once: 6.2679 MB a round."""
    data = images(dict.fromkeys("abcde", 2), (3, 8, 8), 10)
    model = initialise(build("model", "resnet20"), (3, 8, 8), 10, seed=0).double()
    moved = Federation(model, data, algorithm="fedtan", training=ONE).run().ledger()
    assert round(4 * (moved["down_broadcast"] + moved["up"]) / 2**20, 4) == 6.2679
    assert moved["messages"] == 3 * 19 + 1


# ---- networks of other kinds, and errors


def test_dropout_is_drawn_apart_for_each_client_and_by_the_seed() -> None:
    """Two clients with the same images differ after the joint step through their masks alone."""

    def ends(dropout: float, seed: int) -> list[State]:
        data = dict.fromkeys("ab", images({"a": 6}, (3, 5, 5))["a"])
        return list(watched("fedtan", mixed(dropout), data, seed=seed)[1][0].values())

    one, two = ends(0.0, 0)
    assert gap(one, two) < 1e-12
    one, two = ends(0.5, 0)
    assert gap(one, two) > 1e-3
    assert differing(ends(0.5, 0)[0], one) == []
    assert gap(ends(0.5, 1)[0], one) > 1e-3


def test_with_group_norm_alone_nothing_is_exchanged_and_fedtan_is_fedavg() -> None:
    model = network("group norm")
    training: dict[str, Any] = {"local_steps": 3, "rounds": 2, "batch_size": 4, "lr": 0.05}
    tan, avg = (watched(a, model, clients(), **training)[0] for a in ("fedtan", "fedavg"))
    assert gap(tan.global_state(), avg.global_state()) < 1e-14
    assert tan.ledger() == avg.ledger()


class Viewing(nn.Module):
    """Asks for the size of a batch between two BN layers; behind them it fails, on request."""

    broken = False

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.head = nn.BatchNorm2d(2), nn.BatchNorm1d(72), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = self.norm2(x.view(x.size(0), -1))
        if self.broken:
            raise RuntimeError("broken")
        return self.head(x)


class Scattering(nn.Module):
    """A network that writes what it has computed into a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(2), nn.Linear(72, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.norm(x).flatten(1))
        return torch.zeros(16, 3, dtype=x.dtype).copy_(logits)


def test_what_clients_would_share_is_refused() -> None:
    """The clients' logits would be those of the last one."""
    with keyed(0):
        model = Scattering().double()
    data = {name: (x[:16], y[:16]) for name, (x, y) in clients().items()}
    with pytest.raises(UserError, match="copy_ writes into a tensor that all clients would share"):
        Federation(model, data, algorithm="fedtan", training={**ONE, "batch_size": 16}).run()


@pytest.mark.parametrize("equal", [True, False], ids=["an error of the network's", "unequal batches"])
def test_an_error_in_the_joint_step_leaves_no_trace(equal: bool) -> None:
    """One line says where batches differ in size. A federation goes on after an error that is no more."""
    with keyed(0):
        model: Any = Viewing().double()
    training = {**ONE, "batch_size": 4 if equal else 64, "rounds": 3}
    trained = Federation(model, clients(), algorithm="fedtan", training=training)
    here: Any = trained.trainer.model
    if equal:
        trained.run(1)
        here.broken = True
    before, held = trained.tensors(), [*here.named_parameters(), *here.named_buffers()]
    pointers = [v.data_ptr() for _, v in held]
    with pytest.raises(RuntimeError if equal else UserError) as caught:
        trained.run(2)
    if not equal:
        line = str(caught.value)
        assert line.startswith(
            "joint step: the network reads the size of its batch (13), in which the clients differ; give "
        )
        assert "\n" not in line
    assert differing(trained.tensors(), before) == []
    now = [*here.named_parameters(), *here.named_buffers()]
    assert all(name == other and v is w for (name, v), (other, w) in zip(now, held, strict=True))
    assert [v.data_ptr() for _, v in now] == pointers
    assert all("forward" not in vars(module) for module in here.modules())
    if equal:
        here.broken = False
        expected = Federation(model, clients(), algorithm="fedtan", training=training).run()
        assert differing(trained.run().global_state(), expected.global_state()) == []
