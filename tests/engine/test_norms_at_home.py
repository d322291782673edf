"""Policies over norms of every type in training: what is equal, what stays at home, and whole rounds by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from normed import normed
from numpy.typing import NDArray
from torch import Tensor, nn
from toy import clients, differing, softmax, states

from fedshift import Federation, Training
from fedshift.contract.algorithms import learns
from fedshift.core.registry import build
from fedshift.models import initialise
from fedshift.nn.norms import Mixture
from fedshift.nn.policies import POLICIES

Array = NDArray[np.float64]
SETTINGS = {"rounds": 2, "batch_size": 8, "lr": 0.02, "select": "last"}
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedadam", "ditto", "moon")


def trained(norm: str, bn: str, algorithm: Any = "fedavg", norms: Any = "all", **training: Any) -> Federation:
    settings = SETTINGS | training
    return Federation(normed(norm), clients(), algorithm=algorithm, bn=bn, norms=norms, training=settings).run()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("norm", ["group", "layer", "instance"])
def test_without_running_statistics_two_policies_are_left(norm: str, algorithm: str) -> None:
    found = {bn: states(trained(norm, bn, algorithm)) for bn in POLICIES}
    assert differing(found["local_statistics"], found["aggregated"]) == []
    assert differing(found["local_affine"], found["local"]) == []
    assert "a/1.weight" in differing(found["local"], found["aggregated"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_instance_norm_without_parameters_is_the_same_under_all_policies(algorithm: str) -> None:
    first, *others = (states(trained("plain", bn, algorithm)) for bn in POLICIES)
    assert all(differing(first, other) == [] for other in others)


@pytest.mark.parametrize("bn", POLICIES)
def test_only_norms_of_the_named_types_stay_at_home(bn: str) -> None:
    """Batch norm is the same by name and among all; group norm travels where the policy is about batch norm."""
    assert differing(states(trained("batch", bn, norms=["batch"])), states(trained("batch", bn))) == []
    usual = states(trained("group", "aggregated"))
    assert differing(states(trained("group", bn, norms=["batch"])), usual) == []


@pytest.mark.parametrize(("bn", "algorithm"), [*itertools.product(POLICIES, ("fedavg", "scaffold"))])
def test_statistics_travel_where_the_policy_is_about_other_norms(bn: str, algorithm: str) -> None:
    """Pooled running variances, too, are those of aggregated batch norm."""
    other = trained("batch", bn, algorithm, norms=["group"], running_variance="pooled")
    usual = trained("batch", "aggregated", algorithm, running_variance="pooled")
    assert differing(states(other), states(usual)) == []


LEARNT = [*itertools.product(("group", "instance", "mixture"), POLICIES, ("fedavg", "scaffold", "gperxan"))]


@pytest.mark.parametrize(("norm", "bn", "algorithm"), LEARNT)
def test_norms_are_learnt_resumed_and_independent_of_the_order_of_clients(norm: str, bn: str, algorithm: str) -> None:
    """The contract of algorithms, with policies that are about every norm."""

    def federation(names: str) -> Any:
        data = {name: clients()[name] for name in names}
        settings = SETTINGS | {"rounds": 3}
        return Federation(normed(norm), data, algorithm=algorithm, bn=bn, norms="all", training=settings)

    whole = learns(federation)
    assert not torch.equal(whole.global_state()["0.weight"], normed(norm).state_dict()["0.weight"])


def test_norms_at_home_differ_between_clients_and_travel_for_nobody() -> None:
    federation = trained("instance", "local")
    assert federation.trainer.own_names == [f"{layer}.{leaf}" for layer in (1, 4) for leaf in ("weight", "bias")]
    a, b = (federation.client_state(name) for name in "ab")
    assert set(differing(a, b)) == set(federation.trainer.own_names)
    row = federation.history[-1]
    whole = sum(p.numel() for p in normed("instance").parameters())
    assert row["floats_up"] == row["floats_down"] == whole - 2 * (4 + 6)


def test_what_a_policy_keeps_is_said_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    trained("instance", "local")
    line = "bn: 'local' keeps 4 tensors of instance norm at home; they have no running statistics"
    assert f"{line} and 'local_affine' is the same" in capsys.readouterr().err


@pytest.mark.parametrize(("bn", "algorithm"), [*itertools.product(POLICIES, ("fedavg", "fedprox", "gperxan"))])
def test_masks_are_learnt_with_instance_norm(bn: str, algorithm: str) -> None:
    model = initialise(build("model", {"name": "unet_small", "norm": "instance"}), (1, 32, 32), 2, seed=0)
    rng = torch.Generator().manual_seed(0)
    x = {name: torch.randn(4, 1, 32, 32, generator=rng) + k for k, name in enumerate("ab")}
    data = {name: (images, (images[:, 0] > images.mean()).long()) for name, images in x.items()}
    settings = {"rounds": 1, "batch_size": 4, "select": "last"}
    options: Any = {"algorithm": algorithm, "bn": bn, "norms": "all", "training": settings, "task": "segmentation"}
    federation = Federation(model, data, **options).run()
    kept = 18 * 2 if bn in ("local", "local_affine") else 0
    assert len(federation.trainer.own_names) == kept
    a, b = (federation.client_state(name) for name in "ab")
    assert set(differing(a, b)) <= set(federation.trainer.own_names)
    assert bool(differing(a, b)) == bool(kept)
    assert all(tensor.isfinite().all() for tensor in a.values())


# ---- a round of FedAvg with group norm at home, by hand


def group_norm_step(net: dict[str, Array], x: Array, y: Any, lr: float) -> dict[str, Array]:
    """Return linear, group norm (2 groups of 2), linear after a step along the gradient of the cross-entropy."""
    h = x @ net["0.weight"].T + net["0.bias"]
    groups = h.reshape(len(x), 2, 2)
    scale = 1 / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    normal = (groups - groups.mean(2, keepdims=True)) * scale
    flat = normal.reshape(h.shape)
    z = flat * net["1.weight"] + net["1.bias"]
    error = (softmax(z @ net["2.weight"].T + net["2.bias"]) - np.eye(2)[y]) / len(x)
    dz = error @ net["2.weight"]
    dn = (dz * net["1.weight"]).reshape(groups.shape)
    dh = scale * (dn - dn.mean(2, keepdims=True) - normal * (dn * normal).mean(2, keepdims=True))
    dh = dh.reshape(h.shape)
    grad = {"0.weight": dh.T @ x, "0.bias": dh.sum(0), "1.weight": (dz * flat).sum(0), "1.bias": dz.sum(0)}
    grad |= {"2.weight": error.T @ z, "2.bias": error.sum(0)}
    return {name: value - lr * grad[name] for name, value in net.items()}


Data = dict[str, tuple[Array, Any]]


def require_rounds_by_hand(
    model: nn.Module, data: Data, own: set[str], step: Callable[..., dict[str, Array]], lr: float, **options: Any
) -> Federation:
    """Require that two rounds of clients a and b, of equal weight, are those of `step`, where `own` stays at home."""
    start = {name: t.numpy().copy() for name, t in model.state_dict().items() if t.is_floating_point()}
    nets = {"a": start, "b": start}
    for _ in range(2):
        ends = {name: step(nets[name], x, y, lr=lr) for name, (x, y) in data.items()}
        mean = {key: (ends["a"][key] + ends["b"][key]) / 2 for key in start}
        nets = {name: mean | {key: ends[name][key] for key in own} for name in "ab"}
    training = {"rounds": 2, "lr": lr, "batch_size": 6, "select": "last"} | options.pop("training", {})
    tensors = {name: (torch.from_numpy(x), torch.from_numpy(y)) for name, (x, y) in data.items()}
    federation = Federation(model, tensors, training=training, **options).run()
    for name in "ab":
        for key, expected in nets[name].items():
            np.testing.assert_allclose(federation.client_state(name)[key], expected, rtol=0, atol=1e-13)
    for key, expected in mean.items():  # a hospital outside gets the mean of what stays at home
        np.testing.assert_allclose(federation.global_state()[key], expected, rtol=0, atol=1e-13)
    return federation


@pytest.mark.parametrize("bn", ["aggregated", "local"])
def test_rounds_of_fedavg_with_group_norm_are_those_by_hand(bn: str) -> None:
    """Two clients, two rounds of one step over all images; group norm stays at home under `local`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4), nn.Linear(4, 2)).double()
    rng = np.random.default_rng(1)
    data = {name: (rng.normal(k, 1 + k, (6, 3)), rng.integers(0, 2, 6)) for k, name in enumerate("ab")}
    own = {"1.weight", "1.bias"} if bn == "local" else set()
    require_rounds_by_hand(model, data, own, group_norm_step, lr=0.5, bn=bn, norms=["group"])


# ---- gPerXAN: a round by hand, and its limits


def gperxan_client(net: dict[str, Array], x: Array, y: Any, lr: float, steps: int, guide: float) -> dict[str, Array]:
    """Return mixture and linear layer of a client after steps over all its images, guided by the head it received."""
    net = {name: value.copy() for name, value in net.items()}
    head, bias = net["2.weight"].copy(), net["2.bias"].copy()
    n, wide = len(x), (None, slice(None), None, None)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
    of_batch = (x - mean[wide]) / np.sqrt(var[wide] + 1e-5)
    of_image = (x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 1e-5)
    values = x.size // len(mean)
    for _ in range(steps):
        share = 1 / (1 + np.exp(net["0.instance.score"] - net["0.batch.score"])).item()
        batch = of_batch * net["0.batch.weight"][wide] + net["0.batch.bias"][wide]
        image = of_image * net["0.instance.weight"][wide] + net["0.instance.bias"][wide]
        z = (share * batch + (1 - share) * image).reshape(n, -1)
        error = (softmax(z @ net["2.weight"].T + net["2.bias"]) - np.eye(2)[y]) / n
        guided = (softmax(z @ head.T + bias) - np.eye(2)[y]) / n
        dz = (error @ net["2.weight"] + guide * guided @ head).reshape(x.shape)
        score = share * (1 - share) * (dz * (batch - image)).sum(keepdims=True).reshape(1)
        grad = {"2.weight": error.T @ z, "2.bias": error.sum(0), "0.batch.score": score, "0.instance.score": -score}
        for part, normal, weight in (("batch", of_batch, share), ("instance", of_image, 1 - share)):
            grad[f"0.{part}.weight"] = weight * (dz * normal).sum((0, 2, 3))
            grad[f"0.{part}.bias"] = weight * dz.sum((0, 2, 3))
        for name, value in grad.items():
            net[name] = net[name] - lr * value
        net["0.batch.running_mean"] = 0.9 * net["0.batch.running_mean"] + 0.1 * mean
        net["0.batch.running_var"] = 0.9 * net["0.batch.running_var"] + 0.1 * var * values / (values - 1)
    return net


def test_rounds_of_gperxan_are_those_by_hand() -> None:
    """Two clients, two rounds of two steps: batch part, statistics and its score stay, all else is averaged."""
    torch.manual_seed(0)
    model = nn.Sequential(Mixture(2), nn.Flatten(), nn.Linear(8, 2)).double()
    rng = np.random.default_rng(2)
    data = {name: (rng.normal(k, 1 + k, (5, 2, 2, 2)), rng.integers(0, 2, 5)) for k, name in enumerate("ab")}
    own = {name for name, t in model.state_dict().items() if t.is_floating_point() and name.startswith("0.batch")}
    step = partial(gperxan_client, steps=2, guide=0.5)
    training = {"batch_size": 5, "local_steps": 2}
    federation = require_rounds_by_hand(model, data, own, step, lr=0.3, algorithm="gperxan", training=training)
    assert {name for name in federation.trainer.own_names if "tracked" not in name} == own


def scored(batch: float, instance: float) -> nn.Module:
    model: Any = normed("mixture")
    with torch.no_grad():
        for layer in (model[1], model[4]):
            layer.batch.score.fill_(batch)
            layer.instance.score.fill_(instance)
    return model


def gap(ours: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """Return the largest difference of the tensors that the other networks have."""
    return max(float((ours[key] - tensor).abs().max()) for key, tensor in others.items())


def run(model: nn.Module, **options: Any) -> Federation:
    return Federation(model, clients(), training=SETTINGS, **options).run()


@pytest.mark.parametrize(("scores", "part"), [((1e4, 0.0), "batch"), ((0.0, 1e4), "instance")])
def test_with_one_part_of_the_mixture_gperxan_is_the_guide_with_that_norm(
    scores: tuple[float, float], part: str
) -> None:
    """Batch norm alone is FedBN with the guide, instance norm alone is aggregated with the guide, but for rounding."""
    mixed = states(run(scored(*scores), algorithm="gperxan", bn="local"))
    alone = states(run(normed(part), algorithm="gperxan", bn="local"))
    assert gap({key.replace(f".{part}.", "."): tensor for key, tensor in mixed.items()}, alone) < 1e-12


def test_without_its_guide_gperxan_is_fedavg() -> None:
    """With batch norm at home, which is its usual policy, and with none of it where instance norm alone is left."""
    without = {"name": "gperxan", "guide": 0}
    mixed = states(run(normed("mixture"), algorithm=without))
    assert differing(mixed, states(trained("mixture", "local", norms="batch"))) == []
    image = states(run(scored(0.0, 1e4), algorithm=without, bn="local"))
    plain = states(trained("instance", "aggregated"))
    assert gap({key.replace(".instance.", "."): tensor for key, tensor in image.items()}, plain) < 1e-12


# ---- adaptive gradient clipping


def test_a_step_with_adaptive_clipping_is_that_by_hand() -> None:
    """Rows of the first layer are clipped to 0.01 times their norm, its bias to 0.01 times 0.001; the last is not."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).double()
    nn.init.zeros_(model.get_parameter("0.bias"))
    x, y = torch.randn(6, 2).double(), torch.arange(6) % 2
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    hidden = x.numpy() @ weights["0.weight"].T
    error = (softmax(hidden @ weights["1.weight"].T + weights["1.bias"]) - np.eye(2)[y.numpy()]) / 6
    back = error @ weights["1.weight"]
    first = back.T @ x.numpy()
    limit = 0.01 * np.linalg.norm(weights["0.weight"], axis=1)
    bias = back.sum(0)
    grads = {
        "0.weight": first * np.minimum(1, limit / np.linalg.norm(first, axis=1))[:, None],
        "0.bias": bias * min(1, 1e-5 / np.linalg.norm(bias)),
        "1.weight": error.T @ hidden,
        "1.bias": error.sum(0),
    }
    assert (limit < np.linalg.norm(first, axis=1)).all(), "otherwise nothing is clipped"
    training = {"rounds": 1, "lr": 1.0, "batch_size": 6, "select": "last", "clip_adaptive": 0.01}
    state = Federation(model, {"a": (x, y)}, training=training).run().global_state()
    for name, grad in grads.items():
        np.testing.assert_allclose(state[name], weights[name] - grad, rtol=0, atol=1e-13)


def test_adaptive_clipping_acts_on_personal_networks_too() -> None:
    """Ditto without its pull trains each personal network as `local` does, and FedRoD's generic network is FedAvg's."""
    free = trained("group", "aggregated", {"name": "ditto", "lam": 0}, clip_adaptive=0.01)
    alone = Federation(normed("group"), clients(), algorithm="local", training=SETTINGS | {"clip_adaptive": 0.01}).run()
    unclipped = Federation(normed("group"), clients(), algorithm="local", training=SETTINGS).run()
    for name in "abc":
        ours, own, other = (f.client_state(name) for f in (free, alone, unclipped))
        assert max(float((ours[key] - own[key]).abs().max()) for key in own) < 1e-12
        assert not torch.allclose(own["0.weight"], other["0.weight"], atol=1e-4)


def test_the_two_ways_to_clip_are_not_combined() -> None:
    with pytest.raises(ValueError, match=r"training\.clip_adaptive: and clip_norm both shorten the gradient"):
        trained("group", "aggregated", clip_norm=1.0, clip_adaptive=0.1)
    assert "clip_adaptive" not in Training().identity()
    assert Training(clip_adaptive=0.1).identity()["clip_adaptive"] == 0.1
