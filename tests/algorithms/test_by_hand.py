"""Whole rounds of every algorithm against NumPy with all formulas written out (`tests/support/by_hand.py`), float64."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import by_hand
import numpy as np
import pytest
import server_by_hand
import torch
from by_hand import Federated, Site, Vector
from torch import Tensor, nn
from toy import TRAVELS, Noted

from fedshift import Federation

close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
SIZES = {"a": 5, "b": 9, "c": 7, "d": 14}
STEPS = {"a": 2, "b": 4, "c": 4, "d": 8}
"""In two epochs with batches of 4: a has one batch of 5; b 4 and 5; c 4 and 3; d 4, 4, 4 and 2."""
ROUNDS = 3
LR, DECAY = 0.4, 0.7
BASE: dict[str, Any] = {
    "rounds": ROUNDS, "lr": LR, "schedule": "exponential", "lr_decay": DECAY, "select": "last",
}  # fmt: skip
WHOLE = {"local_steps": 3, "batch_size": 32}
MINI = {"local_epochs": 2, "batch_size": 4}
SCENARIOS = {
    "whole batches": {**WHOLE, "weights": "size"},
    "whole batches, half take part": {**WHOLE, "weights": "uniform", "participation": 0.5},
    "unequal steps": {**MINI, "weights": "uniform"},
    "unequal steps, half take part": {**MINI, "weights": "size", "participation": 0.5},
}
STARTS: dict[int, Vector] = {
    4: np.array([1.2, -0.4, 0.8, 0.3]),
    12: np.array([1.2, -0.4, 0.7, -0.5, 0.2, 0.4, 0.5, -0.3, 0.1, 0.6, -0.2, 0.1]),
}


class TwoLogits(nn.Module):
    """[0, z]."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(z), z], 1)


def network(theta: Vector) -> nn.Module:
    """The network with these parameters: batch norm first where there are 4 or 12, a feature layer for MOON."""
    norm = nn.BatchNorm1d(1) if len(theta) in STARTS else nn.Identity()
    layers = [nn.Linear(1, 1), TwoLogits()] if len(theta) < 10 else [nn.Linear(1, 2), nn.Linear(2, 2)]
    model = nn.Sequential(norm, *layers).double()
    rest = torch.from_numpy(theta)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(rest[: parameter.numel()].view(parameter.shape))
            rest = rest[parameter.numel() :]
    return model


def data() -> dict[str, tuple[Vector, Vector]]:
    """Sites differ in the spread and place of inputs, and in how they become labels."""
    out = {}
    for k, (name, n) in enumerate(SIZES.items()):
        rng = np.random.default_rng(k)
        x = (1 + 0.5 * k) * rng.normal(size=n) + 0.3 * k
        out[name] = x, (x + rng.normal(size=n) > 0.4 * k).astype(float)
    return out


def trainable(state: dict[str, Tensor]) -> Vector:
    return np.concatenate([v.numpy().ravel() for k, v in state.items() if k.endswith(("weight", "bias"))])


def statistics(state: dict[str, Tensor]) -> Vector:
    return np.concatenate([v.numpy().ravel() for k, v in state.items() if "running" in k] or [np.zeros(0)])


def expected(
    trained: Federation, noted: dict[str, Noted], reference: Any, theta: Vector, bn: str, training: dict[str, Any]
) -> Federated:
    """Return NumPy's result for the batches that were taken, by the clients that took part."""
    given, total = data(), sum(SIZES.values())
    normed = len(theta) in STARTS
    stays = 2 if normed and "affine" not in TRAVELS[bn] else 0
    start = np.array([0.0, 1.0])
    sites = {
        name: Site(
            *given[name],
            share=SIZES[name] / total if training["weights"] == "size" else 1 / len(SIZES),
            steps=training.get("local_steps") or STEPS[name],
            batches=iter([t.numpy() for t in noted[name].taken]),
            own=theta[:stays],
            stats=start,
        )
        for name in SIZES
    }
    options = {k: training.get(k, 0.0) for k in ("momentum", "weight_decay")}
    f = Federated(theta[stays:], start, sites, "statistics" in TRAVELS[bn], **options)
    names = [[client.name for client in trained.participants(number)] for number in range(1, ROUNDS + 1)]
    decay = DECAY if training["schedule"] == "exponential" else 1
    f.play(reference, names, lambda number: LR * decay ** (number - 1))
    assert all(not list(site.batches) for site in sites.values()), "all batches are accounted for"
    return f


def check(spec: Any, reference: Any, theta: Vector, bn: str, settings: dict[str, Any]) -> None:
    """Parameters, statistics and logged losses of all clients after three rounds."""
    training = {**BASE, **settings}
    noted = {k: Noted(torch.from_numpy(x)[:, None], torch.from_numpy(y)) for k, (x, y) in data().items()}
    trained = Federation(network(theta), noted, algorithm=spec, bn=bn, training=training).run()
    f = expected(trained, noted, reference, theta, bn, training)
    for name, site in f.sites.items():
        state = trained.client_state(name)
        close(trainable(state), np.concatenate([site.own, f.x]))
        if len(theta) in STARTS:
            stats = f.stats if f.statistics_travel else site.stats
            close(statistics(state), stats)
        logged = [row["loss"] for row in trained.history if row["site"] == name]
        close(logged, site.losses)
    own = np.mean([site.own for site in f.sites.values()], axis=0)
    close(trainable(trained.global_state()), np.concatenate([own, f.x]))


HEAVY = {"momentum": 0.6, "weight_decay": 0.05}
ADAM = {"server_lr": 0.05, "beta1": 0.8, "beta2": 0.95, "tau": 0.01}
CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "fedavg": ("fedavg", by_hand.fedavg, {}),
    "fedavg, momentum": ("fedavg", by_hand.fedavg, HEAVY),
    "fixbn": ({"name": "fixbn", "freeze_after": 1}, by_hand.fixbn(1), {}),
    "fixbn, half of three rounds": ("fixbn", by_hand.fixbn(2), HEAVY),
    "fixbn, from the start": ({"name": "fixbn", "freeze_after": 0}, by_hand.fixbn(0), {}),
    "fedprox": ({"name": "fedprox", "mu": 0.7}, by_hand.fedprox(0.7), {}),
    "fedprox, momentum": ({"name": "fedprox", "mu": 0.7}, by_hand.fedprox(0.7), HEAVY),
    "fedprox, norm": ({"name": "fedprox", "mu": 0.7, "form": "norm"}, by_hand.fedprox(0.7, "norm"), {}),
    "fedprox, norm, later": (
        {"name": "fedprox", "mu": 0.7, "form": "norm", "skip_first_round": True},
        by_hand.fedprox(0.7, "norm", skip=True),
        {},
    ),
    "fedprox, later": ({"name": "fedprox", "mu": 0.7, "skip_first_round": True}, by_hand.fedprox(0.7, skip=True), {}),
    "scaffold, I": ({"name": "scaffold", "option": 1, "server_lr": 0.7}, by_hand.scaffold(1, 0.7), {}),
    "scaffold, I, momentum": ({"name": "scaffold", "option": 1, "server_lr": 1.5}, by_hand.scaffold(1, 1.5), HEAVY),
    "scaffold, II": ({"name": "scaffold", "server_lr": 0.7}, by_hand.scaffold(2, 0.7), {}),
    "scaffold, II, far": ({"name": "scaffold", "server_lr": 1.5}, by_hand.scaffold(2, 1.5), {"weight_decay": 0.05}),
    "fednova": ("fednova", by_hand.fednova(), {}),
    "fednova, momentum": ("fednova", by_hand.fednova(), {"momentum": 0.6}),
    "fednova, prox": ({"name": "fednova", "mu": 0.7}, by_hand.fednova(0.7), {}),
    "fednova, server momentum": ({"name": "fednova", "server_momentum": 0.8}, by_hand.fednova(gmf=0.8), {}),
    "fednova, all": (
        {"name": "fednova", "mu": 0.7, "server_momentum": 0.8},
        by_hand.fednova(0.7, 0.8),
        {"momentum": 0.6},
    ),
    "fedadam": ({"name": "fedadam", **ADAM}, by_hand.fedadam(0.05, 0.8, 0.95, 0.01, 0.01**2), {}),
    "fedadam, v0": ({"name": "fedadam", **ADAM, "v0": 0.3}, by_hand.fedadam(0.05, 0.8, 0.95, 0.01, 0.3), HEAVY),
    "feddc": ({"name": "feddc", "alpha": 0.2}, by_hand.feddc(0.2), {}),
    "feddc, decay": ({"name": "feddc"}, by_hand.feddc(0.01), {"weight_decay": 0.05}),
    "perfedavg": ({"name": "perfedavg", "alpha": 0.3}, by_hand.perfedavg(0.3), {}),
    "perfedavg, Hessian-free": (
        {"name": "perfedavg", "variant": "hessian_free", "alpha": 0.3},
        by_hand.perfedavg(0.3, 1e-3),
        {},
    ),
    "perfedavg, Hessian-free, momentum": (
        {"name": "perfedavg", "variant": "hessian_free", "alpha": 0.3, "delta": 0.01},
        by_hand.perfedavg(0.3, 0.01),
        HEAVY,
    ),
    **server_by_hand.CASES,
}


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("case", CASES)
def test_rounds_without_batch_norm(case: str, scenario: str) -> None:
    spec, reference, extra = CASES[case]
    check(spec, reference, STARTS[4][2:], "aggregated", {**SCENARIOS[scenario], **extra})


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("bn", ["aggregated", "local"])
@pytest.mark.parametrize("case", CASES)
def test_rounds_with_batch_norm(case: str, bn: str, scenario: str) -> None:
    """Only trained tensors that travel are corrected, normalised or adapted; statistics are plainly averaged."""
    spec, reference, extra = CASES[case]
    check(spec, reference, STARTS[4], bn, {**SCENARIOS[scenario], **extra})


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("bn", ["none", "aggregated", "local", "local_statistics", "local_affine"])
def test_rounds_of_moon(bn: str, scenario: str) -> None:
    """From a site's second round on, its previous model differs from the global one."""
    theta, policy = (STARTS[12][2:], "aggregated") if bn == "none" else (STARTS[12], bn)
    check({"name": "moon", "mu": 2.0, "temperature": 0.4}, by_hand.moon(2.0, 0.4), theta, policy, SCENARIOS[scenario])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("name", "bn"), [("fedbn", "local"), ("silobn", "local_statistics")])
def test_rounds_of_fedbn_and_silobn(name: str, bn: str, scenario: str) -> None:
    check(name, by_hand.fedavg, STARTS[4], bn, {**SCENARIOS[scenario], **HEAVY})


def test_the_contrastive_term_plays_a_part() -> None:
    """Without it, the second round ends elsewhere: the check of MOON is not one of FedAvg."""
    with pytest.raises(AssertionError):
        check({"name": "moon"}, by_hand.moon(0.0, 0.5), STARTS[12], "aggregated", SCENARIOS["whole batches"])


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_fednovas_count_in_closed_form(steps: int) -> None:
    """For plain SGD, momentum rho and a proximal term mu, what walking along a constant gradient gives."""
    assert by_hand.reach(7, 1.0, 0.9, 0.025) == pytest.approx(21.85, abs=0.005), "a known value"
    rho, lr, mu = 0.6, 0.4, 0.7
    heavy = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    counts = [by_hand.reach(steps, lr, m, u) for m, u in ((0, 0), (rho, 0), (0, mu))]
    assert counts == pytest.approx([steps, heavy, (1 - (1 - lr * mu) ** steps) / (lr * mu)], rel=1e-14)


# ---- controls


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_rounds_of_local(weights: str) -> None:
    """Each client goes on alone; the global network is the plain mean."""
    training = {**BASE, **MINI, **HEAVY, "weights": weights}
    noted = {k: Noted(torch.from_numpy(x)[:, None], torch.from_numpy(y)) for k, (x, y) in data().items()}
    trained = Federation(network(STARTS[4]), noted, algorithm="local", training=training).run()
    start = np.array([0.0, 1.0])
    for name, given in data().items():
        site = Site(*given, 1.0, STEPS[name], iter([t.numpy() for t in noted[name].taken]), STARTS[4], start)
        f = Federated(np.zeros(0), start, {name: site}, False, HEAVY["momentum"], HEAVY["weight_decay"])
        f.play(by_hand.fedavg, [[name]] * ROUNDS, lambda number: LR * DECAY ** (number - 1))
        state = trained.client_state(name)
        close(trainable(state), site.own)
        close(statistics(state), site.stats)
    mean = np.mean([trainable(trained.client_state(name)) for name in SIZES], axis=0)
    close(trainable(trained.global_state()), mean)
    assert trained.ledger() == {"down": 0, "down_broadcast": 0, "up": 0, "messages": 0}


def test_rounds_of_pooled() -> None:
    """One client, whose data are those of all; batches mix them."""
    x, y = (np.concatenate(column) for column in zip(*data().values(), strict=True))
    training = {**BASE, "local_steps": 3, "batch_size": 64, **HEAVY}
    given = {k: (torch.from_numpy(x)[:, None], torch.from_numpy(y).long()) for k, (x, y) in data().items()}
    trained = Federation(network(STARTS[4]), given, algorithm="pooled", training=training).run()
    site = Site(x, y, 1.0, 3, iter([np.arange(len(x))] * 3 * ROUNDS), STARTS[4], np.array([0.0, 1.0]))
    f = Federated(np.zeros(0), site.stats, {"pooled": site}, False, HEAVY["momentum"], HEAVY["weight_decay"])
    f.play(by_hand.fedavg, [["pooled"]] * ROUNDS, lambda number: LR * DECAY ** (number - 1))
    close(trainable(trained.global_state()), site.own)
    close(statistics(trained.global_state()), site.stats)
    close([row["loss"] for row in trained.history], site.losses)


def test_scaffolds_first_option_passes_over_all_data_whatever_the_batches() -> None:
    """c_i after a round is the gradient at its start, over all of the site's data."""
    theta = STARTS[4][2:]
    given = {k: (torch.from_numpy(x)[:, None], torch.from_numpy(y).long()) for k, (x, y) in data().items()}
    spec = {"name": "scaffold", "option": 1}
    trained = Federation(network(theta), given, algorithm=spec, training={**BASE, **MINI}).run(1)
    for client in trained.clients:
        c = by_hand.logistic(theta, *data()[client.name])[1]
        close(client.state["c"].numpy(), c)


# ---- one step from zero, with pencil and paper: a sigmoid of 0 is 1/2, so gradients are means of (1/2 - y) (x, 1)

PAPER = {"a": ([1.0, 3.0], [1, 1]), "b": ([2.0, 2.0, 4.0, 4.0], [0, 1, 0, 0])}
GRADIENTS = {"a": (Fraction(-1), Fraction(-1, 2)), "b": (Fraction(1), Fraction(1, 4))}
STEP = {"lr": 0.5, "batch_size": 8, "select": "last"}
BY_SIZE, EQUALLY = (Fraction(-1, 6), Fraction(0)), (Fraction(0), Fraction(1, 16))


def after_one_step(spec: Any, seed: int = 0, **training: Any) -> Federation:
    given = {k: (torch.tensor(x).double()[:, None], torch.tensor(y)) for k, (x, y) in PAPER.items()}
    return Federation(network(np.zeros(2)), given, algorithm=spec, training={**STEP, **training}, seed=seed).run(1)


@pytest.mark.parametrize(
    ("spec", "weights", "x"),
    [
        ("fedavg", "size", BY_SIZE),
        ("fedavg", "uniform", EQUALLY),
        ({"name": "fedprox", "mu": 5}, "size", BY_SIZE),
        ({"name": "fedprox", "mu": 5, "form": "norm"}, "uniform", EQUALLY),
        ({"name": "scaffold", "server_lr": 1.5}, "size", (Fraction(-1, 4), Fraction(0))),
        ({"name": "scaffold", "server_lr": 1.5, "option": 1}, "uniform", (Fraction(0), Fraction(3, 32))),
        ({"name": "fednova", "mu": 5, "server_momentum": 0.9}, "size", BY_SIZE),
        # 0.3 * 0.5 D / (|D| + 1/12)
        ({"name": "fedadam", "server_lr": 0.3, "beta1": 0.5, "beta2": 0, "tau": 1 / 12}, "size", (Fraction(-1, 10), 0)),
        ({"name": "fedadam", "server_lr": 0.3, "beta1": 0.5, "beta2": 0, "tau": 1 / 16}, "uniform", (0, 3 / 40)),
        ({"name": "feddc", "alpha": 5}, "size", (Fraction(0), Fraction(1, 8))),
        ({"name": "feddc", "alpha": 5}, "uniform", (Fraction(0), Fraction(1, 8))),
        ({"name": "perfedavg", "alpha": 0}, "size", BY_SIZE),
        ("local", "size", EQUALLY),
        ("pooled", "uniform", BY_SIZE),
    ],
)
def test_one_step_from_zero(spec: Any, weights: str, x: tuple[float, float]) -> None:
    got = trainable(after_one_step(spec, weights=weights).global_state())
    close(got, [float(v) for v in x], rtol=0, atol=1e-15)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_one_of_two_sites_moves_the_servers_variables_by_its_share(weights: str, seed: int) -> None:
    """SCAFFOLD's c by the site's share of c_i; FedDC's s by w_i/2 of s_i, and x by a drift that is half the step."""
    half = {"weights": weights, "participation": 0.5}
    scaffold, feddc = (after_one_step(name, seed, **half) for name in ("scaffold", "feddc"))
    (name,) = {row["site"] for row in scaffold.history}
    g = np.array([float(v) for v in GRADIENTS[name]])
    share = {"a": 1 / 3, "b": 2 / 3}[name] if weights == "size" else 1 / 2
    close(trainable(scaffold.global_state()), -g / 2, rtol=1e-15)
    close(scaffold.server.state["c"], share * g, rtol=1e-15)
    close(trainable(feddc.global_state()), -g / 2 * (1 + 1 / 2), rtol=1e-15)
    close(feddc.server.state["s"], 2 * share / 2 * g, rtol=1e-15)


def test_both_sites_are_drawn_by_some_seed() -> None:
    drawn = {row["site"] for seed in range(4) for row in after_one_step("fedavg", seed, participation=0.5).history}
    assert drawn == set(PAPER)
