"""Options of personal methods: Ditto's candidates for lambda, FedRep's fixed statistics and last training of heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import clients, differing, gap, kinds, network, of_clients, softmax

from fedshift import Federation, UserError
from fedshift.core.registry import build

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "weight_decay": 0.01, "select": "last"}
State = dict[str, Tensor]
HEAD = ("9.weight", "9.bias")


def federation(algorithm: Any, data: Any = None, bn: str | None = None, **training: Any) -> Federation:
    settings, data = {**BASE, **training}, data or clients()
    validation = {name: samples for name, samples in clients(seed=1).items() if name in data}
    return Federation(network(), data, validation=validation, algorithm=algorithm, bn=bn, training=settings)


def same_after_a_stop(algorithm: Any, **training: Any) -> bool:
    """Return whether training that goes on from a checkpoint after two rounds, with other names first, is the same."""
    whole = federation(algorithm, **training).run(2)
    saved = whole.tensors(), whole.progress()
    resumed = federation(algorithm, dict(reversed(clients().items())), **training)
    resumed.restore(*saved)
    return not differing(resumed.run().tensors(), whole.run().tensors())


@pytest.mark.parametrize(
    ("name", "options"),
    [("ditto", {"candidates": [0.1, 2.0]}), ("fedrep", {"freeze_statistics": True, "tune_heads": True})],
)
def test_options_change_ids_only_where_they_are_used(name: str, options: dict[str, Any]) -> None:
    before = {"ditto": {"lam": 1.0}, "fedrep": {"head_epochs": 10}}[name]
    assert build("algorithm", name).identity() == {"name": name, **before}
    assert build("algorithm", {"name": name, **options}).identity() == {"name": name, **before, **options}


# ---- Ditto


def test_ditto_by_hand_takes_the_candidate_with_the_lowest_validation_loss() -> None:
    """Logistic regression at two clients of unequal size; each batch is a site, and weights decay."""
    rng, rate, decay, lams = np.random.default_rng(0), 0.4, 0.05, (0.1, 1.0, 2.0)
    data, held = ({k: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in sizes} for sizes in [SIZES] * 2)
    x = rng.normal(size=(3, 4))
    model = nn.Linear(4, 3, bias=False).double()
    model.load_state_dict({"weight": torch.from_numpy(x.copy())})

    def gradient(w: Any, images: Any, labels: Any) -> Any:
        return (softmax(images @ w.T) - np.eye(3)[labels]).T @ images / len(labels)

    def loss(w: Any, images: Any, labels: Any) -> float:
        return float(-np.log(softmax(images @ w.T)[np.arange(len(labels)), labels]).mean())

    personal, chosen = dict.fromkeys(data, x), set()
    for _ in range(4):
        ends = {}
        for site, (images, labels) in data.items():
            v, w = personal[site], x
            for _ in range(2):
                of_v = gradient(v, images, labels) + decay * v
                tried = {lam: v - rate * (of_v + lam * (v - x)) for lam in lams}
                best = min(lams, key=lambda lam, tried=tried, site=site: loss(tried[lam], *held[site]))  # type: ignore[misc]
                chosen |= {best} if np.any(v != x) else set()
                v, w = tried[best], w - rate * (gradient(w, images, labels) + decay * w)
            personal[site], ends[site] = v, w
        x = (6 * ends["a"] + 9 * ends["b"]) / 15
    assert len(chosen) > 1, "otherwise a fixed lambda would do"
    tensors, validation = ({k: tuple(map(torch.from_numpy, xy)) for k, xy in part.items()} for part in (data, held))
    training = {"lr": rate, "weight_decay": decay, "local_steps": 2, "batch_size": 16, "rounds": 4, "select": "last"}
    options: Any = {"validation": validation, "algorithm": {"name": "ditto", "candidates": lams}}
    trained = Federation(model, tensors, training=training, **options).run()  # type: ignore[arg-type]
    np.testing.assert_allclose(trained.global_state()["weight"], x, rtol=0, atol=1e-12)
    for site, v in personal.items():
        np.testing.assert_allclose(trained.client_state(site)["weight"], v, rtol=0, atol=1e-12)


SIZES = {"a": 6, "b": 9}.items()


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_ditto_with_one_candidate_has_that_lambda(bn: str) -> None:
    one, fixed, several, fedavg = (
        federation(algorithm, bn=bn, clip_norm=1.0).run()
        for algorithm in (
            {"name": "ditto", "candidates": [0.7]},
            {"name": "ditto", "lam": 0.7},
            {"name": "ditto", "candidates": [0.0, 5.0]},
            "fedavg",
        )
    )
    assert differing(of_clients(one), of_clients(fixed)) == []
    assert gap(of_clients(several), of_clients(fixed)) > 1e-3
    for ours in (one, several):
        assert differing({"x": ours.server.shared}, {"x": fedavg.server.shared}) == []


def test_dittos_candidates_resume_to_the_same_bits_in_any_order_of_clients() -> None:
    assert same_after_a_stop({"name": "ditto", "candidates": [0.1, 1, 2]})


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"optimiser": "adam"}])
def test_dittos_candidates_need_plain_sgd(training: dict[str, Any]) -> None:
    federation({"name": "ditto", "lam": 0.1}, **training)
    with pytest.raises(UserError, match="use sgd with momentum 0"):
        federation({"name": "ditto", "candidates": [0.1, 1]}, **training)


# ---- FedRep


def fedrep(**options: Any) -> dict[str, Any]:
    return {"name": "fedrep", "head_epochs": 2, **options}


@pytest.mark.parametrize("tune", [False, True])
def test_fedreps_last_training_of_heads_by_hand(tune: bool) -> None:
    """Body U, head V, logits V U x; each batch is a site. A client that never took part has a trained head too."""
    rng, rate, momentum, decay = np.random.default_rng(0), 0.3, 0.5, 0.02
    data = {k: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in SIZES}
    start = {"U": rng.normal(size=(2, 4)), "V": rng.normal(size=(3, 2))}
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)).double()
    model.load_state_dict({f"{k}.weight": torch.from_numpy(start[n].copy()) for k, n in enumerate("UV")})

    def train(net: dict[str, Any], name: str, steps: int, x: Any, y: Any) -> None:
        buffer = 0 * net[name]
        for _ in range(steps):
            z = x @ net["U"].T
            error = (softmax(z @ net["V"].T) - np.eye(3)[y]) / len(y)
            of_loss = {"U": (error @ net["V"]).T @ x, "V": error.T @ z}[name]
            buffer = momentum * buffer + of_loss + decay * net[name]
            net[name] = net[name] - rate * buffer

    tensors = {site: tuple(map(torch.from_numpy, xy)) for site, xy in data.items()}
    training = {"lr": rate, "momentum": momentum, "weight_decay": decay, "local_steps": 3, "batch_size": 16}
    settings: Any = {**training, "rounds": 2, "select": "last", "participation": 0.5}
    options: Any = {"algorithm": fedrep(tune_heads=tune), "training": settings, "seed": 2}
    trained = Federation(model, tensors, **options).run()
    drawn = [row["site"] for row in trained.history if row["split"] == "train"]
    assert len(set(drawn)) == 1, "so that one client never took part"
    nets = {site: dict(start) for site in data}
    body = start["U"]
    for site in drawn:
        nets[site]["U"] = body
        train(nets[site], "V", 2, *data[site])
        train(nets[site], "U", 3, *data[site])
        body = nets[site]["U"]
    for site, net in nets.items():
        net["U"] = body
        if tune:
            train(net, "V", 2, *data[site])
        state = trained.client_state(site)
        for k, name in enumerate("UV"):
            np.testing.assert_allclose(state[f"{k}.weight"], net[name], rtol=0, atol=1e-12)
    heads = [net["V"] for site, net in nets.items() if tune or site in drawn]
    np.testing.assert_allclose(trained.global_state()["1.weight"], np.mean(heads, axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_the_last_training_moves_heads_alone_and_sends_nothing(bn: str) -> None:
    """Until the last round both are the same; with local BN, running statistics move too unless they are frozen."""
    plain, tuned, frozen = (
        federation(fedrep(**options), bn=bn).run(2)
        for options in ({}, {"tune_heads": True}, {"tune_heads": True, "freeze_statistics": True})
    )
    assert differing(plain.tensors(), tuned.tensors()) == []
    assert differing(plain.run().global_state(), tuned.run().global_state()) != []
    assert plain.ledger() == tuned.ledger()
    assert differing({"x": plain.server.shared}, {"x": tuned.server.shared}) == []
    statistics = set(kinds(network())["statistics"]) if bn == "local" else set()
    for name in clients():
        moved = {k for k in differing(plain.client_state(name), tuned.client_state(name)) if "num_batches" not in k}
        assert moved == {*HEAD, *statistics}
    one_more = federation(fedrep(freeze_statistics=True), bn=bn).run()
    apart = differing(one_more.client_state("a"), frozen.run().client_state("a"))
    assert {*apart} == {*HEAD}, "counters of batches rest too"


def test_frozen_statistics_are_those_that_the_head_is_trained_with() -> None:
    """One client, a head alone: its training is that on fixed features of the network in evaluation mode."""
    data: dict[str, Any] = {"b": clients()["b"]}
    body_rests = {"lr": 0.1, "weight_decay": 0.0, "rounds": 1, "local_steps": 1, "local_epochs": 1, "batch_size": 22}
    model, (x, y) = network(), data["b"]
    with torch.no_grad():
        features: Any = nn.Sequential(*list(model.eval().children())[:-1])(x).numpy()  # type: ignore[arg-type]
    weight, bias = (model.state_dict()[k].numpy().copy() for k in HEAD)
    for _ in range(2):
        error = (softmax(features @ weight.T + bias) - np.eye(3)[y.numpy()]) / len(y)
        weight, bias = weight - 0.1 * error.T @ features, bias - 0.1 * error.sum(0)
    frozen, moving = (federation(fedrep(freeze_statistics=f), data, **body_rests).run() for f in (True, False))
    state = frozen.client_state("b")
    np.testing.assert_allclose(state["9.weight"], weight, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state["9.bias"], bias, rtol=0, atol=1e-12)
    assert abs(moving.client_state("b")["9.weight"].numpy() - weight).max() > 1e-3
    counted = [int(trained.client_state("b")["1.num_batches_tracked"]) for trained in (frozen, moving)]
    assert counted == [1, 3], "the body's step, and the head's two steps where statistics move"


def test_fedreps_options_resume_to_the_same_bits_in_any_order_of_clients() -> None:
    assert same_after_a_stop(fedrep(freeze_statistics=True, tune_heads=True), participation=0.6, momentum=0.9)


def test_tuned_heads_need_the_last_round() -> None:
    with pytest.raises(UserError, match="tune_heads trains heads after the last round only"):
        federation(fedrep(tune_heads=True), select="best_validation")
