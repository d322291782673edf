"""`training.train`: what rests keeps its bits and does not travel; a linear probe is logistic regression, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toy import CLASSES, clients, differing, kinds, network, of_clients, softmax

from fedshift import Federation, Training, UserError
from fedshift.core.registry import build, discover
from fedshift.core.rng import torch_stream
from fedshift.data.samples import batch_stream
from fedshift.nn.batchnorm import batch_norms
from fedshift.nn.features import classifier, inputs_of
from fedshift.nn.flat_state import Layout
from fedshift.nn.norms import rest

TRAINING = {"rounds": 2, "batch_size": 4, "local_epochs": 2, "lr": 0.05, "weight_decay": 0.1, "select": "last"}
BOTH = ("norm", "head")
HEAD = {"9.weight", "9.bias"}
"""The last layer of the toy network, by the order of its layers."""
STEPS = {"a": 3, "b": 6, "c": 2}
"""Batches of 4 of the 13, 22 and 9 images of a client; a last one that would be alone joins the one before."""


def federation(train: Any, algorithm: Any = "fedavg", bn: str | None = None, **settings: Any) -> Federation:
    training = {**TRAINING, "train": train, **settings}
    return Federation(network(), clients(), algorithm=algorithm, bn=bn, training=training)


def floats(names: set[str]) -> int:
    return sum(v.numel() for k, v in network().state_dict().items() if k in names)


def of_kinds(*wanted: str) -> set[str]:
    return {name for kind in wanted for name in kinds(network())[kind]}


# ---- what rests, and what travels


@pytest.mark.parametrize(
    ("train", "bn", "moves", "travels"),
    [
        ("head", "aggregated", HEAD, HEAD),
        ("head", "local", HEAD, HEAD),
        ("head", "local_statistics", HEAD, HEAD),
        (BOTH, "aggregated", HEAD | of_kinds("affine", "statistics"), HEAD | of_kinds("affine", "statistics")),
        (BOTH, "local", HEAD | of_kinds("affine", "statistics"), HEAD),
        (BOTH, "local_statistics", HEAD | of_kinds("affine", "statistics"), HEAD | of_kinds("affine")),
        (BOTH, "local_affine", HEAD | of_kinds("affine", "statistics"), HEAD | of_kinds("statistics")),
    ],
)
@pytest.mark.parametrize("algorithm", ["fedavg", {"name": "fedprox", "mu": 0.1}, "scaffold"])
def test_what_rests_keeps_its_bits_and_does_not_travel(
    algorithm: Any, train: Any, bn: str, moves: set[str], travels: set[str]
) -> None:
    before = network().state_dict()
    trained = federation(train, algorithm, bn).run()
    counters = set(kinds(network())["counters"]) if train == BOTH else set()
    for state in (trained.global_state(), *(trained.client_state(c.name) for c in trained.clients)):
        assert {*differing(state, before)} == moves | counters
    extra = 2 if algorithm == "scaffold" else 1
    gradients = floats(travels - of_kinds("statistics"))  # SCAFFOLD sends as many again, as control variates
    rows = [row for row in trained.history if row["split"] == "train"]
    assert {row["floats_up"] for row in rows} == {floats(travels) + (extra - 1) * gradients}
    assert len(rows) == 2 * len(clients())


def test_all_is_as_without_the_setting() -> None:
    one, two = (Federation(network(), clients(), training={**TRAINING, **t}).run() for t in ({}, {"train": "all"}))
    assert differing(of_clients(one), of_clients(two)) == []


@pytest.mark.parametrize("train", ["head", BOTH])
@pytest.mark.parametrize("name", sorted(discover("algorithm")))
def test_every_algorithm_leaves_what_rests_or_says_no_in_one_line(name: str, train: Any) -> None:
    before = network().state_dict()
    spec = {"name": name, "exchange_rounds": 1} if name == "fedtan2" else name
    try:
        trained = federation(train, spec)
    except UserError as error:
        assert train == "head"
        assert str(error).startswith(f"training.train: 'head' has no meaning with {name}: ")
        assert "\n" not in str(error)
        return
    trained.run()
    resting = of_kinds("weights") - HEAD | (set() if train == BOTH else of_kinds("affine", "statistics"))
    for client in trained.clients:
        state = trained.client_state(client.name)
        assert [k for k in resting if not torch.equal(state[k], before[k])] == []


def test_those_that_refuse_a_linear_probe() -> None:
    """Those that tell head and body apart, compare features or batch norm of clients, or exchange statistics."""
    refused = set()
    for name in discover("algorithm"):
        try:
            build("algorithm", name).require(Training(train="head"), build("algorithm", name).policies[0])
        except UserError:
            refused.add(name)
    apart = {"fedper", "fedrep", "fedbabu", "lg_fedavg"}
    assert refused == apart | {"moon", "fedproto", "fedap", "fedtan", "fedtan2", "fedavg_alg2"}


def test_a_local_policy_has_no_effect_on_a_linear_probe(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = federation("head", bn="aggregated").run(), federation("head", bn="local").run()
    assert differing(of_clients(one), of_clients(two)) == []
    assert one.ledger() == two.ledger()
    assert "bn: 'local' has no effect, since training.train: head trains no norm" in capsys.readouterr().err


# ---- a linear probe in NumPy


def test_a_linear_probe_is_logistic_regression_on_frozen_features() -> None:
    """Features are those of evaluation mode, the same in each step; weight decay acts on the head alone."""
    model = network().double()
    for layer in batch_norms(model).values():  # statistics that are not those of a batch
        layer.running_mean.uniform_(-0.2, 0.2, generator=torch.Generator().manual_seed(0))
        layer.running_var.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
    data = {site: (x.double(), y) for site, (x, y) in clients().items()}
    training = Training(**{**TRAINING, "rounds": 1, "train": "head", "momentum": 0.9})
    trained = Federation(model, data, training=training, seed=5).run()

    weight, bias = (p.detach().numpy() for p in classifier(model).parameters())
    start = np.concatenate([weight, bias[:, None]], 1)
    ends, sizes = [], []
    for site, (x, y) in data.items():
        with torch.no_grad(), inputs_of(classifier(model.eval())) as seen:
            model(x)
        features = np.concatenate([seen[0].numpy(), np.ones((len(x), 1))], 1)
        theta, velocity = start.copy(), np.zeros_like(start)
        order = batch_stream(len(x), training, torch_stream(5, 1, site, "batches"))
        for _ in range(2 * STEPS[site]):
            index = next(order)
            f, target = features[index], np.eye(CLASSES)[y[index].numpy()]
            gradient = (softmax(f @ theta.T) - target).T @ f / len(index) + 0.1 * theta
            velocity = 0.9 * velocity + gradient
            theta = theta - 0.05 * velocity
        ends.append(theta)
        sizes.append(len(x))
    mean = np.average(ends, axis=0, weights=sizes)
    found = trained.global_state()
    np.testing.assert_allclose(found["9.weight"].numpy(), mean[:, :-1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["9.bias"].numpy(), mean[:, -1], rtol=0, atol=1e-12)


# ---- modes


@pytest.mark.parametrize(("train", "mode"), [("all", True), ("head", False), (BOTH, True)])
def test_batch_norm_that_rests_is_in_evaluation_mode(train: Any, mode: bool) -> None:
    trainer = federation(train).trainer
    for _ in range(2):  # as it was built, and after an evaluation
        trainer.mode(train=True)
        assert trainer.model.training
        assert {layer.training for layer in batch_norms(trainer.model).values()} == {mode}
        trainer.mode(train=False)


def test_norms_are_found_by_type() -> None:
    layers = nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True), nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))
    assert rest(model, BOTH) == {"0.weight", "0.bias"}
    assert [k for k, p in model.named_parameters() if not p.requires_grad] == ["0.weight", "0.bias"]


def test_a_resting_tensor_has_no_place() -> None:
    model = network()
    layout = Layout(model, rests=rest(model, "head"))
    assert {*layout.places} == HEAD
    assert layout.size == floats(HEAD)
    assert layout.counters == []
    assert {*layout.constants} == {*model.state_dict()} - HEAD


# ---- what is told


@pytest.mark.parametrize("value", ["body", ["norm"], [], ["head", "head"], True, None, {"head": 1}])
def test_another_value_is_one_line(value: Any) -> None:
    with pytest.raises(UserError, match=r"training\.train: is .*; give all, head .* or \[norm, head\]") as error:
        Federation(network(), clients(), training={"train": value})
    assert "\n" not in str(error.value)


def test_the_identity_is_that_of_before_where_all_is_trained() -> None:
    assert "train" not in Training().identity()
    assert Training(train=["head", "norm"]).identity()["train"] == ["norm", "head"]
    assert Training(train=["head"]) == Training(train="head")
