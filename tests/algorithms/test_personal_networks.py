"""Networks of each client's own, beside the global one: Ditto, with pencil, in NumPy and in its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_step import one_step
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy import TRAVELS, clients, differing, gap, network, of_clients, softmax

from fedshift import Federation

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
State = dict[str, Tensor]


def federation(algorithm: Any, bn: str | None = None, model: nn.Module | None = None, **training: Any) -> Federation:
    settings = {**BASE, "select": "last", **training}
    return Federation(model or network(dropout=0.2), clients(), algorithm=algorithm, bn=bn, training=settings)


def ditto(lam: float) -> dict[str, Any]:
    return {"name": "ditto", "lam": lam}


# ---- Ditto


@pytest.mark.parametrize(("lam", "v"), [(1.0, 1.7), (0.0, 1.8), (10.0, 0.8)])
def test_a_step_of_ditto_with_pencil(lam: float, v: float) -> None:
    """f = v^2 / 2 at v = 2 with x = 1 and eta 0.1. Where eta lambda is 1, v lands on x - eta grad f(v)."""
    trained = one_step("ditto", 2.0, lam=lam)
    assert float(trained.client_state("one")["weight"]) == pytest.approx(v, rel=1e-15)
    assert float(trained.global_state()["weight"]) == pytest.approx(0.9, rel=1e-15)


def test_rounds_of_ditto_by_hand() -> None:
    """Logistic regression with momentum and weight decay at two clients of unequal size; each batch is a site."""
    rng, rate, momentum, decay, lam = np.random.default_rng(0), 0.2, 0.6, 0.05, 0.7
    data = {k: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in {"a": 6, "b": 9}.items()}
    x = rng.normal(size=(3, 4))
    model = nn.Linear(4, 3, bias=False).double()
    model.load_state_dict({"weight": torch.from_numpy(x.copy())})

    def gradient(w: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.asarray((softmax(images @ w.T) - np.eye(3)[labels]).T @ images / len(labels))

    personal = dict.fromkeys(data, x)
    for _ in range(3):
        ends = {}
        for site, (images, labels) in data.items():
            v, w, of_v, of_w = personal[site], x, 0 * x, 0 * x
            for _ in range(2):
                of_v = momentum * of_v + gradient(v, images, labels) + lam * (v - x) + decay * v
                of_w = momentum * of_w + gradient(w, images, labels) + decay * w
                v, w = v - rate * of_v, w - rate * of_w
            personal[site], ends[site] = v, w
        x = (6 * ends["a"] + 9 * ends["b"]) / 15
    tensors = {site: (torch.from_numpy(images), torch.from_numpy(labels)) for site, (images, labels) in data.items()}
    training = {"lr": rate, "momentum": momentum, "weight_decay": decay, "local_steps": 2, "batch_size": 16}
    options: Any = {"algorithm": ditto(lam), "training": {**training, "rounds": 3, "select": "last"}}
    trained = Federation(model, tensors, **options).run()
    np.testing.assert_allclose(trained.global_state()["weight"], x, rtol=0, atol=1e-13)
    for site, v in personal.items():
        np.testing.assert_allclose(trained.client_state(site)["weight"], v, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bn", TRAVELS)
def test_ditto_without_its_pull_is_local_and_its_global_model_is_fedavgs(bn: str) -> None:
    """Batches and dropout are the same, and momentum and clipping act on each network apart."""
    free, pulled, alone, together = (
        federation(algorithm, bn, clip_norm=1.0).run()
        for algorithm, bn in ((ditto(0), bn), (ditto(1), bn), ("local", None), ("fedavg", bn))
    )
    assert gap(of_clients(free), of_clients(alone)) < 1e-12
    assert gap(of_clients(pulled), of_clients(alone)) > 1e-3
    for ours in (free, pulled):
        assert differing({"x": ours.server.shared}, {"x": together.server.shared}) == []
        own = ({c.name: c.own for c in trained.clients} for trained in (ours, together))
        assert differing(*own) == [], "what the BN policy keeps at home is that of the global model's copy"


def test_what_is_sent_is_what_fedavg_sends() -> None:
    assert federation(ditto(1)).run(1).ledger() == federation("fedavg").run(1).ledger()


# ---- selection, checkpoints, names


def test_the_selected_round_keeps_its_personal_networks() -> None:
    """Rounds are selected by personal networks; later rounds go on from the last ones and change nothing selected."""
    data, settings = clients(), {**BASE, "rounds": 6, "lr": 0.4, "select_by": "loss"}
    options: Any = {"validation": clients(seed=1), "algorithm": ditto(0.1)}
    trained = Federation(network(), data, training=settings, **options).run()
    best = trained.result().round
    assert best < 6, "otherwise the last round would do"
    then = Federation(network(), data, training={**settings, "select": "last"}, **options).run(best)
    assert differing(of_clients(trained), of_clients(then)) == []
    assert differing(trained.global_state(), then.global_state()) == []
    assert gap(of_clients(trained), of_clients(then.run())) > 1e-3

    logged = {row["site"]: row["loss"] for row in trained.history if (row["split"], row["round"]) == ("val", best)}
    model = network().eval()
    for name, (x, y) in options["validation"].items():
        model.load_state_dict(trained.client_state(name))
        assert cross_entropy(model(x), y).item() == pytest.approx(logged[name])


def test_a_client_that_has_not_trained_is_scored_with_the_global_network() -> None:
    trained = federation(ditto(1), participation=0.34).run(1)
    (drawn,) = {row["site"] for row in trained.history}
    shared = trained.global_state()
    for name in {"a", "b", "c"} - {drawn}:
        apart = differing(trained.client_state(name), shared)
        assert all(k.endswith("num_batches_tracked") for k in apart)
    assert gap(trained.client_state(drawn), shared) > 1e-3


def test_every_tensor_of_a_personal_network_is_the_clients_own() -> None:
    assert set(federation(ditto(1)).own_names) == set(network().state_dict())
    assert federation("fedavg").own_names == []
