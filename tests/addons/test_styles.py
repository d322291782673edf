"""Mixup, MixStyle and FedFA: their formulas by hand in NumPy, their limits, and the places where they act."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch import Tensor, nn
from torchvision.models import densenet121
from toy import CLASSES, SHAPE, clients, differing, gap, network

from fedshift import Federation, UserError
from fedshift.addons import extended
from fedshift.addons._places import places
from fedshift.addons.fedfa import FedFA, _gamma
from fedshift.addons.mixstyle import MixStyle
from fedshift.addons.mixup import Mixup
from fedshift.core.rng import keyed
from fedshift.models import initialise
from fedshift.models.alexnet_bn import AlexNetBN
from fedshift.models.resnet20 import ResNet20
from fedshift.tasks import CLASSIFICATION

SETTINGS: dict[str, Any] = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.02, "select": "last"}


def federation(addon: Any = None, **options: Any) -> Federation:
    return Federation(network(), clients(), addon=addon, **{"training": SETTINGS, **options})


def features(n: int = 5, channels: int = 4, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(1, 2, size=(n, channels, 3, 5)))


def local(model: nn.Module | None = None, **more: Any) -> Any:
    state = {"class_weights": None, "task": CLASSIFICATION, "scratch": {}, "round": 1, "steps": 0}
    return SimpleNamespace(model=model or network(), **state, **more)


# ---- all of them


@pytest.mark.parametrize(
    "off", [{"name": "mixup", "alpha": 0}, {"name": "mixstyle", "p": 0}, {"name": "mixstyle", "alpha": 0}]
)
def test_without_mixing_it_is_fedavg(off: dict[str, Any]) -> None:
    plain, same, other = (federation(addon).run().global_state() for addon in (None, off, off["name"]))
    assert not differing(same, plain)
    assert gap(other, plain) > 1e-3


def test_fedfa_that_never_draws_is_fedavg() -> None:
    plain, same, other = (federation(addon).run() for addon in (None, {"name": "fedfa", "p": 0}, "fedfa"))
    names = plain.global_state()
    assert not differing({k: same.global_state()[k] for k in names}, names)
    assert gap({k: other.global_state()[k] for k in names}, names) > 1e-3
    added = {k.rpartition(".")[2] for k in same.global_state().keys() - names.keys()}
    assert added == {f"fedfa_{name}" for name in ("mean", "std", "mean_square", "std_square")}
    assert same.history[0]["floats_up"] == plain.history[0]["floats_up"] + 4 * (4 + 6)


@pytest.mark.parametrize("addon", ["mixup", "mixstyle", "fedfa", "harmofl", "amplitude"])
@pytest.mark.parametrize("options", [{"algorithm": "fedtan"}, {"training": {**SETTINGS, "precision": "bfloat16"}}])
def test_joint_steps_and_lower_precision_work(addon: str, options: dict[str, Any]) -> None:
    data = {name: (x[:8].float(), y[:8]) for name, (x, y) in clients().items()}
    trained = Federation(network(dtype=torch.float32), data, addon=addon, **{"training": SETTINGS, **options}).run(2)
    assert all(v.isfinite().all() for v in trained.tensors().values())


# ---- Mixup


def test_the_loss_of_mixup_by_hand() -> None:
    x, y = clients()["a"]
    model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(SHAPE)), CLASSES)).double()
    with keyed(7):
        loss, logits = Mixup(alpha=0.6).loss(local(model), x, y)
    with keyed(7):
        lam = float(torch.distributions.Beta(0.6, 0.6).sample())
        order = torch.rand(len(y)).argsort().numpy()
    assert 0.01 < lam < 0.99
    assert (order != np.arange(len(y))).any()
    weight, bias = (p.detach().numpy() for p in model.parameters())
    images = x.numpy().reshape(len(y), -1)
    scores = (lam * images + (1 - lam) * images[order]) @ weight.T + bias
    log_p, rows, label = log_softmax(scores, 1), np.arange(len(y)), y.numpy()
    expected = -(lam * log_p[rows, label] + (1 - lam) * log_p[rows, label[order]]).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    # Summands of about 1 may cancel: what is left of them has the rounding of 1, not its own.
    np.testing.assert_allclose(logits.detach().numpy(), scores, rtol=1e-12, atol=1e-15)


# ---- MixStyle


def test_styles_are_mixed_by_hand() -> None:
    x = features()
    with keyed(3):
        out = MixStyle(p=1, alpha=0.7)._mixed(0, x).numpy()
    with keyed(3):
        torch.rand(())
        order = torch.rand(5).argsort().numpy()
        lam = torch.distributions.Beta(0.7, 0.7).sample((5, 1, 1, 1)).numpy()
    v = x.numpy()
    u, s = v.mean((2, 3), keepdims=True), np.sqrt(v.var((2, 3), keepdims=True, ddof=1) + 1e-6)
    expected = (lam * s + (1 - lam) * s[order]) * (v - u) / s + lam * u + (1 - lam) * u[order]
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)  # lam is drawn in single precision
    assert np.abs(out - v).max() > 0.1


def test_equal_images_and_single_pixels_keep_their_style() -> None:
    x = features(1).expand(4, -1, -1, -1)
    np.testing.assert_allclose(MixStyle(p=1)._mixed(0, x), x, atol=1e-12)
    point = features()[..., :1, :1]
    assert MixStyle(p=1)._mixed(0, point) is point


def test_how_often_styles_are_mixed_and_that_no_gradient_flows_through_them() -> None:
    x = features().requires_grad_()
    with keyed(1):
        count = sum(MixStyle(p=0.3)._mixed(0, x) is not x for _ in range(1000))
    assert count == pytest.approx(300, abs=3 * (1000 * 0.3 * 0.7) ** 0.5)
    with keyed(1):
        MixStyle(p=1)._mixed(0, x).sum().backward()
    values = x.detach()
    s = (values.var((2, 3), keepdim=True) + 1e-6).sqrt()
    scale = (x.grad * s).flatten(2)  # s_mix, which is the same for all pixels of a channel
    assert float((scale - scale[..., :1]).abs().max()) < 1e-12


def test_places_are_where_maps_become_smaller() -> None:
    def named(model: nn.Module, most: int = 9, last: bool = True) -> list[tuple[str, bool, int]]:
        names = {id(m): name for name, m in model.named_modules()}
        return [(names[id(p.module)], p.before, p.channels) for p in places(model, most, last=last)]

    dense = densenet121(num_classes=2)
    stages = [
        ("features.pool0", False, 64),
        ("features.transition1.pool", False, 128),
        ("features.transition2.pool", False, 256),
        ("features.transition3.pool", False, 512),
    ]
    assert named(dense) == stages
    assert named(dense, 3, last=False) == stages[:3]
    with torch.device("meta"):
        alex = AlexNetBN().build((3, 63, 63), 2)
    assert [channels for _, _, channels in named(alex)] == [64, 192, 256]
    assert [channels for _, _, channels in named(alex, last=False)] == [64, 192]
    residual = initialise(ResNet20(), (3, 32, 32), 10, 0)
    assert named(residual, last=False) == [("blocks.3", True, 16), ("blocks.6", True, 32)]
    assert named(network()) == [("2", False, 4), ("5", False, 6)]
    assert named(network(), last=False) == [("2", False, 4)]
    for name in ("mixstyle", "fedfa"):
        with pytest.raises(UserError, match="the network has no pooling, stride or ReLU between convolutions"):
            Federation(nn.Linear(3, 2), {"a": (torch.zeros(4, 3), torch.zeros(4).long())}, addon=name)


# ---- FedFA


def test_styles_are_drawn_by_hand() -> None:
    x, model = features(channels=4), extended(FedFA(), network(), 0)
    at = places(model, 1)
    gammas = {f"fedfa 0 {name}": torch.rand(4, 1, 1, dtype=torch.float64) for name in ("mean", "std")}
    this = SimpleNamespace(scratch=gammas)
    with keyed(5):
        out = FedFA(p=1)._drawn(this, at, 0, x).numpy()  # type: ignore[arg-type]
    with keyed(5):
        torch.rand(())
        noise = [torch.randn(5, 4, 1, 1, dtype=torch.float64).numpy() for _ in range(2)]
    v = x.numpy()
    style = [v.mean((2, 3), keepdims=True), np.sqrt(v.var((2, 3), keepdims=True, ddof=1) + 1e-6)]
    new = [
        s + e * np.sqrt((s.var(0, ddof=1, keepdims=True) + 1e-6) * (g.numpy() + 1))
        for s, e, g in zip(style, noise, gammas.values(), strict=True)
    ]
    np.testing.assert_allclose(out, (v - style[0]) / style[1] * new[1] + new[0], rtol=1e-12)
    moments: Any = at[0].module
    np.testing.assert_allclose(moments.fedfa_mean, 0.01 * style[0].mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(moments.fedfa_std_square, (0.01 * style[1].mean((0, 2, 3))) ** 2, rtol=1e-12)


@pytest.mark.parametrize(("p", "moments", "moved"), [(0, "always", True), (0, "drawn", False), (1, "drawn", True)])
def test_moments_move_always_or_where_styles_are_drawn(p: float, moments: Any, moved: bool) -> None:
    x, model = features(channels=4), extended(FedFA(), network(), 0)
    at = places(model, 1)
    this = SimpleNamespace(scratch={f"fedfa 0 {name}": torch.ones(4, 1, 1) for name in ("mean", "std")})
    with keyed(5):
        FedFA(p=p, moments=moments)._drawn(this, at, 0, x)  # type: ignore[arg-type]
    buffer: Any = at[0].module
    assert bool(buffer.fedfa_mean.any()) is moved
    assert bool(buffer.fedfa_std_square.any()) is moved


def test_gamma_follows_the_variance_between_clients() -> None:
    """After round 1 the means of u and u^2 over clients give the variance; gamma has mean 1, and is 1 without any."""
    trained = federation("fedfa", training={**SETTINGS, "weights": "uniform"})
    running = {}
    for client in trained.clients:
        alone = Federation(network(), {client.name: clients()[client.name]}, addon="fedfa", training=SETTINGS)
        assert torch.equal(_gamma(alone.trainer.model[2], "mean"), torch.ones(4, 1, 1).double())  # type: ignore[index]
        running[client.name] = alone.run(1).global_state()["2.fedfa_mean"]
    state = trained.run(1).global_state()
    values = torch.stack(list(running.values()))
    torch.testing.assert_close(state["2.fedfa_mean"], values.mean(0), rtol=1e-12, atol=1e-15)
    spread = values.var(0, unbiased=False)
    r = spread / (1 + spread)
    model = copy.deepcopy(extended(FedFA(), network(), 0))
    model.load_state_dict(state)
    gamma = _gamma(model[2], "mean").flatten()  # type: ignore[index]
    torch.testing.assert_close(gamma, 4 * r / r.sum(), rtol=1e-6, atol=0)
    assert float(gamma.mean()) == pytest.approx(1, rel=1e-12)
    assert float(gamma.std()) > 0.01


def test_at_home_nothing_is_exchanged() -> None:
    trained = federation("fedfa", bn="local").run(2)
    plain = federation(bn="local").run(1)
    assert trained.history[0]["floats_up"] == plain.history[0]["floats_up"]
    assert {"2.fedfa_mean", "5.fedfa_std_square"} <= set(trained.trainer.own_names)
