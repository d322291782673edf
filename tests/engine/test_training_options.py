"""Settings of local training and of rounds: who takes part, which batches, which rates, clipping, and what is wrong."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import plain
import pytest
import torch
from torch import Tensor, nn
from toy import SIZES, TRAVELS, Noted, clients, differing, gap, kinds, network

from fedshift import Federation, Training, UserError
from fedshift.core.registry import build
from fedshift.data.samples import Pooled, TensorSamples

SETTINGS = {"rounds": 3, "batch_size": 4, "lr": 0.05, "select": "last"}
FIVE = {"a": 13, "b": 22, "c": 9, "d": 6, "e": 8}


def federation(data: Any = None, model: nn.Module | None = None, training: Any = None, **options: Any) -> Federation:
    return Federation(model or network(), data or clients(), training={**SETTINGS, **(training or {})}, **options)


def noted(sizes: dict[str, int] = SIZES) -> dict[str, Noted]:
    return {name: Noted(*given) for name, given in clients(sizes).items()}


def batches(sizes: dict[str, int], rounds: int = 3, **training: Any) -> dict[tuple[int, str], list[list[int]]]:
    """Return each client's batches in each round, (round, client) -> batches, without clients that do not take part."""
    given, out = noted(sizes), {}
    running = federation(given, training=training)
    for number in range(1, rounds + 1):
        running.run(number)
        for name, samples in given.items():
            if samples.taken:
                out[number, name] = [taken.tolist() for taken in samples.taken]
                samples.taken = []
    return out


# ---- participation


@pytest.mark.parametrize(
    ("sites", "fraction", "count"),
    [(5, 1.0, 5), (5, 0.4, 2), (5, 0.01, 1), (4, 0.1, 1), (3, 0.6, 2), (3, 0.99, 3), (10, 0.44, 4), (5, 0.5, 2)],
)
def test_so_many_take_part(sites: int, fraction: float, count: int) -> None:
    """round(fraction N), of which a half goes to the even number, and at least one."""
    given = dict.fromkeys("abcdefghij"[:sites], clients()["c"])
    trained = federation(given, training={"participation": fraction})
    for number in range(1, 20):
        names = [client.name for client in trained.participants(number)]
        assert len(names) == count
        assert names == sorted(set(names))


def test_in_time_everyone_takes_part_and_about_equally_often() -> None:
    """Two of 5 sites take part: each in 160 of 400 rounds, with a standard deviation below 10."""
    drawn = [federation(clients(FIVE), training={"participation": 0.4}, seed=s).participants for s in (0, 0, 1)]
    names = [[tuple(c.name for c in who(number)) for number in range(1, 401)] for who in drawn]
    assert names[0] == names[1] != names[2]
    counts = [sum(site in chosen for chosen in names[0]) for site in FIVE]
    assert sum(counts) == 800
    assert all(abs(count - 160) < 40 for count in counts)
    assert len(set(names[0])) == 10, "every pair"


def test_who_takes_part_changes_no_ones_batches() -> None:
    whole, part = batches(FIVE), batches(FIVE, participation=0.4)
    assert len(whole) == 15
    assert len(part) == 6
    assert all(part[k] == whole[k] for k in part)


@pytest.mark.parametrize("bn", TRAVELS)
def test_the_absent_keep_what_is_theirs_and_are_validated(bn: str) -> None:
    given = clients(FIVE)
    trained = federation(given, validation=given, bn=bn, training={"participation": 0.4})
    for number in (1, 2, 3):
        chosen = {client.name for client in trained.participants(number)}
        before = {client.name: (client.own.clone(), client.counters.clone()) for client in trained.clients}
        trained.run(number)
        for client in trained.clients:
            same = [torch.equal(a, b) for a, b in zip(before[client.name], (client.own, client.counters), strict=True)]
            if client.name not in chosen:
                assert same == [True, True]
            else:
                assert not same[1]
                assert same[0] == (bn == "aggregated")
        rows = [row for row in trained.history if row["round"] == number]
        assert [row["site"] for row in rows if row["split"] == "train"] == sorted(chosen)
        assert [row["site"] for row in rows if row["split"] == "val"] == list(FIVE)


# ---- how long a round is


def test_three_steps_of_an_epoch_of_two_go_on_into_another_order() -> None:
    taken = batches({"a": 7}, local_steps=3)
    assert [len(t) for of in taken.values() for t in of] == [4, 3, 4] * 3
    assert all(sorted(of[0] + of[1]) == list(range(7)) for of in taken.values())
    orders = [of[0] for of in taken.values()] + [of[2] for of in taken.values()]
    assert len({tuple(order) for order in orders}) == 6, "each permutation is a new one"


def test_four_steps_of_an_epoch_of_two_are_two_epochs() -> None:
    one, two, other = batches({"a": 7}, local_steps=4), batches({"a": 7}, local_epochs=2), batches({"a": 7})
    assert one == two
    assert {k: of[:2] for k, of in two.items()} == other


@pytest.mark.parametrize(
    ("options", "steps"),  # of the clients a, b and c, were they not equal
    [
        ({}, (3, 6, 2)),
        ({"local_epochs": 2}, (6, 12, 4)),
        ({"replacement": True}, (4, 6, 3)),
        ({"batch_size": 3}, (4, 7, 3)),
        ({"batch_size": 30}, (1, 1, 1)),
    ],
)
def test_with_equal_steps_all_take_as_many_as_the_largest(options: dict[str, Any], steps: tuple[int, ...]) -> None:
    """Clients have 13, 22 and 9 samples in batches of 4 or 3; a single last sample joins the batch before it."""
    alone, equal = (batches(SIZES, equal_steps=e, **options) for e in (False, True))
    assert [len(alone[r, name]) for r in (1, 2, 3) for name in SIZES] == [*steps] * 3
    assert [len(equal[r, name]) for r in (1, 2, 3) for name in SIZES] == [max(steps)] * 9
    assert all(equal[r, "b"] == alone[r, "b"] for r in (1, 2, 3)), "nothing changes for the largest"


def test_equal_steps_go_over_a_clients_own_samples_again() -> None:
    taken = batches(SIZES, rounds=1, equal_steps=True)
    assert [len(t) for t in taken[1, "a"]] == [4, 4, 5] * 2
    assert [len(t) for t in taken[1, "c"]] == [4, 5] * 3
    for name, epoch in (("a", 3), ("c", 2)):
        passes = [np.concatenate(taken[1, name][k : k + epoch]).tolist() for k in range(0, 6, epoch)]
        assert all(sorted(order) == list(range(SIZES[name])) for order in passes)
        assert len({tuple(order) for order in passes}) == len(passes), "each in an order of its own"


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"replacement": True}])
def test_equal_steps_are_that_many_local_steps(options: dict[str, Any]) -> None:
    """They agree to the bit, and each client's counters say that its BN saw that many batches."""
    equal = federation(training={"equal_steps": True, **options}).run()
    steps = federation(training={"local_steps": 6, **options}).run()
    assert not differing(equal.tensors(), steps.tensors())
    counters = kinds(network())["counters"]
    for name in SIZES:
        assert [int(equal.client_state(name)[k]) for k in counters] == [3 * 6] * len(counters)
    assert differing(equal.tensors(), federation(training=options).run().tensors())


def test_six_steps_of_each_are_two_epochs_one_and_three() -> None:
    """The mean of clients that a plain loop with torch's optimiser trained on the same batches."""
    samples = noted()
    trained = federation(samples, training={"equal_steps": True}).run(1)
    ends = []
    for of, epochs in zip(samples.values(), (2, 1, 3), strict=True):
        ends.append(network())
        training = Training(**{**SETTINGS, "local_epochs": epochs})
        plain.local_epochs(ends[-1], of.x, of.y, training, iter(of.taken))
    share = np.array(list(SIZES.values())) / 44
    travels = [name for kind in TRAVELS["aggregated"] for name in kinds(network())[kind]]
    mean = {k: sum(w * end.state_dict()[k] for w, end in zip(share, ends, strict=True)) for k in travels}
    assert gap({k: trained.global_state()[k] for k in travels}, mean) < 1e-12


def test_equal_steps_change_nothing_where_data_are_pooled() -> None:
    one, two = (federation(algorithm="pooled", training={"equal_steps": e}).run() for e in (True, False))
    assert not differing(one.tensors(), two.tensors())


# ---- with replacement


@pytest.mark.parametrize(("n", "steps"), [(9, 3), (8, 2), (13, 4), (3, 1), (1, 1)])
def test_batches_with_replacement_are_always_full(n: int, steps: int) -> None:
    """An epoch has ceil(n / 4) of them: neither a smaller last one, nor one that takes up a single sample."""
    taken = batches({"a": n}, replacement=True, local_epochs=2)
    assert [len(t) for of in taken.values() for t in of] == [4] * (2 * steps * 3)
    assert {k for of in taken.values() for t in of for k in t} <= set(range(n))


def test_replacement_draws_each_sample_alike_and_some_twice() -> None:
    (taken,) = batches({"a": 10}, rounds=1, replacement=True, local_steps=500).values()
    counts = np.bincount(np.concatenate(taken), minlength=10)
    assert len(counts) == 10
    assert all(abs(counts - 200) < 60), "2000 draws, a standard deviation of 13.4"
    twice = sum(len(set(t)) < 4 for t in taken) / 500
    assert abs(twice - (1 - 0.9 * 0.8 * 0.7)) < 0.09, "a standard deviation of 0.022"
    rounds = batches(SIZES, replacement=True, local_steps=2)
    assert len({str(of) for of in rounds.values()}) == 9


# ---- rates

SCHEDULES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "constant": ({}, [0.05] * 5),
    "cosine": ({"schedule": "cosine"}, [0.05 * (1 + math.cos(math.pi * k / 5)) / 2 for k in range(5)]),
    "exponential": ({"schedule": "exponential", "lr_decay": 0.9}, [0.05, 0.045, 0.0405, 0.03645, 0.032805]),
    "steps": ({"schedule": "steps", "lr_steps": {4: 0.001, 2: 0.01}}, [0.05, 0.01, 0.01, 0.001, 0.001]),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rounds_follow_the_schedule_in_closed_form(schedule: str) -> None:
    options, rates = SCHEDULES[schedule]
    training = Training(**{**SETTINGS, "rounds": 5, "momentum": 0.5, **options})
    assert [training.rate(k) for k in range(1, 6)] == pytest.approx(rates, rel=1e-14)
    samples = noted({"b": 22})
    trained = federation(samples, training=training.model_dump()).run()
    model, taken = network(), iter(samples["b"].taken)
    for rate in rates:
        now = training.model_copy(update={"lr": rate})
        plain.local_epochs(model, samples["b"].x, samples["b"].y, now, taken)
    assert gap(trained.global_state(), dict(model.state_dict())) < 1e-12


# ---- clipping


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_clipping_is_torchs(momentum: float, weight_decay: float) -> None:
    """Before weight decay and momentum, by the norm over all trainable tensors; some steps are clipped, some not."""
    samples, clip = noted({"b": 22})["b"], 1.2
    options: dict[str, Any] = {"momentum": momentum, "weight_decay": weight_decay}
    trained = federation({"b": samples}, training={**options, "clip_norm": clip}).run()
    model, norms, index = network(), [], iter(samples.taken)
    for _ in range(3):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, **options)
        for _ in range(6):
            k = next(index)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(samples.x[k]), samples.y[k]).backward()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
            optimiser.step()
    assert min(norms) < clip < max(norms)
    assert gap(trained.global_state(), dict(model.state_dict())) < 1e-12


def plain_scaffold(samples: dict[str, Noted], bn: str, clip: float, corrected_first: bool) -> dict[str, Tensor]:
    """Three rounds of option II with equal weights; returns what travels."""
    model = network()
    travels = [name for kind in TRAVELS[bn] for name in kinds(model)[kind]]
    corrected = [name for name, _ in model.named_parameters() if name in travels]
    nets = {name: copy.deepcopy(model) for name in samples}
    index = {name: iter(of.taken) for name, of in samples.items()}
    c = {k: torch.zeros_like(model.get_parameter(k)) for k in corrected}
    ci = {name: {k: v.clone() for k, v in c.items()} for name in samples}
    for _ in range(3):
        changes = []
        for name, net in nets.items():
            start = {k: net.get_parameter(k).detach().clone() for k in corrected}
            optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
            for _ in range(2):
                k = next(index[name])
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(samples[name].x[k]), samples[name].y[k]).backward()
                if not corrected_first:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                for key in corrected:
                    net.get_parameter(key).grad += c[key] - ci[name][key]  # type: ignore[operator]
                if corrected_first:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimiser.step()
            new = {k: ci[name][k] - c[k] + (start[k] - net.get_parameter(k).detach()) / (2 * 0.05) for k in corrected}
            changes.append({k: new[k] - ci[name][k] for k in corrected})
            ci[name] = new
        c = {k: v + sum(change[k] for change in changes) / 3 for k, v in c.items()}
        mean = {k: sum(net.state_dict()[k] for net in nets.values()) / 3 for k in travels}
        for net in nets.values():
            net.load_state_dict(mean, strict=False)
    return mean


@pytest.mark.parametrize("bn", TRAVELS)
def test_a_correction_is_clipped_with_its_gradient(bn: str) -> None:
    samples = noted()
    training = {"clip_norm": 1.0, "local_steps": 2, "weights": "uniform"}
    got = federation(samples, algorithm="scaffold", bn=bn, training=training).run().global_state()
    right, wrong = (plain_scaffold(samples, bn, 1.0, corrected_first=first) for first in (True, False))
    assert gap({k: got[k] for k in right}, right) < 1e-12
    assert gap({k: got[k] for k in wrong}, wrong) > 1e-3


# ---- what is logged


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "fedprox", "mu": 0.1},
        {"name": "moon", "mu": 5},
        {"name": "feddc", "alpha": 1},
        "scaffold",
        {"name": "fednova", "mu": 1},
    ],
)
def test_the_logged_loss_has_no_penalties(spec: Any) -> None:
    """The loss of the first step of round 1 is that of FedAvg: the cross-entropy of the batch."""
    samples = noted()
    one, two = (federation(samples, algorithm=a, training={"local_steps": 1}).run(1).history for a in (spec, "fedavg"))
    assert [row["loss"] for row in one] == [row["loss"] for row in two]
    for row in one:
        given = samples[row["site"]]
        logits = network()(given.x[given.taken[0]])
        expected = nn.functional.cross_entropy(logits, given.y[given.taken[0]]).item()
        assert row["loss"] == pytest.approx(expected, rel=1e-12)


# ---- pooled samples


def test_batches_across_parts_keep_their_order() -> None:
    given = [(x.float(), y) for x, y in clients().values()]
    given.insert(1, (given[0][0][:0], given[0][1][:0]))
    pooled = Pooled([TensorSamples(*part) for part in given])
    x, y = (torch.cat(column) for column in zip(*given, strict=True))
    assert len(pooled) == len(y) == 44
    orders = [np.random.default_rng(0).permutation(44), np.array([43, 0, 13, 12, 0, 35, 34]), np.array([20]), [40, 3]]
    for index in map(np.asarray, orders):
        got = pooled.batch(index)
        assert torch.equal(got[0], x[index])
        assert torch.equal(got[1], y[index])


@pytest.mark.parametrize("options", [{}, {"replacement": True}, {"local_steps": 5, "momentum": 0.9}])
def test_pooled_training_is_that_of_one_client_with_all_data(options: dict[str, Any]) -> None:
    """Bits agree if the name does, since batches are drawn by the name. Weights and participation change nothing."""
    given, held = clients(), clients(seed=7)
    whole, val = ({"pooled": tuple(map(torch.cat, zip(*of.values(), strict=True)))} for of in (given, held))
    alone = federation(whole, network(dropout=0.3), options, validation=val).run()
    options = {**options, "participation": 0.5, "weights": "uniform"}
    trained = federation(given, network(dropout=0.3), options, validation=held, algorithm="pooled").run()
    assert not differing(trained.global_state(), alone.global_state())
    keys = ("round", "site", "split", "loss", "accuracy")
    assert [[row[k] for k in keys] for row in trained.history] == [[row[k] for k in keys] for row in alone.history]
    assert {row["site"] for row in trained.history} == {"pooled"}


# ---- what is wrong, in one line that names it and says what to do


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"training": {"local_steps": 3, "local_epochs": 2}}, ["training.local_steps", "local_epochs", "drop one"]),
        ({"training": {"local_steps": 3, "equal_steps": True}}, ["training.equal_steps", "no effect with local_steps"]),
        ({"training": {"schedule": "steps"}}, ["training.lr_steps", "schedule", "give both or neither"]),
        ({"training": {"lr_steps": {2: 0.01}}}, ["training.lr_steps", "schedule", "give both or neither"]),
        ({"training": {"schedule": "steps", "lr_steps": {4: 0.01}}}, ["training.lr_steps", "round 4", "from 2 to 3"]),
        ({"training": {"schedule": "steps", "lr_steps": {1: 0.01}}}, ["training.lr_steps", "round 1", "from 2 to 3"]),
        ({"training": {"schedule": "steps", "lr_steps": {2: 0}}}, ["training.lr_steps", "rate 0", "rates above 0"]),
        ({"training": {"schedule": "steps", "lr_steps": {2: -0.5}}}, ["training.lr_steps", "-0.5", "above 0"]),
        ({"training": {"schedule": "exponentail"}}, ["training.schedule", "'exponentail'", "mean 'exponential'?"]),
        ({"training": {"lr_decay": 1.1}}, ["training.lr_decay", "1.1", "less than or equal to 1"]),
        ({"training": {"participation": 0}}, ["training.participation", "greater than 0"]),
        ({"training": {"participation": 1.5}}, ["training.participation", "1.5", "less than or equal to 1"]),
        ({"training": {"local_steps": 0}}, ["training.local_steps", "greater than or equal to 1"]),
        ({"training": {"clip_norm": 0}}, ["training.clip_norm", "greater than 0"]),
        ({"training": {"momentum": 1}}, ["training.momentum", "less than 1"]),
        ({"training": {"patience": 2}}, ["training.patience", "select is last", "drop one of the two"]),
        ({"algorithm": {"name": "fedprox", "mu": -0.1}}, ["(fedprox).mu", "-0.1", "greater than or equal to 0"]),
        ({"algorithm": {"name": "moon", "mu": -1}}, ["(moon).mu", "-1", "greater than or equal to 0"]),
        ({"algorithm": {"name": "scaffold", "option": 3}}, ["(scaffold).option", "unknown value 3", "known: 1, 2"]),
        ({"algorithm": "scaffold", "training": {"momentum": 0.9}}, ["training.momentum", "0.9", "SCAFFOLD", "to 0"]),
        ({"algorithm": "feddc", "training": {"momentum": 0.9}}, ["training.momentum", "0.9", "FedDC", "momentum to 0"]),
        ({"algorithm": {"name": "fedtan2", "exchange_rounds": 4}}, ["exchange_rounds", "4", "3 rounds", "lower it"]),
        ({"algorithm": "fedtan", "bn": "local"}, ["bn", "'local'", "fedtan", "same batch norm", "use 'aggregated'"]),
        ({"algorithm": "fedbn", "bn": "aggregated"}, ["bn", "'aggregated'", "fedbn", "use 'local'"]),
        ({"algorithm": "pooled", "bn": "local"}, ["bn", "'local'", "pooled", "one client", "use 'aggregated'"]),
        ({"bn": "statistics"}, ["bn", "'statistics'", "did you mean 'local_statistics'?"]),
        ({"bn": "none"}, ["bn", "'none'", *TRAVELS]),
    ],
)
def test_a_wrong_setting_is_one_line(options: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        federation(**options)
    assert len(str(caught.value).splitlines()) == 1
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_momentum_of_tsmobn_above_one_is_one_line() -> None:
    with pytest.raises(UserError, match=r"tsmobn.*momentum.*less than or equal to 1.*1\.5") as caught:
        build("inference", {"name": "tsmobn", "momentum": 1.5})
    assert len(str(caught.value).splitlines()) == 1


def test_scaffolds_first_option_takes_momentum() -> None:
    trained = federation(algorithm={"name": "scaffold", "option": 1}, training={"momentum": 0.9}).run(2)
    assert all(np.isfinite(row["loss"]) for row in trained.history)


@pytest.mark.parametrize("bn", ["local", "local_statistics", "local_affine"])
def test_a_policy_without_batch_norm_is_a_warning(bn: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained = federation(model=network("group norm"), bn=bn).run()
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert f"bn: {bn!r} has no effect, since the network has no batch-norm layer" in err
    aggregated = federation(model=network("group norm")).run()
    assert capsys.readouterr().err == ""
    assert not differing(trained.tensors(), aggregated.tensors())
    assert not differing(trained.client_state("a"), aggregated.client_state("b"))
