"""FedRoD: rounds by hand in NumPy, and what it is for balanced classes and without a personal head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import CLASSES, clients, differing, gap, network, softmax

from fedshift import Federation
from fedshift.algorithms import Algorithm
from fedshift.core.registry import get
from fedshift.data.samples import MappedSamples, Pooled, TensorSamples, labels_of

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}

COUNTERS = ["1.num_batches_tracked", "4.num_batches_tracked"]


def federation(algorithm: Any, data: Any = None, **training: Any) -> Federation:
    settings = {**BASE, "select": "last", **training}
    return Federation(network(), data or clients(), algorithm=algorithm, training=settings)


def balanced() -> dict[str, Any]:
    """The clients' images, with as many labels of each class."""
    return {name: (x[:9], torch.arange(9) % CLASSES) for name, (x, _) in clients().items()}


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_rounds_by_hand(smoothing: float) -> None:
    """Body U, generic head G and personal heads P, all matrices; logits G U x. Class 2 is missing at one client."""
    rng, rate, momentum, decay = np.random.default_rng(0), 0.2, 0.6, 0.05
    labels = {"a": np.array([0, 0, 0, 1, 1, 0]), "b": np.array([2, 1, 2, 2, 0, 2, 2, 1, 2])}
    data = {site: (rng.normal(size=(len(y), 4)), y) for site, y in labels.items()}
    U, G = rng.normal(size=(2, 4)), rng.normal(size=(3, 2))
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)).double()
    model.load_state_dict({"0.weight": torch.from_numpy(U.copy()), "1.weight": torch.from_numpy(G.copy())})
    personal = {site: np.zeros((3, 2)) for site in data}
    for _ in range(2):
        ends = {}
        for site, (x, y) in data.items():
            u, g, p, n = U, G, personal[site], len(y)
            buffers = [0 * u, 0 * g, 0 * p]
            counts = np.bincount(y, minlength=3) + smoothing
            for _ in range(3):
                z, target = x @ u.T, np.eye(3)[y]
                weighted = counts * np.exp(z @ g.T)
                error = (weighted / weighted.sum(1, keepdims=True) - target) / n
                own = (softmax(z @ (g + p).T) - target) / n
                gradients = [(error @ g).T @ x, error.T @ z, own.T @ z]
                buffers = [momentum * b + d + decay * w for b, d, w in zip(buffers, gradients, (u, g, p), strict=True)]
                u, g, p = (w - rate * b for w, b in zip((u, g, p), buffers, strict=True))
            personal[site], ends[site] = p, (u, g)
        U, G = ((6 * one + 9 * two) / 15 for one, two in zip(ends["a"], ends["b"], strict=True))
    tensors = {site: (torch.from_numpy(x), torch.from_numpy(y)) for site, (x, y) in data.items()}
    training = {"lr": rate, "momentum": momentum, "weight_decay": decay, "local_steps": 3, "batch_size": 16}
    algorithm = {"name": "fedrod", "smoothing": smoothing}
    options: Any = {"algorithm": algorithm, "training": {**training, "rounds": 2, "select": "last"}}
    trained = Federation(model, tensors, **options).run()
    np.testing.assert_allclose(trained.global_state()["0.weight"], U, rtol=0, atol=1e-13)
    np.testing.assert_allclose(trained.global_state()["1.weight"], G, rtol=0, atol=1e-13)
    for site, p in personal.items():
        state = trained.client_state(site)
        np.testing.assert_allclose(state["0.weight"], U, rtol=0, atol=1e-13)
        np.testing.assert_allclose(state["1.weight"], G + p, rtol=0, atol=1e-13)
    assert all(np.isfinite(row["loss"]) for row in trained.history)


def test_with_balanced_classes_the_global_model_is_fedavgs() -> None:
    for data, same in ((balanced(), True), (clients(), False)):
        ours, fedavg = (federation(name, data, clip_norm=1.0).run() for name in ("fedrod", "fedavg"))
        apart = gap(ours.global_state(), fedavg.global_state())
        assert apart < 1e-12 if same else apart > 1e-3
        losses = [np.array([row["loss"] for row in f.history]) for f in (ours, fedavg)]
        assert np.allclose(*losses, rtol=0, atol=1e-12) is same, "what is logged is the loss without the prior"


def test_a_personal_head_that_rests_at_zero_changes_no_prediction() -> None:
    cls: Any = get("algorithm", "fedrod")
    at_rest = federation(type("AtRest", (cls,), {"gradient": Algorithm.gradient})()).run()
    moving = federation("fedrod").run()
    assert differing(at_rest.global_state(), moving.global_state()) == [], "no gradient flows from the personal heads"
    for name in clients():
        assert differing(at_rest.client_state(name), at_rest.global_state()) in ([], COUNTERS)
        apart = differing(moving.client_state(name), moving.global_state())
        assert [k for k in apart if k not in COUNTERS] == ["9.bias", "9.weight"]


def test_what_is_sent_and_kept() -> None:
    ours, fedavg = (federation(name).run(1) for name in ("fedrod", "fedavg"))
    assert ours.ledger() == fedavg.ledger()
    assert {k: v.numel() for k, v in ours.clients[0].state.items()} == {"head": 6 * CLASSES + CLASSES}


def test_labels_of_every_kind_of_samples() -> None:
    y = torch.tensor([2, 0, 1, 1, 2])
    held = TensorSamples(torch.zeros(5, 3), y)
    mapped = MappedSamples(np.zeros((5, 3), np.float32), np.arange(5), y.numpy())

    class Read:
        random = False

        def __len__(self) -> int:
            return 5

        def batch(self, index: np.ndarray, rng: Any = None) -> tuple[Tensor, Tensor]:
            return held.batch(index)

    for samples in (held, mapped, Read()):
        assert labels_of(samples).tolist() == y.tolist()
    assert labels_of(Pooled([held, mapped, Read()])).tolist() == 3 * y.tolist()
