"""Algebra says that two algorithms, or two settings of one, are the same: float64, several rounds, both ways.

Clients differ in size and distribution; where an identity needs them equal in some respect, its test says so. Each
check of sameness has one beside it that the setting in question makes a difference, so that it can fail.
`TsmoBN`'s identities are in test_tsmobn.py, and that one client's rounds are torch's own SGD in test_federation.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import plain
import pytest
import torch
from rotation import of_day
from torch import Tensor, nn
from toy import SIZES, TRAVELS, Noted, clients, differing, gap, kinds, network, states, watching

from fedshift import Federation, Training
from fedshift.algorithms import Local
from fedshift.core.registry import build, get
from fedshift.engine import local_training
from fedshift.models import initialise

State = dict[str, Tensor]
POLICIES = of_day(TRAVELS, 2)
"""What may be done with batch norm: every identity is tried under each, and each day has half of them."""
BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "select": "last"}
MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01}
WHOLE = {"batch_size": sum(SIZES.values())}
"""Each client's batch is all its data: what is left to the order of batches is the order of sums."""
SHARES = {
    "size": {name: n / sum(SIZES.values()) for name, n in SIZES.items()},
    "uniform": dict.fromkeys(SIZES, 1 / len(SIZES)),
}
PERFEDAVG = [{"name": "perfedavg", "variant": v} for v in ("first_order", "hessian_free")]
ADAPTIVE = {"name": "fedadam", "beta1": 0.0, "beta2": 1.0}
AT_REST = [
    *(
        {"name": "fedavg"} | bn
        for bn in ({}, {"bn": "local"}, {"bn": "local_statistics"}, {"bn": "local_affine"}, MOMENTUM)
    ),
    {"name": "fedprox", "mu": 0.0},
    {"name": "scaffold", "option": 1} | MOMENTUM,
    {"name": "scaffold", "option": 2},
    {"name": "scaffold", "option": 2, "bn": "local"},
    {"name": "fednova"} | MOMENTUM,
    {**ADAPTIVE, "v0": 0.0, "server_lr": 1e-3},
    {"name": "moon", "mu": 0.0},
    {"name": "feddc", "alpha": 0.0, "drift": False},
    *({**given, "alpha": 0.0} for given in PERFEDAVG),
    {"name": "fedtan"},
    {"name": "fedavg_alg2"},
    {"name": "fedtan2", "exchange_rounds": 3},
    {"name": "fixbn", "freeze_after": 3},
    {"name": "fedavgm", "beta": 0.0},
    {"name": "fedsam", "rho": 0.0},
    {"name": "qffl", "q": 0.0},
    *({"name": name} for name in ("afl", "feddg_ga", "vrex", "groupdro")),
]
"""Settings under which one client alone is trained as if there were no federation."""
ALL = [
    *("fedavg", "fedbn", "silobn", "scaffold", "fednova", "fedadam", "fedtan", "fedavg_alg2", "local", "pooled"),
    {"name": "fedprox", "mu": 1.0},
    {"name": "scaffold", "option": 1},
    {"name": "fednova", "mu": 1.0, "server_momentum": 0.9},
    {"name": "moon", "mu": 5.0},
    {"name": "feddc", "alpha": 0.1},
    *PERFEDAVG,
    {"name": "fedtan2", "exchange_rounds": 1},
    "fixbn",
    *("fedsam", "qffl", "afl", "feddg_ga", "groupdro"),
    {"name": "vrex", "beta": 0.1},
]


def label(given: Any) -> str:
    return given if isinstance(given, str) else " ".join(map(str, given.values()))


def federation(algorithm: Any = "fedavg", /, model: Any = None, data: Any = None, **settings: Any) -> Federation:
    """A federation of the toy clients; what is no option of it is a setting of the training."""
    options = {k: settings.pop(k) for k in ("bn", "seed") if k in settings}
    if "local_steps" in settings:
        settings["local_epochs"] = 1
    training = {**BASE, **settings}
    return Federation(model or network(), data or clients(), algorithm=algorithm, training=training, **options)


def after(algorithm: Any = "fedavg", /, **settings: Any) -> State:
    """All tensors after a training. One that is named alone serves all tests that compare with it."""
    if isinstance(algorithm, str) and settings.keys().isdisjoint(("model", "data")):
        return named(algorithm, **settings)
    return states(federation(algorithm, **settings).run())


@functools.cache
def named(algorithm: str, /, **settings: Any) -> State:
    return states(federation(algorithm, **settings).run())


def mean(tensors: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    return torch.stack([weights[name] * tensor for name, tensor in tensors.items()]).sum(0)


def plugin(given: str | dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The class of an algorithm, whose hooks a test may watch, and its settings."""
    settings = {"name": given} if isinstance(given, str) else dict(given)
    return get("algorithm", settings.pop("name")), settings


# ---- where gradients lie


@pytest.mark.parametrize("bn", POLICIES)
@pytest.mark.parametrize("given", [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}], ids=str)
def test_gradients_in_one_vector_or_each_in_its_own(
    given: dict[str, float], bn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An algorithm that looks at gradients has them in one vector; of other large networks each tensor has its own."""
    monkeypatch.setattr(local_training, "LARGE", 0)
    lengths = []

    def correct(self: Any, local: Local) -> None:
        lengths.append(float(local.all_grad.norm()))

    looking = type("Looking", (get("algorithm", "fedavg"),), {"correct": correct})()
    expected = states(federation("fedavg", bn=bn, **given).run())  # anew, since LARGE has another value here
    assert differing(after(looking, bn=bn, **given), expected) == []
    assert lengths and min(lengths) > 0


# ---- terms of weight zero


@pytest.mark.parametrize("bn", POLICIES)
def test_fedprox_without_its_term_is_fedavg(bn: str) -> None:
    expected = after(bn=bn)
    assert differing(after({"name": "fedprox", "mu": 0.0}, bn=bn), expected) == []
    assert gap(after({"name": "fedprox", "mu": 1.0}, bn=bn), expected) > 1e-3


@pytest.mark.parametrize("bn", POLICIES)
def test_moon_without_its_term_is_fedavg(bn: str) -> None:
    expected = after(bn=bn)
    assert gap(after({"name": "moon", "mu": 0.0}, bn=bn), expected) < 1e-14
    assert gap(after({"name": "moon", "mu": 1.0}, bn=bn), expected) > 1e-4


@pytest.mark.parametrize("bn", POLICIES)
def test_moons_term_has_no_gradient_in_the_first_round(bn: str) -> None:
    """The previous model is then the global one. A large weight would show what is left of it by rounding."""
    moon, expected = federation({"name": "moon", "mu": 1e5}, bn=bn).run(1), federation(bn=bn).run(1)
    assert gap(states(moon), states(expected)) < 1e-12
    moon, expected = (federation(a, bn=bn).run(2) for a in ({"name": "moon", "mu": 1.0}, "fedavg"))
    assert gap(states(moon), states(expected)) > 1e-4


@pytest.mark.parametrize("bn", POLICIES)
@pytest.mark.parametrize("given", PERFEDAVG, ids=label)
def test_perfedavg_without_an_inner_step_is_fedavg(given: dict[str, Any], bn: str) -> None:
    """Its outer batches are those that FedAvg goes through, and only they move running statistics."""
    expected = after(bn=bn)
    assert differing(after({**given, "alpha": 0.0}, bn=bn), expected) == []
    assert gap(after({**given, "alpha": 0.05}, bn=bn), expected) > 1e-4


# ---- control variates


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("bn", POLICIES)
def test_scaffold_begins_as_fedavg(bn: str, option: int, weights: str) -> None:
    """In round 1 all control variates are zero."""
    given = {"name": "scaffold", "option": option}
    scaffold, fedavg = (federation(a, bn=bn, weights=weights) for a in (given, "fedavg"))
    assert gap(states(scaffold.run(1)), states(fedavg.run(1))) < 1e-14
    assert gap(states(scaffold.run(2)), states(fedavg.run(2))) > 1e-3


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("bn", POLICIES)
def test_scaffold_with_one_step_a_round_is_fedavg(bn: str, option: int, weights: str) -> None:
    """Corrections cancel in the mean, since one weighting serves the model and c. So do not those of two steps."""
    given, settings = {"name": "scaffold", "option": option}, {"bn": bn, "weights": weights, "rounds": 5}
    assert gap(after(given, local_steps=1, **settings), after(local_steps=1, **settings)) < 1e-13
    assert gap(after(given, local_steps=2, **settings), after(local_steps=2, **settings)) > 1e-4


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("option", [1, 2])
def test_scaffolds_c_is_the_mean_of_the_clients(option: int, weights: str, participation: float) -> None:
    """The mean has the weights of the model. It holds in every round, also where two of three clients take part."""
    trained = federation({"name": "scaffold", "option": option}, weights=weights, participation=participation)
    for number in range(1, 5):
        trained.run(number)
        expected = mean({c.name: c.state["c"] for c in trained.clients}, SHARES[weights])
        assert gap(trained.server.state, {"c": expected}) < 1e-14
        assert float(expected.abs().max()) > 1e-3


@pytest.mark.parametrize("participation", [1.0, 0.67])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_feddcs_server_holds_means_over_all_clients(weights: str, participation: float) -> None:
    """The drifts have a plain mean. Each s_i is weighted by w_i, a client's share over the mean share."""
    trained = federation({"name": "feddc", "alpha": 0.1}, weights=weights, participation=participation, lr=0.02)
    for number in range(1, 5):
        trained.run(number)
        expected = {
            key: mean({c.name: c.state[key] for c in trained.clients}, SHARES[shares])
            for key, shares in (("s", weights), ("drift", "uniform"))
        }
        assert gap(trained.server.state, expected) < 1e-13
        assert min(float(v.abs().max()) for v in expected.values()) > 1e-3


# ---- FedDC, whose means over clients are plain


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("bn", POLICIES)
def test_feddc_with_all_parts_off_is_fedavg_with_uniform_weights(bn: str, weights: str) -> None:
    """Shares enter FedDC through w_i alone, and w_i only through the parts that are off. Its mean is plain."""
    off = {"name": "feddc", "alpha": 0.0, "drift": False, "correction": False}
    expected = after(bn=bn, weights="uniform")
    assert differing(after(off, bn=bn, weights=weights), expected) == []
    for part in ({"alpha": 1.0}, {"drift": True}, {"correction": True}):
        assert gap(after({**off, **part}, bn=bn, weights=weights), expected) > 1e-3


@pytest.mark.parametrize("bn", POLICIES)
def test_feddc_without_drift_is_scaffold(bn: str) -> None:
    """Clients count equally here, w_i = 1, since SCAFFOLD weights s by share and FedDC divides by it."""
    given = {"name": "feddc", "alpha": 0.0, "drift": False}
    settings = {"bn": bn, "weights": "uniform", "rounds": 5}
    expected = after({"name": "scaffold", "option": 2}, **settings)
    assert gap(after(given, **settings), expected) < 1e-13
    assert gap(after({**given, "drift": True}, **settings), expected) > 1e-3
    by_size = [after(a, bn=bn) for a in (given, {"name": "scaffold", "option": 2})]
    assert gap(*by_size) > 1e-3


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("bn", POLICIES)
def test_feddcs_first_step_is_twice_fedproxs(bn: str, alpha: float) -> None:
    """Clients count equally here, so that alpha_i = alpha. Running statistics are those of FedProx, not moved twice."""
    feddc, fedprox = (
        federation(a, bn=bn, weights="uniform")
        for a in ({"name": "feddc", "alpha": alpha}, {"name": "fedprox", "mu": alpha})
    )
    start = feddc.server.params.clone()
    for trained in (feddc, fedprox):
        trained.run(1)
    step, half = feddc.server.params - start, fedprox.server.params - start
    assert float((step - 2 * half).abs().max()) < 1e-15
    assert float(half.abs().max()) > 1e-2
    assert torch.equal(feddc.server.shared[feddc.server.statistics], fedprox.server.shared[fedprox.server.statistics])


# ---- FedNova and FedAdam


@pytest.mark.parametrize("bn", POLICIES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_fednova_with_equal_steps_is_the_plain_mean(mu: float, momentum: float, bn: str) -> None:
    """Clients take equally many steps of one solver, so that a_i is the same for all; their sizes and weights differ.

    Its solver is FedAvg's without the proximal term, and FedProx's without momentum.
    """
    given = {"name": "fednova", "mu": mu}
    settings = {"bn": bn, "momentum": momentum, "weight_decay": 0.0 if mu else 0.01}
    travels = [k for kind in TRAVELS[bn] for k in kinds(network())[kind]]
    for steps in ({"local_steps": 4}, {}):
        algorithm, seen = watching(given)
        trained = federation(algorithm, **settings, **steps)
        for number in range(1, 4):
            trained.run(number)
            ends = {k: mean({name: end[k] for name, end in seen[-1].items()}, SHARES["size"]) for k in travels}
            away = gap({k: trained.global_state()[k] for k in travels}, ends)
            assert away < 1e-13 if steps else away > 1e-4, "steps in proportion to sizes are no plain mean"
    if not (mu and momentum):
        expected = after({"name": "fedprox", "mu": mu}, local_steps=4, **settings)
        assert gap(after(given, local_steps=4, **settings), expected) < 1e-13
    if mu:
        assert gap(after(given, local_steps=4, **settings), after(local_steps=4, **settings)) > 1e-3


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({**ADAPTIVE, "v0": 0.0, "tau": 0.1, "server_lr": 0.1}, 1e-14),
        ({**ADAPTIVE, "tau": 0.1, "server_lr": 0.2}, 1e-14),
        ({**ADAPTIVE, "beta2": 0.99, "v0": 0.0, "tau": 1e8, "server_lr": 1e8}, 2e-10),
    ],
    ids=["v0 = 0, eta_g = tau", "v0 = tau^2, eta_g = 2 tau", "eta_g = tau = 1e8"],
)
@pytest.mark.parametrize("bn", POLICIES)
def test_fedadam_without_adaptivity_is_fedavg(bn: str, given: dict[str, Any], bound: float) -> None:
    expected = after(bn=bn)
    assert gap(after(given, bn=bn), expected) < bound
    for adaptive in ({"beta1": 0.9}, {"beta2": 0.9, "tau": 0.1, "server_lr": 0.1, "v0": 0.0}):
        assert gap(after({**given, **adaptive}, bn=bn), expected) > 1e-3


# ---- batch norm that stays, or is not there


@pytest.mark.parametrize("norm", ["group norm", "no norm"])
@pytest.mark.parametrize("name", ["fedbn", "silobn"])
def test_without_batch_norm_nothing_stays(name: str, norm: str) -> None:
    expected = after(model=network(norm))
    assert differing(after(name, model=network(norm)), expected) == []
    assert gap(after(name), after()) > 1e-3, "with batch norm, something does"


def test_silobns_trained_tensors_are_fedavgs() -> None:
    """Running statistics do not enter training; they alone differ."""
    silobn, fedavg = after("silobn", rounds=5), after(rounds=5)
    moved = {k.partition("/")[2] for k in differing(silobn, fedavg)}
    assert moved == set(kinds(network())["statistics"])


@pytest.mark.parametrize("bn", POLICIES)
@pytest.mark.parametrize(
    "given", ["fedprox", "scaffold", "fednova", "fedadam", {"name": "feddc", "drift": False}, *PERFEDAVG], ids=label
)
def test_running_statistics_are_plainly_averaged_whatever_is_done_to_parameters(given: Any, bn: str) -> None:
    """FedDC's means do not weight clients by size; all others' do."""
    (cls, _), (algorithm, seen) = plugin(given), watching(given)
    weight, trained = SHARES["uniform" if cls.name == "feddc" else "size"], federation(algorithm, bn=bn)
    for number in range(1, 4):
        trained.run(number)
        now = seen[number - 1]
        for k in kinds(network())["statistics"]:
            average = mean({name: state[k] for name, state in now.items()}, weight)
            for name in SIZES:
                expected = average if "statistics" in TRAVELS[bn] else now[name][k]
                assert gap({k: trained.client_state(name)[k]}, {k: expected}) < 1e-14


@pytest.mark.parametrize("bn", POLICIES)
@pytest.mark.parametrize(
    "given", [{"name": "fedprox", "mu": 1.0}, "scaffold", {"name": "fednova", "mu": 1.0}, "feddc"], ids=label
)
def test_corrections_act_on_what_is_trained_and_travels(given: Any, bn: str) -> None:
    """Never on running statistics, nor on gamma and beta that stay: neither the server nor a client has any.

    A bias before batch norm has no gradient but rounding's, and so may have no correction.
    """
    cls, settings = plugin(given)
    touched: set[str] = set()

    def correct(self: Any, local: Local) -> None:
        grads = {k: p.grad for k, p in local.model.named_parameters() if p.grad is not None}
        before, state = ({k: v.clone() for k, v in of.items()} for of in (grads, local.model.state_dict()))
        cls.correct(self, local)
        touched.update(differing(grads, before), differing(local.model.state_dict(), state))

    trained = federation(type("Watching", (cls,), {"correct": correct})(**settings), bn=bn).run(2)
    tensors = network().state_dict()
    names = {k for kind in TRAVELS[bn] if kind != "statistics" for k in kinds(network())[kind]}
    size = sum(tensors[k].numel() for k in names)
    assert names - {"0.bias", "3.bias"} <= touched <= names
    assert trained.server.params.numel() == size
    for state in (trained.server.state, *(c.state for c in trained.clients)):
        assert {v.numel() for v in state.values()} <= {size}


# ---- one client, identical clients, other names


@pytest.mark.parametrize("given", AT_REST, ids=label)
def test_one_client_alone_is_trained_locally(given: dict[str, Any]) -> None:
    """And is the pool of all data, whose name it bears, since the order of batches depends on that."""
    settings = {k: v for k, v in given.items() if k in ("bn", *MOMENTUM)}
    algorithm = {k: v for k, v in given.items() if k not in settings}
    data = {"pooled": clients()["b"]}
    got = federation(algorithm, data=data, **settings).run().client_state("pooled")
    three = federation(algorithm, **settings).run().client_state("b")
    settings.pop("bn", None)
    for control in ("local", "pooled"):
        expected = federation(control, data=data, **settings).run().client_state("pooled")
        assert gap(got, expected) < 1e-13
    assert gap(got, three) > 1e-3, "three clients are not one"


def test_identical_clients_take_the_step_of_one_copy() -> None:
    """FedAvg, FedTAN and training on one copy, in one step a round on whole batches.

    The joint variance is over three copies, so that Bessel's factor is another: n / (n - 1) with three times as many.
    """
    x, y = clients()["b"]
    settings = {**WHOLE, "local_steps": 1, "rounds": 5}
    three, one = dict.fromkeys("abc", (x, y)), {"a": (x, y)}
    copy = federation("pooled", data=one, **settings).run().global_state()
    for algorithm in ("fedavg", "fedavg_alg2", "fedtan"):
        got = federation(algorithm, data=three, **settings).run().global_state()
        for k, v in got.items():
            if k.endswith("running_var") and algorithm != "fedavg":
                n, left = x[:, 0].numel(), 0.9**5
                expected = left + (copy[k] - left) * (3 * n / (3 * n - 1)) / (n / (n - 1))
                assert gap({k: v}, {k: expected}) < 1e-13
            else:
                assert gap({k: v}, {k: copy[k]}) < 1e-13
    settings["batch_size"] = 3 * len(y)
    union, joint = (federation(a, data=three, **settings).run().global_state() for a in ("pooled", "fedtan"))
    assert gap(joint, union) < 1e-13
    unlike = [federation(a, **settings).run().global_state() for a in ("fedavg", "fedtan")]
    assert gap(*unlike) > 1e-3, "clients that differ do not"


def test_identical_clients_of_vectors_agree_with_the_references_correction_too() -> None:
    """FedTAN's code counts one client's images, which are all elements of a fully connected layer's batch."""
    x, y = clients()["b"]
    model = initialise(build("model", {"name": "mlp", "hidden": 7}), tuple(x.shape[1:]), 3, seed=0).double()
    settings: dict[str, Any] = {**WHOLE, "local_steps": 1, "rounds": 5, "model": model}
    copy = federation("pooled", data={"a": (x, y)}, **settings).run().global_state()
    for correction, bound in (("fedtan_code", 1e-13), ("torch", 1.0)):
        given = {"name": "fedtan", "running_var_bessel": correction}
        joint = federation(given, data=dict.fromkeys("abc", (x, y)), **settings).run().global_state()
        assert gap(joint, copy) < bound
        assert (gap(joint, copy) > 1e-3) == (correction == "torch")


@pytest.mark.parametrize("given", ALL, ids=label)
def test_names_and_order_of_clients_change_nothing(given: Any) -> None:
    """Batches are whole, since a client's name decides which they are. The order of clients changes not even a bit."""
    data, renamed = clients(), dict(zip("cab", clients().values(), strict=True))
    here, there = (federation(given, data=of, **WHOLE).run() for of in (data, renamed))
    assert gap(here.global_state(), there.global_state()) < 1e-12
    if here.algorithm.name != "pooled":
        for old, new in zip(data, renamed, strict=True):
            assert gap(here.client_state(old), there.client_state(new)) < 1e-12
        backwards = {name: data[name] for name in reversed(data)}
        assert differing(states(here), after(given, data=backwards, **WHOLE)) == []
    assert gap(here.global_state(), network().state_dict()) > 1e-3


# ---- FedTAN-II


def test_fedtan2_that_never_stops_exchanging_is_fedtan() -> None:
    expected = after("fedtan")
    assert differing(after({"name": "fedtan2", "exchange_rounds": 3}), expected) == []
    assert gap(after({"name": "fedtan2", "exchange_rounds": 2}), expected) > 1e-3


@pytest.mark.parametrize("given", [{"name": "fedtan2", "exchange_rounds": 0}, {"name": "fixbn", "freeze_after": 0}])
def test_statistics_that_are_frozen_from_the_start(given: dict[str, Any]) -> None:
    """FedTAN-II that never exchanges, and FixBN, are FedAvg in plain PyTorch with batch norm in evaluation mode.

    Statistics are not 0 and 1.
    """
    model = network()
    model(torch.cat([x for x, _ in clients().values()]))
    frozen = {k: model.state_dict()[k].clone() for k in kinds(model)["statistics"] + kinds(model)["counters"]}
    noted = {name: Noted(*given) for name, given in clients().items()}
    got = federation(given, model=model, data=noted, momentum=0.9).run()

    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            for layer in (self[1], self[4]):
                layer.eval()
            return self

    training = Training(**{**BASE, "momentum": 0.9})
    taken = {name: samples.taken for name, samples in noted.items()}
    mean, _, _ = plain.fedavg(Frozen(*model.children()), clients(), training, "aggregated", 3, taken)
    assert gap({k: got.global_state()[k] for k in mean}, mean) < 1e-13
    for k, v in frozen.items():
        assert gap({k: got.global_state()[k]}, {k: v}) < 1e-14, "means of equal tensors"
    moving = federation(model=model, momentum=0.9).run()
    assert gap({k: moving.global_state()[k] for k in mean}, mean) > 1e-3


# ---- FixBN


@pytest.mark.parametrize("bn", POLICIES)
def test_fixbn_that_never_freezes_is_fedavg(bn: str) -> None:
    expected = after("fedavg", bn=bn)
    assert differing(after({"name": "fixbn", "freeze_after": 3}, bn=bn), expected) == []
    assert gap(after({"name": "fixbn", "freeze_after": 2}, bn=bn), expected) > 1e-4


@pytest.mark.parametrize("bn", POLICIES)
def test_fixbn_is_fedavg_until_statistics_freeze_and_these_stay_as_they_are(bn: str) -> None:
    """Where statistics stay at the clients, each freezes its own."""
    got = federation("fixbn", bn=bn, rounds=4).run(2)
    frozen = states(got)
    assert differing(frozen, states(federation("fedavg", bn=bn, rounds=4).run(2))) == []
    ended = states(got.run())
    kept = [f"{owner}/{k}" for owner in ("global", *SIZES) for k in kinds(network())["statistics"]]
    assert gap({k: ended[k] for k in kept}, {k: frozen[k] for k in kept}) < 1e-14, "means of equal tensors"
    assert gap(ended, frozen) > 1e-3
    apart = gap(*({k: frozen[f"{site}/{k}"] for k in kinds(network())["statistics"]} for site in "ab"))
    assert (apart > 0.1) == ("statistics" not in TRAVELS[bn])


def test_the_second_phases_of_fixbn_and_fedtan2_are_the_same() -> None:
    first = federation({"name": "fedtan2", "exchange_rounds": 2}, rounds=4, **MOMENTUM).run(2)
    second = federation({"name": "fixbn", "freeze_after": 2}, rounds=4, **MOMENTUM)
    second.restore(first.tensors(), first.progress())
    assert differing(states(second.run()), states(first.run())) == []
