"""Edges of the engine: what is shuffled, pooled, put in place, counted, kept and let go."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from predicting import images_of, predicted, state_of, trained
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from toy import BATCH_NORMS, CLASSES, Noted, clients, differing, network

from fedshift import Federation
from fedshift.addons import Addon, extended
from fedshift.algorithms import Local
from fedshift.algorithms.moon import Moon
from fedshift.core.errors import UserError
from fedshift.models.densenet_small import DenseNetSmall
from fedshift.nn.batchnorm import batch_norms

Array = NDArray[np.float64]
PLAIN: dict[str, Any] = {"rounds": 3, "batch_size": 4, "lr": 0.1, "select": "last"}


def federation(algorithm: Any = "fedavg", bn: str | None = None, **given: Any) -> Federation:
    """Three sites and the small network, whose every part a test may replace."""
    model, sites = given.pop("model", None) or network(), given.pop("sites", None) or clients()
    seed, addon = given.pop("seed", 0), given.pop("addon", None)
    return Federation(model, sites, algorithm=algorithm, bn=bn, addon=addon, training=PLAIN | given, seed=seed)


def working(fed: Federation, place: int = 0) -> Any:
    """The work of a client in the next round, as it begins."""
    fed.server.lr = fed.training.lr
    fed.trainer.take_turn(fed.clients[place], fed.rounds.assignment(place, fed.algorithm.broadcast(fed.server)))
    return fed.trainer


# ---- SCAFFOLD's full gradient


def gradient(model: nn.Module, x: Tensor, y: Tensor, batches: list[Tensor]) -> Tensor:
    """The mean over batches, weighted by size, each normalised by itself."""
    model = copy.deepcopy(model).train()
    for index in batches:
        (cross_entropy(model(x[index]), y[index]) * len(index) / len(y)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def by_class() -> tuple[Tensor, Tensor]:
    """Sixty samples sorted by class; classes differ in brightness, which batch norm takes from sorted batches."""
    y = torch.arange(3).repeat_interleave(20)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 2, 6, 6))) + 4 * y[:, None, None, None]
    return x, y


def test_the_full_gradient_goes_over_shuffled_batches() -> None:
    """It is a typical one of many shuffles, and far from that of the stored order."""
    x, y = by_class()
    model, samples = network(), Noted(x, y)
    fed = federation({"name": "scaffold", "option": 1}, model=model, sites={"a": samples}, batch_size=10)
    vector, layout, taken = working(fed).full_gradient(), fed.trainer.layout, samples.taken
    found = torch.cat([layout.places[k].view(vector).flatten() for k, _ in model.named_parameters()])
    assert sorted(torch.cat(taken).tolist()) == list(range(60))
    assert [len(t) for t in taken] == [10] * 6
    torch.testing.assert_close(found, gradient(model, x, y, taken), rtol=1e-9, atol=1e-12)
    rng = np.random.default_rng(1)
    many = [gradient(model, x, y, list(torch.from_numpy(rng.permutation(60)).split(10))) for _ in range(40)]
    mean = torch.stack(many).mean(0)
    typical = max(float((g - mean).norm()) for g in many)
    stored = gradient(model, x, y, list(torch.arange(60).split(10)))
    assert float((stored - mean).norm()) > 3 * typical, "the stored order must make a difference"
    assert float((found - mean).norm()) < 1.5 * typical


def test_the_full_gradient_leaves_everything_as_it_was() -> None:
    fed = federation({"name": "scaffold", "option": 1}, sites={"a": by_class()})
    fed.run(1)
    work, trainer = working(fed), fed.trainer
    trainer.all_grad.copy_(torch.linspace(-1, 1, len(trainer.all_grad)))
    before = [t.clone() for t in (trainer.state_vector, trainer.counters, trainer.all_grad)]
    assert float(work.full_gradient().norm()) > 0
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (trainer.state_vector, trainer.counters, trainer.all_grad), strict=True)
    )
    assert all(m.track_running_stats for m in batch_norms(trainer.model).values())


# ---- pooled running variances


def forgetful(norm: str = "batch norm") -> nn.Module:
    """BN layers that keep the last batch's statistics alone."""
    model = network(norm)
    for module in model.modules():
        if isinstance(module, BATCH_NORMS):
            module.momentum = 1.0
    return model


def moments(model: nn.Module, x: Tensor) -> dict[str, tuple[Array, Array]]:
    """Mean and unbiased variance of what enters each BN layer, with one batch of all images."""
    seen: dict[str, Array] = {}
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS):
            module.register_forward_pre_hook(lambda _, given, name=name: seen.update({name: given[0].detach().numpy()}))
    model.train()(x)
    return {k: (v.mean((0, 2, 3)), v.var((0, 2, 3), ddof=1)) for k, v in seen.items()}


BY_SIZE = {"a": 13 / 44, "b": 22 / 44, "c": 9 / 44}


@pytest.mark.parametrize("bn", ["aggregated", "local_affine"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fednova", "fedadam", "feddc"])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_pooled_variances_are_those_of_the_mixture(algorithm: str, bn: str, participation: float) -> None:
    """The network has two BN layers; there are two rounds of one step on all of a client's images."""
    sites = clients()
    pooled = {"running_variance": "pooled", "participation": participation, "batch_size": 32}
    fed = federation(algorithm, bn, model=forgetful(), sites=sites, **pooled)
    weights = dict.fromkeys(sites, 1 / 3) if algorithm == "feddc" else BY_SIZE
    for number in (1, 2):
        chosen = [c.name for c in fed.participants(number)]
        assert len(chosen) == (3 if participation == 1 else 2)
        starts = {name: network() for name in chosen}
        for name, start in starts.items():
            start.load_state_dict(fed.client_state(name))
        of_each = {name: moments(start, sites[name][0]) for name, start in starts.items()}
        fed.run(number)
        state, total = fed.global_state(), sum(weights[name] for name in chosen)
        assert len(of_each[chosen[0]]) == 2
        for layer in of_each[chosen[0]]:
            p, means, variances = zip(*((weights[n] / total, *of_each[n][layer]) for n in chosen), strict=True)
            mean = sum(a * m for a, m in zip(p, means, strict=True))
            square = sum(a * (v + m**2) for a, m, v in zip(p, means, variances, strict=True))
            np.testing.assert_allclose(state[f"{layer}.running_mean"].numpy(), mean, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(state[f"{layer}.running_var"].numpy(), square - mean**2, rtol=1e-9)
            averaged = sum(a * v for a, v in zip(p, variances, strict=True))
            assert (square - mean**2 > averaged).all()


@pytest.mark.parametrize("bn", ["local", "local_statistics"])
def test_where_statistics_stay_nothing_is_pooled(bn: str) -> None:
    one, two = (federation("fedavg", bn, running_variance=how).run(2) for how in ("averaged", "pooled"))
    assert not differing(one.tensors(), two.tensors())


def test_pooled_variances_make_a_difference_where_they_travel() -> None:
    one, two = (federation("fedavg", running_variance=how).run(1) for how in ("averaged", "pooled"))
    assert differing(one.global_state(), two.global_state()) == ["1.running_var", "4.running_var"]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedtan", "moon"])
def test_pooled_variances_after_a_resume_are_the_same_bits(algorithm: str) -> None:
    given: dict[str, Any] = {"running_variance": "pooled", "participation": 0.7}
    whole, half, rest = (federation(algorithm, **given) for _ in range(3))
    half.run(1)
    rest.restore(half.tensors(), half.progress())
    assert not differing(whole.run(3).tensors(), rest.run(3).tensors())


def test_moons_previous_network_has_its_own_variances() -> None:
    """Clients do the same in the first round, however variances are averaged after it."""
    one, two = (federation("moon", running_variance=how).run(1) for how in ("averaged", "pooled"))
    for a, b in zip(one.clients, two.clients, strict=True):
        assert not differing(a.state, b.state)


def test_a_pooled_variance_is_never_negative() -> None:
    """A channel far from zero that hardly varies, and one that never does."""
    rng, sites = np.random.default_rng(0), {}
    for name, n in (("a", 13), ("b", 22), ("c", 9)):
        x = np.stack([rng.normal(300, 0.01, n), np.full(n, 1000 / 3)], 1)
        sites[name] = torch.from_numpy(x).float(), torch.arange(n) % CLASSES
    model = nn.Sequential(nn.BatchNorm1d(2, momentum=1.0), nn.Linear(2, CLASSES))
    state = federation(model=model, sites=sites, running_variance="pooled").run(1).global_state()
    assert (state["0.running_var"] >= 0).all()
    model.load_state_dict(state)
    assert model.eval()(sites["a"][0]).isfinite().all()


# ---- MOON's projection head, and its frozen networks


class Nested(nn.Module):
    """A convolution, and a head two levels down whose name comes before the others'."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.ModuleDict({"head": nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))})
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.a["head"](self.features(x))
        return out


NETWORKS: dict[str, Any] = {
    "sequential": (network, "9", 6, (5, 2, 6, 6)),
    "nested": (Nested, "a.head.1", 4, (5, 2, 6, 6)),
    "densenet": (lambda: DenseNetSmall().build((3, 32, 32), CLASSES), "classifier", None, (2, 3, 32, 32)),
    "bare": (lambda: nn.Linear(7, CLASSES), "", 7, (5, 7)),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_head_stands_in_place_of_the_last_linear_layer(kind: str) -> None:
    make, place, size, shape = NETWORKS[kind]
    model = make()
    before, replaced = copy.deepcopy(model.state_dict()), model.get_submodule(place)
    size = size or replaced.in_features
    torch.manual_seed(3)
    one = extended(Moon(projection_dim=5), model, 0)
    torch.manual_seed(4)
    two, other = (extended(Moon(projection_dim=5), model, seed) for seed in (0, 1))
    assert not differing(before, model.state_dict())
    assert model.get_submodule(place) is replaced
    head = one.get_submodule(place)
    assert isinstance(head, nn.Sequential)
    assert [type(m) for m in head] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    sizes = [(m.in_features, m.out_features) for m in head if isinstance(m, nn.Linear)]
    assert sizes == [(size, size), (size, 5), (5, CLASSES)]
    prefix = f"{place}." if place else ""
    own = [f"{prefix}{k}" for k in head.state_dict()]
    old = {f"{prefix}weight", f"{prefix}bias"}
    assert set(one.state_dict()) == set(before) - old | set(own)
    rest = {k: v for k, v in one.state_dict().items() if k not in own}
    assert not differing(rest, {k: v for k, v in before.items() if k not in old})
    assert not differing(one.state_dict(), two.state_dict())
    assert differing(one.state_dict(), other.state_dict()) == sorted(own)
    kind_of = next(model.parameters()).dtype
    assert one(torch.ones(shape, dtype=kind_of)).shape == (shape[0], CLASSES)
    assert {p.dtype for p in one.parameters()} == {kind_of}


def test_features_are_the_projection() -> None:
    """The loss by hand, in the second round, when a client has a previous network."""
    x, y = clients()["a"]
    fed = federation({"name": "moon", "projection_dim": 5, "mu": 2.0, "temperature": 0.3}, "local").run(1)
    work = working(fed)
    fed.algorithm.begin(work)
    fed.trainer.mode(train=True)

    def with_tensors(state: dict[str, Tensor], train: bool) -> nn.Module:
        model = extended(Moon(projection_dim=5), network(), 0)
        model.load_state_dict(state, strict=False)
        return model.train(train)

    def projected(model: nn.Module) -> Tensor:
        assert isinstance(model, nn.Sequential)
        first, relu, second, _ = model[9]
        return second(relu(first(model[:9](x))))

    previous = fed.trainer.layout.unpack(fed.clients[0].state["previous"])
    now = fed.client_state("a")
    assert differing({k: now[k] for k in previous}, previous)
    mine = with_tensors(now, True)
    z = projected(mine)
    near, far = (cosine_similarity(z, projected(with_tensors(s, False))) / 0.3 for s in (now, previous))
    contrast = -torch.log(near.exp() / (near.exp() + far.exp())).mean()
    expected = cross_entropy(mine[9][3](z), y) + 2 * contrast  # type: ignore[index]
    found, _ = fed.algorithm.loss(work, x, y)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    assert abs(float(contrast.detach()) - math.log(2)) > 1e-6


def test_the_head_goes_with_jigen() -> None:
    """JiGen's own head takes the projection too; both travel."""
    jigen = {"name": "jigen", "grid": 2, "permutations": 4, "bias_whole_image": 0.5}
    fed = federation({"name": "moon", "projection_dim": 5}, addon=jigen).run(2)
    state = fed.global_state()
    assert state["9.3.jigsaw_weight"].shape == (5, 5)
    start = federation({"name": "moon", "projection_dim": 5}, addon=jigen).global_state()
    assert {"9.0.weight", "9.2.weight", "9.3.weight", "9.3.jigsaw_weight"} <= set(differing(state, start))


def test_prediction_rebuilds_the_head(tmp_path: Path) -> None:
    plan, paths = trained(tmp_path, runs=[{"algorithm": {"name": "moon", "projection_dim": 3}, "bn": "local"}])
    ((name, run),) = plan.runs.items()
    table = predicted(plan, paths, name, "source")
    assert set(table["site"]) == {*run.partition.internal, *run.partition.external}
    for site, part in table.groupby("site"):
        s, x = state_of(paths, name, str(site)), images_of(plan, paths, name, part)
        h = x @ s["1.weight"].T + s["1.bias"]
        h = (h - s["2.running_mean"]) / np.sqrt(s["2.running_var"] + 1e-5) * s["2.weight"] + s["2.bias"]
        h = np.maximum(h, 0) @ s["4.0.weight"].T + s["4.0.bias"]
        h = np.maximum(h, 0) @ s["4.2.weight"].T + s["4.2.bias"]
        odds = np.exp(h @ s["4.3.weight"].T + s["4.3.bias"])
        np.testing.assert_allclose(part[["p0", "p1"]], odds / odds.sum(1, keepdims=True), rtol=1e-3, atol=1e-5)


class Spied(nn.Module):
    """Notes what every copy of it is given."""

    log: list[tuple[bool, Tensor]] = []  # noqa: RUF012 - copies share it

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        self.log.append((self.training, x.detach().clone()))
        out: Tensor = self.inner(x)
        return out


@pytest.mark.parametrize(
    ("addon", "passes"),
    [
        ({"name": "jigen", "grid": 2, "permutations": 4, "bias_whole_image": 0.0, "grayscale": 0.0}, 1),
        ({"name": "randconv", "kernel_sizes": [3]}, 3),
    ],
)
def test_frozen_networks_see_the_images_that_the_add_on_made(addon: dict[str, Any], passes: int) -> None:
    x, y = clients()["a"]
    fed = federation("moon", addon=addon, model=Spied()).run(1)
    work = working(fed)
    fed.algorithm.begin(work)
    fed.trainer.mode(train=True)
    Spied.log.clear()
    fed.algorithm.loss(work, x, y)
    own, frozen = ([seen for train, seen in Spied.log if train is which] for which in (True, False))
    assert (len(own), len(frozen)) == (passes, 2)
    assert all(torch.equal(seen, own[0]) for seen in frozen)
    assert not torch.equal(own[0], x)


# ---- two names for one thing


class Twice(nn.Module):
    """One BN layer used at two places, a trained tensor that is tied, and a frozen one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.again = self.norm
        self.second.weight = self.first.weight
        self.fixed, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen.weight = self.fixed.weight.requires_grad_(False)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.again(self.second(self.norm(self.first(x))).relu())
        out: Tensor = self.last(self.frozen(self.fixed(x)))
        return out


TIED = (("norm", "again", ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),)
TIED = (*TIED, ("first", "second", ("weight",)), ("fixed", "frozen", ("weight",)))


def twice(bn: str) -> Federation:
    rng = np.random.default_rng(0)
    sites = {
        k: (torch.from_numpy(rng.normal(size=(n, 4))).float(), torch.arange(n) % 3) for k, n in (("a", 9), ("b", 6))
    }
    return federation(bn=bn, model=Twice(), sites=sites, batch_size=3).run(2)


def test_what_stays_at_clients_has_all_its_names() -> None:
    fed = twice("local")
    assert set(differing(fed.global_state(), fed.client_state("b"))) <= set(fed.trainer.own_names)


@pytest.mark.parametrize("bn", ["aggregated", "local", "local_statistics", "local_affine"])
def test_states_load_into_a_network_with_two_names_for_a_tensor(bn: str) -> None:
    fed = twice(bn)
    for state, steps in ((fed.client_state("a"), 6), (fed.client_state("b"), 4), (fed.global_state(), None)):
        for one, other, leaves in TIED:
            assert all(torch.equal(state[f"{one}.{leaf}"], state[f"{other}.{leaf}"]) for leaf in leaves)
        model = Twice()
        start = copy.deepcopy(model.state_dict())
        model.load_state_dict(state, strict=True)
        assert not differing(model.state_dict(), state)
        moved = differing(start, state)
        assert {"first.weight", "again.running_mean"} <= set(moved)
        if steps:
            assert int(state["again.num_batches_tracked"]) == 2 * steps, "two passes a step"


# ---- counters


@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg_alg2", "fedavg", {"name": "fedtan2", "exchange_rounds": 3}])
def test_counters_grow_by_what_a_client_took_part_in(algorithm: Any) -> None:
    fed = federation(algorithm, participation=0.67, weights="uniform")
    expected, steps = dict.fromkeys("abc", 0), {"a": 3, "b": 6, "c": 2}  # of 4; a last batch of one is joined
    for number in (1, 2, 3):
        drawn = [c.name for c in fed.participants(number)]
        assert len(drawn) == 2
        fed.run(number)
        expected |= {name: expected[name] + steps[name] for name in drawn}
        found = {k: {int(v) for n, v in fed.client_state(k).items() if "tracked" in n} for k in expected}
        assert found == {k: {n} for k, n in expected.items()}
    assert len(set(expected.values())) > 1


# ---- schedules and warnings


@pytest.mark.parametrize("rounds", [4, 100])
def test_cosine_ends_with_the_training(rounds: int) -> None:
    fed = federation(schedule="cosine").run(3)
    before = fed.tensors()
    with pytest.raises(UserError) as caught:
        fed.run(rounds)
    said = f"rounds: {rounds}, but the cosine schedule ends after 3; raise training.rounds"
    assert str(caught.value) == said
    assert fed.server.round == 3
    assert not differing(before, fed.tensors())


def test_a_constant_schedule_goes_on() -> None:
    short, long = federation(rounds=2).run(5), federation(rounds=5).run()
    assert short.server.round == 5
    assert not differing(short.tensors(), long.tensors())


NO_NORM = "is FedAvg here, since the network has no batch-norm layer"


@pytest.mark.parametrize(
    "algorithm",
    ["fedtan", "fedavg_alg2", "fedtan2", {"name": "fedtan2", "exchange_rounds": 0}, "fixbn", "fedavg", "scaffold"],
)
def test_a_joint_step_without_batch_norm_is_a_warning(algorithm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = algorithm if isinstance(algorithm, str) else algorithm["name"]
    federation(algorithm, model=network("group norm"), rounds=100)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ([] if name in ("fedavg", "scaffold") else [f"algorithm: {name} {NO_NORM}"])
    federation(algorithm, rounds=100)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg_alg2"])
@pytest.mark.parametrize(
    ("weights", "batch", "told"), [("size", 4, 1), ("uniform", 4, 0), ("size", 32, 0), ("uniform", 32, 1)]
)
def test_weights_out_of_proportion_are_told_once(
    algorithm: str, weights: str, batch: int, told: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of 4 are equal; of 32, all the images of a client."""
    federation(algorithm, weights=weights, batch_size=batch).run(3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == told
    assert all("weights are not in proportion to their batches" in line for line in lines)


# ---- what is kept, and what is let go

KEEPING = [
    "fedavg",
    "moon",
    "scaffold",
    "feddc",
    "fedadam",
    "perfedavg",
    "fedtan",
    {"name": "fednova", "server_momentum": 0.5},
]
CASES = [
    (a, bn) for a in KEEPING for bn in ("aggregated", "local", "local_affine") if a != "fedtan" or bn == "aggregated"
]


@pytest.mark.parametrize(("algorithm", "bn"), CASES)
def test_nothing_that_is_kept_is_a_view_of_the_trainer(algorithm: Any, bn: str) -> None:
    """Whatever becomes of the flat vectors after a round, the next one is the same to the bit."""
    fed, other = (federation(algorithm, bn).run(1) for _ in range(2))
    before, trainer = fed.tensors(), fed.trainer
    trainer.state_vector.fill_(math.nan)
    trainer.all_grad.fill_(math.nan)
    trainer.counters.fill_(-1)
    for _, state_vector, counters in trainer._copies.values():
        state_vector.fill_(math.nan)
        counters.fill_(-1)
    assert not differing(before, fed.tensors())
    kept = [t for c in fed.clients for t in (c.own, c.counters, *c.state.values())]
    assert {t.device.type for t in kept} == {"cpu"}
    assert not any(t.requires_grad for t in kept)
    assert not differing(fed.run(2).tensors(), other.run(2).tensors())


@pytest.mark.parametrize("algorithm", ["moon", "scaffold", "perfedavg", "fedtan"])
def test_a_clients_working_copies_end_with_its_turn(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one client trains, there is no other's work; after the round there is none."""
    fed, seen = federation(algorithm), list[tuple[weakref.ref[Any], ...]]()
    take_turn, end_turn = fed.trainer.take_turn, fed.trainer.end_turn

    def noted() -> None:
        trainer = fed.trainer
        tensors = [*trainer.scratch.values(), *trainer.state.values(), *trainer.broadcast.values()]
        seen.append(tuple(weakref.ref(tensor) for tensor in tensors))
        del tensors
        end_turn()

    def alone(*args: Any) -> None:
        take_turn(*args)
        assert (fed.trainer.scratch, fed.trainer.networks, fed.trainer.steps) == ({}, {}, 0)

    monkeypatch.setattr(fed.trainer, "end_turn", noted)
    monkeypatch.setattr(fed.trainer, "take_turn", alone)
    fed.run(2)
    gc.collect()
    assert len(seen) >= 6
    assert (fed.trainer.scratch, fed.trainer.networks, fed.trainer.state, fed.trainer.broadcast) == ({}, {}, {}, {})
    held = [tensor for client in fed.clients for tensor in client.state.values()] + [*fed.server.state.values()]
    alive = [t for refs in seen for ref in refs if (t := ref()) is not None and not any(t is h for h in held)]
    assert alive == []


# ---- Per-FedAvg and dropout


class Straight(Addon):
    """A loss that is linear in the last layer's parameters, given the masks of dropout."""

    def loss(self, local: Local, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean logit of the true class, negative."""
        logits = local.model(x)
        return -logits.gather(1, y[:, None]).mean(), logits


def meta(variant: str, model: nn.Module, **given: Any) -> dict[str, Tensor]:
    spec = {"name": "perfedavg", "variant": variant, "alpha": 0.5, "delta": given.pop("delta", 1e-3)}
    return federation(spec, model=model, local_steps=1, **given).run(1).global_state()


def test_both_sides_of_the_difference_see_the_same_masks() -> None:
    """A linear loss leaves nothing to correct, up to rounding; other masks would make a difference."""

    def linear() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, CLASSES)).double()

    one, two = (meta(variant, linear(), addon=Straight()) for variant in ("first_order", "hessian_free"))
    assert differing(one, linear().state_dict()) == ["2.bias", "2.weight"]
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-10)


def test_the_difference_with_dropout_converges() -> None:
    """The error falls as delta does, by a factor of 100; with separate masks it would grow by that factor."""
    wide, narrow = (meta("hessian_free", network(dropout=0.5), delta=delta) for delta in (1e-3, 1e-5))
    first = meta("first_order", network(dropout=0.5))
    for name in ("0.weight", "9.weight"):
        correction = float((first[name] - wide[name]).norm())
        assert correction > 1e-5
        assert float((wide[name] - narrow[name]).norm()) < 1e-2 * correction


def test_the_step_with_dropout_is_reproducible() -> None:
    torch.manual_seed(1)
    one, state = meta("hessian_free", network(dropout=0.5)), torch.get_rng_state()
    torch.rand(7)
    two = meta("hessian_free", network(dropout=0.5))
    assert not differing(one, two)
    assert differing(one, meta("hessian_free", network(dropout=0.5), seed=1))
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
