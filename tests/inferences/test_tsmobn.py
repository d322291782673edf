"""TsmoBN against its definition in NumPy, float64: two BN layers, unequal batches, vectors and images."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from toy import differing

from fedshift.core.errors import UserError
from fedshift.core.rng import stream
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN

Array = NDArray[np.float64]
CHANNELS, EPS = 5, 1e-5
PRECISION = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = {"vectors": (CHANNELS,), "images": (CHANNELS, 4, 3)}
BATCHES = (8, 8, 3, 5)


def network(kind: str) -> nn.Sequential:
    """BN, tanh, BN with parameters and statistics that are not the initial ones."""
    layer = nn.BatchNorm1d if kind == "vectors" else nn.BatchNorm2d
    model = nn.Sequential(layer(CHANNELS), nn.Tanh(), layer(CHANNELS)).double().eval()
    generator = torch.Generator().manual_seed(3)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(CHANNELS, generator=generator, dtype=torch.float64) + 0.5)
    return model


def batches(kind: str, sizes: tuple[int, ...] = BATCHES, seed: int = 0) -> list[Tensor]:
    """Batches whose mean and spread drift."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy((1 + t) * rng.normal(size=(n, *SHAPES[kind])) + 2 * t) for t, n in enumerate(sizes)]


def run(model: nn.Module, inference: Any, given: list[Tensor]) -> list[Tensor]:
    with torch.no_grad(), inference.on_site(model, list):
        return [model(x) for x in given]


class Reference:
    """One layer as the paper states it: sums over all elements of a channel, nothing rearranged."""

    def __init__(self, layer: nn.Module, settings: TsmoBN) -> None:
        self.s = settings
        state = {k: v.double().numpy() for k, v in layer.state_dict().items()}
        self.gamma, self.beta = (state["weight"], state["bias"]) if settings.affine else (1.0, 0.0)
        self.mu: Array | None = None
        self.v: Array | None = None
        if settings.init == "train_stats":
            self.mu, self.v = state["running_mean"], state["running_var"]

    def __call__(self, x: Array) -> Array:
        rows = np.moveaxis(x, 1, -1).reshape(-1, CHANNELS)
        mean, tau = rows.sum(0) / len(rows), self.s.momentum
        if self.mu is None or self.v is None:
            self.mu, self.v = mean, ((rows - mean) ** 2).sum(0) / len(rows)
        else:
            self.mu = tau * self.mu + (1 - tau) * mean
            centre = self.mu if self.s.var_center == "updated" else mean
            self.v = tau * self.v + (1 - tau) * ((rows - centre) ** 2).sum(0) / len(rows)
        out = self.gamma * (rows - self.mu) / np.sqrt(self.v + EPS) + self.beta
        return np.moveaxis(out.reshape(*np.moveaxis(x, 1, -1).shape), -1, 1)


SETTINGS = [
    TsmoBN(momentum=momentum, var_center=centre, init=init, affine=affine)
    for momentum, centre, init, affine in itertools.product(
        (0.0, 0.3, 0.9, 1.0), ("updated", "batch"), ("first_batch", "train_stats"), (True, False)
    )
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: s.label)
@pytest.mark.parametrize("kind", SHAPES)
def test_two_layers_over_unequal_batches(kind: str, settings: TsmoBN) -> None:
    model = network(kind)
    one, two = Reference(model[0], settings), Reference(model[2], settings)
    for x, got in zip(batches(kind), run(model, settings, batches(kind)), strict=True):
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got.numpy(), two(np.tanh(one(x.numpy()))), **PRECISION)


@pytest.mark.parametrize("kind", SHAPES)
def test_without_history_each_batch_is_normalised_as_in_training(kind: str) -> None:
    model = network(kind)
    training = copy.deepcopy(model).train()
    for x, got in zip(batches(kind), run(model, TsmoBN(momentum=0.0), batches(kind)), strict=True):
        torch.testing.assert_close(got, training(x).detach(), **PRECISION)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("kind", SHAPES)
def test_the_first_batch_is_normalised_as_in_training_whatever_the_momentum(kind: str, momentum: float) -> None:
    model = network(kind)
    first = batches(kind)[0]
    expected = copy.deepcopy(model).train()(first).detach()
    torch.testing.assert_close(run(model, TsmoBN(momentum=momentum), [first])[0], expected, **PRECISION)


@pytest.mark.parametrize("kind", SHAPES)
def test_with_history_alone_the_first_batch_stays(kind: str) -> None:
    """Momentum 1 is ordinary evaluation with the biased statistics of the first batch as running statistics."""
    model = network(kind)
    given = batches(kind)
    frozen = copy.deepcopy(model)
    x = given[0]
    for layer in frozen:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            rows = x.movedim(1, -1).flatten(0, -2)
            layer.running_mean.copy_(rows.mean(0))
            layer.running_var.copy_(rows.var(0, correction=0))
        x = layer(x).detach()
    for x, got in zip(given, run(model, TsmoBN(momentum=1.0), given), strict=True):
        torch.testing.assert_close(got, frozen(x).detach(), **PRECISION)


def test_the_updated_centre_adds_the_squared_distance_that_remains() -> None:
    """mean (x - mu)^2 = Var + tau^2 (mu_old - m)^2, so of two batches of constants only the means' distance counts."""
    model = nn.Sequential(nn.BatchNorm1d(1, affine=False)).double().eval()
    given = [torch.full((4, 1), value, dtype=torch.float64) for value in (0.0, 1.0)]
    tau, mu = 0.75, 0.25
    v = (1 - tau) * (1 - mu) ** 2
    got = run(model, TsmoBN(momentum=tau), given)
    assert got[1].flatten().tolist() == pytest.approx([(1 - mu) / (v + EPS) ** 0.5] * 4, rel=1e-12)
    centred = run(model, TsmoBN(momentum=tau, var_center="batch"), given)
    assert centred[1].flatten().tolist() == pytest.approx([(1 - mu) / EPS**0.5] * 4, rel=1e-12)


@pytest.mark.parametrize("init", ["first_batch", "train_stats"])
def test_each_site_starts_afresh(init: str) -> None:
    model, settings = network("images"), TsmoBN(init=init)
    here = batches("images", seed=1)
    alone = run(model, settings, here)
    run(model, settings, batches("images", seed=2))
    assert all(map(torch.equal, run(model, settings, here), alone))


@pytest.mark.parametrize("train", [False, True])
def test_the_model_is_left_as_it_was(train: bool) -> None:
    model = network("images").train(train)
    before, attributes = copy.deepcopy(model.state_dict()), [set(vars(m)) for m in model.modules()]
    run(model, TsmoBN(), batches("images"))
    with pytest.raises(RuntimeError), TsmoBN().on_site(model, list):
        raise RuntimeError
    assert not differing(model.state_dict(), before)
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert all(m.training is train for m in model.modules())
    x = batches("images")[0]
    expected = network("images").train(train)(x)
    assert torch.equal(model(x), expected), "and is used afterwards as before"


def test_one_vector_has_no_spread_to_be_normalised_by() -> None:
    """Alone it would come out as the bias, whatever it is; behind others it changes no history unless tau lets it."""
    model = network("vectors")
    first, single = batches("vectors", (8, 1))
    with pytest.raises(UserError, match="no spread"):
        run(model, TsmoBN(), [single, first])
    together = run(model, TsmoBN(momentum=0.0), [first, first[:1], single])
    torch.testing.assert_close(together[1], together[0][:1], **PRECISION)
    again = run(model, TsmoBN(momentum=1.0), [first, single])[1]
    torch.testing.assert_close(together[2], again, **PRECISION)
    assert run(model, TsmoBN(), [first, single])[1].isfinite().all()
    assert run(network("images"), TsmoBN(), [batches("images", (1,))[0]])[0].isfinite().all(), "images have a spread"


def test_layers_without_running_statistics_start_from_the_first_batch() -> None:
    model = nn.Sequential(nn.BatchNorm1d(CHANNELS, track_running_stats=False)).double()
    x = batches("vectors")[0]
    got = run(model.eval(), TsmoBN(init="train_stats"), [x])[0]
    torch.testing.assert_close(got, copy.deepcopy(model).train()(x).detach(), **PRECISION)


# ---- order of the test images


def classifier() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(CHANNELS), nn.Linear(CHANNELS, 3)).double().eval()


def samples(n: int = 50) -> TensorSamples:
    """Sorted, as stored test sets may be."""
    x = torch.from_numpy(np.sort(np.random.default_rng(0).normal(size=(n, CHANNELS)), 0))
    return TensorSamples(x, torch.zeros(n))


@pytest.mark.parametrize("order", [None, 0, 5])
def test_probabilities_come_back_in_stored_order(order: int | None) -> None:
    """The test order decides the batches; whatever it is, row i of the answer belongs to image i."""
    model, given = classifier(), samples()
    settings = TsmoBN(order=order, batch_size=16)
    taken = np.arange(50) if order is None else stream(order, "test order").permutation(50)
    reference = Reference(model[0], settings)
    weight, bias = (p.detach().numpy() for p in model[1].parameters())
    expected = np.empty((50, 3))
    for start in range(0, 50, 16):
        index = taken[start : start + 16]
        logits = reference(given.x[index].numpy()) @ weight.T + bias
        odds = np.exp(logits - logits.max(1, keepdims=True))
        expected[index] = odds / odds.sum(1, keepdims=True)
    got = probabilities(model, given, settings)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, **PRECISION)


def test_the_order_matters_to_tsmobn_and_not_to_source() -> None:
    model, given = classifier(), samples()
    one, two = (probabilities(model, given, TsmoBN(order=order, batch_size=16)) for order in (0, 1))
    assert np.abs(one - two).max() > 1e-3
    one, two = (probabilities(model, given, Source(batch_size=size)) for size in (7, 50))
    np.testing.assert_allclose(one, two, **PRECISION)


def test_source_is_ordinary_evaluation() -> None:
    model = classifier()
    model(samples().x)
    expected = model.eval()(samples().x).softmax(1).detach().numpy()
    np.testing.assert_allclose(probabilities(model.train(), samples(), Source()), expected, **PRECISION)


def test_a_site_without_images_gives_no_rows() -> None:
    assert len(probabilities(classifier(), samples(0), TsmoBN())) == 0
