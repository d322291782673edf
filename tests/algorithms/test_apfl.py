"""APFL: a step with pencil, rounds in NumPy, its limits, and the two networks that predict a client together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_step import one_step
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy import TRAVELS, clients, differing, gap, network, of_clients, softmax

from fedshift import Federation, UserError
from fedshift.nn.features import Blended, classifier

BASE = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
State = dict[str, Tensor]


def apfl(alpha: float, adaptive: bool = False) -> dict[str, Any]:
    return {"name": "apfl", "alpha": alpha, "adaptive": adaptive}


def federation(algorithm: Any, bn: str | None = None, addon: Any = None, **training: Any) -> Federation:
    settings = {**BASE, "select": "last", **training}
    model = network(dropout=0.2)
    return Federation(model, clients(), algorithm=algorithm, bn=bn, addon=addon, training=settings)


def answer(trained: Federation, site: str, x: Tensor) -> Tensor:
    """The logits of a client, from the networks and weights that the federation names, added up here."""
    known, out = trained.networks(site), torch.zeros(())
    assert known.of == "logits"
    for state, weight in zip(known.states, known.weights, strict=True):
        model = network().eval()
        model.load_state_dict(state)
        out = out + weight * model(x).detach()
    return out


# ---- by hand


@pytest.mark.parametrize(("adaptive", "alpha"), [(False, 0.5), (True, 0.1)])
def test_a_step_with_pencil(adaptive: bool, alpha: float) -> None:
    """f = m^2 / 2 at m = (v + w) / 2 with w = 1, v = 3: m = 2, df/dv = m / 2 = 1, df/dalpha = (v - w) m = 4."""
    trained = one_step("apfl", 3.0, adaptive=adaptive)
    known = trained.networks("one")
    assert [float(state["weight"]) for state in known.states] == pytest.approx([2.9, 0.9], rel=1e-15)
    assert list(known.weights) == pytest.approx([alpha, 1 - alpha], rel=1e-14)


@pytest.mark.parametrize("adaptive", [False, True])
def test_rounds_by_hand(adaptive: bool) -> None:
    """Two layers without bias, so that outputs and weights mix differently; each batch is a site, with momentum."""
    rng, rate, momentum, decay, rounds = np.random.default_rng(0), 0.2, 0.6, 0.05, 3
    data = {k: (rng.normal(size=(n, 4)), rng.integers(0, 3, n)) for k, n in {"a": 6, "b": 9}.items()}
    w = [rng.normal(size=(2, 4)), rng.normal(size=(3, 2))]
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)).double()
    model.load_state_dict({f"{k}.weight": torch.from_numpy(matrix.copy()) for k, matrix in enumerate(w)})

    def logits(net: list[Any], x: Any) -> Any:
        return x @ net[0].T @ net[1].T

    def error(z: Any, y: Any) -> Any:
        return (softmax(z) - np.eye(3)[y]) / len(y)

    def gradients(net: list[Any], x: Any, e: Any) -> list[Any]:
        return [net[1].T @ e.T @ x, e.T @ (x @ net[0].T)]

    def moved(net: list[Any], buffers: list[Any], of_loss: list[Any]) -> tuple[list[Any], list[Any]]:
        buffers = [momentum * b + g + decay * m for b, g, m in zip(buffers, of_loss, net, strict=True)]
        return [m - rate * b for m, b in zip(net, buffers, strict=True)], buffers

    v, alpha, changes = dict.fromkeys(data, w), dict.fromkeys(data, 0.3), []
    for _ in range(rounds):
        ends = {}
        for site, (x, y) in data.items():
            mine, ours, a = v[site], w, alpha[site]
            of_mine, of_ours = ([0 * matrix for matrix in w] for _ in range(2))
            for step in range(2):
                z_v, z_w = logits(mine, x), logits(ours, x)
                e = error(a * z_v + (1 - a) * z_w, y)
                if adaptive and step == 0:
                    alpha[site] = float(np.clip(a - rate * ((z_v - z_w) * e).sum(), 0, 1))
                    changes.append(abs(alpha[site] - a))
                mine, of_mine = moved(mine, of_mine, gradients(mine, x, a * e))
                ours, of_ours = moved(ours, of_ours, gradients(ours, x, error(z_w, y)))
                a = alpha[site]
            v[site], ends[site] = mine, ours
        w = [(6 * one + 9 * two) / 15 for one, two in zip(ends["a"], ends["b"], strict=True)]
    tensors = {site: (torch.from_numpy(x), torch.from_numpy(y)) for site, (x, y) in data.items()}
    training = {"lr": rate, "momentum": momentum, "weight_decay": decay, "local_steps": 2, "batch_size": 16}
    options: Any = {"algorithm": apfl(0.3, adaptive), "training": {**training, "rounds": rounds, "select": "last"}}
    trained = Federation(model, tensors, **options).run()
    for site in data:
        known = trained.networks(site)
        assert known.weights == pytest.approx([alpha[site], 1 - alpha[site]], rel=0, abs=1e-12)
        for state, net in zip(known.states, (v[site], w), strict=True):
            for k, matrix in enumerate(net):
                np.testing.assert_allclose(state[f"{k}.weight"], matrix, rtol=0, atol=1e-12)
    assert not adaptive or max(changes) > 1e-2


# ---- limits


@pytest.mark.parametrize("bn", TRAVELS)
def test_with_alpha_1_it_is_local_and_with_alpha_0_fedavg(bn: str) -> None:
    """Batches and dropout are those of both, and momentum and clipping act on each network apart."""
    settings: Any = {"bn": bn, "clip_norm": 1.0}
    ones, zeros, half = (federation(apfl(alpha), **settings).run() for alpha in (1, 0, 0.5))
    alone, together = federation("local", clip_norm=1.0).run(), federation("fedavg", **settings).run()
    assert gap(of_clients(ones), of_clients(alone)) < 1e-12
    assert gap(of_clients(half), of_clients(alone)) > 1e-3
    x = clients(seed=2)["a"][0]
    for site in clients():
        of_fedavg, of_local = (answer(trained, site, x) for trained in (together, alone))
        assert float((answer(zeros, site, x) - of_fedavg).abs().max()) < 1e-12
        assert float((answer(ones, site, x) - of_local).abs().max()) < 1e-12
        assert float((answer(half, site, x) - of_fedavg).abs().max()) > 1e-3
    for ours in (ones, zeros, half):
        assert differing({"x": ours.server.shared}, {"x": together.server.shared}) == []
        own = ({c.name: c.own for c in trained.clients} for trained in (ours, together))
        assert differing(*own) == [], "what the BN policy keeps at home is that of the global model's copy"


@pytest.mark.parametrize("addon", ["mixup", "jigen"])
def test_both_networks_see_the_draws_of_an_add_on(addon: str) -> None:
    """Images are mixed in the same way for both, otherwise alpha 1 would not be `local` and the mixture no model's."""
    one, alone = (federation(algorithm, addon=addon).run(2) for algorithm in (apfl(1), "local"))
    assert gap(of_clients(one), of_clients(alone)) < 1e-12
    together, half = (federation(algorithm, addon=addon).run(2) for algorithm in ("fedavg", apfl(0.5)))
    assert differing({"x": half.server.shared}, {"x": together.server.shared}) == []
    assert gap(of_clients(half), of_clients(alone)) > 1e-3


def test_what_is_sent_and_kept() -> None:
    ours, fedavg = federation(apfl(0.5, adaptive=True)).run(1), federation("fedavg").run(1)
    assert ours.ledger() == fedavg.ledger()
    assert {k: v.numel() for k, v in ours.clients[0].state.items()} == {"personal": 339 + 20, "alpha": 1}
    assert set(federation(apfl(0.5)).run(1).clients[0].state) == {"personal"}


# ---- what is scored


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_rounds_are_selected_by_mixtures_that_are_kept(bn: str) -> None:
    """The logged validation loss of the selected round is that of its mixtures, also after later rounds."""
    settings: Any = {**BASE, "rounds": 6, "lr": 0.4, "select_by": "loss"}
    options: Any = {"validation": clients(seed=1), "algorithm": apfl(0.3, adaptive=True), "bn": bn}
    trained = Federation(network(), clients(), training=settings, **options).run()
    best = trained.result().round
    logged = {row["site"]: row["loss"] for row in trained.history if (row["split"], row["round"]) == ("val", best)}
    for name, (x, y) in options["validation"].items():
        known = trained.networks(name)
        assert 0 < known.weights[0] < 1
        assert cross_entropy(answer(trained, name, x), y).item() == pytest.approx(logged[name])
        for state in known.states:
            model = network().eval()
            model.load_state_dict(state)
            assert abs(cross_entropy(model(x), y).item() - logged[name]) > 1e-4, "neither network alone"


def test_adaptive_weights_resume_to_the_same_bits() -> None:
    whole = federation(apfl(0.5, adaptive=True), participation=0.6, rounds=4).run(2)
    saved = whole.tensors(), whole.progress()
    resumed = federation(apfl(0.5, adaptive=True), participation=0.6, rounds=4)
    resumed.restore(*saved)
    assert differing(resumed.run().tensors(), whole.run().tensors()) == []
    weights = [float(c.state["alpha"]) for c in whole.clients if "alpha" in c.state]
    assert min(abs(weight - 0.5) for weight in weights) > 0


def test_a_client_that_has_not_trained_is_scored_with_the_global_network() -> None:
    trained = federation(apfl(0.5), participation=0.34).run(1)
    drawn = {row["site"] for row in trained.history}
    known = {name: trained.networks(name) for name in clients()}
    assert {name: len(one.names) for name, one in known.items()} == {n: 1 + (n in drawn) for n in clients()}
    shared = trained.global_state()
    apart = {k for n, one in known.items() if n not in drawn for k in differing(one.states[0], shared)}
    assert all(k.endswith("num_batches_tracked") for k in apart)


# ---- several networks as one


def test_networks_that_predict_together() -> None:
    x, parts = clients()["a"][0], [network(seed=k).eval() for k in range(3)]
    each = torch.stack([part(x) for part in parts])
    of_logits = Blended(parts[:2], [0.25, 0.75], "logits")(x)
    assert torch.allclose(of_logits, (each[0] + 3 * each[1]) / 4, rtol=0, atol=1e-12)
    together = Blended(parts, [1 / 3] * 3, "probabilities")(x).softmax(1)
    assert torch.allclose(together, each.softmax(2).mean(0), rtol=0, atol=1e-12)
    assert not torch.allclose(together, each.mean(0).softmax(1), rtol=0, atol=1e-3)
    with pytest.raises(UserError, match="several networks that predict together"):
        classifier(Blended(parts, [1 / 3] * 3, "probabilities"))
