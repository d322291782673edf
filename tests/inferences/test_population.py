"""Inference `population` against NumPy, float64: statistics of all of a site's images first, then one pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from toy import differing, network

from fedshift.core.registry import discover
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities, site_predictor
from fedshift.inferences import Inference
from fedshift.inferences.population import Population
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN

Array = NDArray[np.float64]
CHANNELS, EPS = 4, 1e-5
PRECISION: Any = {"rtol": 1e-12, "atol": 1e-12}
SHAPES: dict[str, tuple[int, ...]] = {"vectors": (CHANNELS,), "images": (CHANNELS, 3, 2)}
BATCHES = (8, 8, 3, 1)


def layers(kind: str, count: int, affine: bool = True) -> nn.Sequential:
    """One BN, or BN, tanh, BN; with parameters and statistics that are not the initial ones."""
    make = nn.BatchNorm1d if kind == "vectors" else nn.BatchNorm2d
    model = nn.Sequential(make(CHANNELS, affine=affine), nn.Tanh(), make(CHANNELS, affine=affine))[: 2 * count - 1]
    generator = torch.Generator().manual_seed(5)
    model = model.double().eval()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(CHANNELS, generator=generator, dtype=torch.float64) + 0.5)
    return model


def batches(kind: str, sizes: tuple[int, ...] = BATCHES, seed: int = 0) -> list[Tensor]:
    """Batches whose mean and spread drift, so that a mean of their statistics is not that of all images."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy((1 + t) * rng.normal(size=(n, *SHAPES[kind])) + 2 * t) for t, n in enumerate(sizes)]


def run(model: nn.Module, inference: Inference, given: list[Tensor]) -> list[Tensor]:
    with torch.no_grad(), inference.on_site(model, lambda: iter(given)):
        return [model(x) for x in given]


def rows(x: Array) -> Array:
    """Every element of a channel as a row."""
    return np.moveaxis(x, 1, -1).reshape(-1, CHANNELS)


def normalised(x: Array, by: Array, layer: nn.Module) -> Array:
    """`x` with the mean and the biased variance of all of `by`, then gamma and beta."""
    state = {k: v.numpy() for k, v in layer.state_dict().items()}
    mean = rows(by).sum(0) / len(rows(by))
    var = ((rows(by) - mean) ** 2).sum(0) / len(rows(by))
    out = (rows(x) - mean) / np.sqrt(var + EPS) * state.get("weight", 1.0) + state.get("bias", 0.0)
    last = np.moveaxis(x, 1, -1)
    return np.moveaxis(out.reshape(last.shape), -1, 1)


# ---- statistics


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_one_layer_takes_the_statistics_of_all_images_whatever_the_batches(kind: str, affine: bool) -> None:
    model, given = layers(kind, 1, affine), batches(kind)
    everything = np.concatenate([x.numpy() for x in given])
    for x, got in zip(given, run(model, Population(), given), strict=True):
        assert got.dtype == torch.float64
        np.testing.assert_allclose(got.numpy(), normalised(x.numpy(), everything, model[0]), **PRECISION)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_second_layer_sees_batch_normalised_inputs_while_statistics_are_taken(kind: str) -> None:
    model, given = layers(kind, 2), batches(kind)
    x = [batch.numpy() for batch in given]
    everything = np.concatenate(x)
    seen = np.concatenate([np.tanh(normalised(batch, batch, model[0])) for batch in x])
    used = [np.tanh(normalised(batch, everything, model[0])) for batch in x]
    expected = np.concatenate([normalised(h, seen, model[2]) for h in used])
    got = np.concatenate([out.numpy() for out in run(model, Population(), given)])
    np.testing.assert_allclose(got, expected, **PRECISION)
    exact = np.concatenate([normalised(h, np.concatenate(used), model[2]) for h in used])
    assert np.abs(got - exact).max() > 1e-2, "layer by layer would be something else"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", SHAPES)
def test_one_batch_is_normalised_as_in_training(kind: str, count: int) -> None:
    model, given = layers(kind, count), batches(kind, (9,))
    expected = copy.deepcopy(model).train()(given[0]).detach()
    torch.testing.assert_close(run(model, Population(), given)[0], expected, **PRECISION)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_batch_is_tsmobn_of_one_batch_whatever_its_momentum(momentum: float) -> None:
    model, x = network(), torch.from_numpy(np.random.default_rng(1).normal(size=(14, 2, 6, 6)))
    given = TensorSamples(x, torch.zeros(14))
    one = probabilities(model, given, Population(batch_size=14))
    two = probabilities(model, given, TsmoBN(momentum=momentum, batch_size=14, order=3))
    np.testing.assert_allclose(one, two, **PRECISION)
    assert np.abs(one - probabilities(model, given, TsmoBN(momentum=momentum, batch_size=7))).max() > 1e-4


@pytest.mark.parametrize("kind", SHAPES)
def test_one_layer_over_many_batches_is_tsmobn_without_history_over_one(kind: str) -> None:
    model, given = layers(kind, 1), batches(kind)
    (expected,) = run(model, TsmoBN(momentum=0.0), [torch.cat(given)])
    torch.testing.assert_close(torch.cat(run(model, Population(), given)), expected, **PRECISION)


def test_training_statistics_do_not_matter() -> None:
    model, given = layers("images", 2), batches("images")
    expected = run(model, Population(), given)
    for name, tensor in model.state_dict().items():
        if "running" in name:
            tensor.fill_(40.0)
    assert all(map(torch.equal, run(model, Population(), given), expected))


def test_layers_without_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(CHANNELS, track_running_stats=False)).double().eval()
    given = batches("vectors")
    everything = np.concatenate([x.numpy() for x in given])
    got = torch.cat(run(model, Population(), given)).detach().numpy()
    np.testing.assert_allclose(got, normalised(everything, everything, model[0]), **PRECISION)


def test_float32_far_from_zero() -> None:
    """Sums of squares would lose the variance: it is 1 beside a mean of 1000, over hundreds of batches."""
    model = nn.Sequential(nn.BatchNorm1d(CHANNELS, affine=False)).eval()
    x = torch.from_numpy(np.random.default_rng(0).normal(1000, 1, (2000, CHANNELS))).float()
    got = torch.cat(run(model, Population(), list(x.split(7))))
    assert got.dtype == torch.float32
    exact = x.double().numpy()
    expected = (exact - exact.mean(0)) / np.sqrt(exact.var(0) + EPS)
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-4)


def test_each_site_has_statistics_of_its_own() -> None:
    model, here = layers("images", 2), batches("images", seed=1)
    alone = run(model, Population(), here)
    run(model, Population(), batches("images", seed=2))
    assert all(map(torch.equal, run(model, Population(), here), alone))


# ---- order and size of batches


def classifier(norms: int) -> nn.Module:
    parts = [nn.BatchNorm1d(CHANNELS), nn.Tanh(), nn.BatchNorm1d(CHANNELS)][: 2 * norms - 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*parts, nn.Linear(CHANNELS, 3)).double().eval()


def sorted_samples(n: int = 50) -> TensorSamples:
    """Sorted, as stored test sets may be: batches in stored order are as unlike as they can be."""
    x = torch.from_numpy(np.sort(np.random.default_rng(0).normal(size=(n, CHANNELS)), 0))
    return TensorSamples(x, torch.zeros(n))


def test_with_one_layer_neither_order_nor_batch_size_matter() -> None:
    model, given = classifier(1), sorted_samples()
    x = given.x.numpy()
    weight, bias = (p.detach().numpy() for p in list(model.parameters())[-2:])
    odds = np.exp((x - x.mean(0)) / np.sqrt(x.var(0) + EPS) @ weight.T + bias)
    expected = odds / odds.sum(1, keepdims=True)
    for size in (1, 16, 50, 64):
        got = probabilities(model, given, Population(batch_size=size))
        np.testing.assert_allclose(got, expected, **PRECISION)
    mixed = np.random.default_rng(1).permutation(50)
    shuffled = TensorSamples(given.x[mixed], given.y)
    np.testing.assert_allclose(probabilities(model, shuffled, Population(batch_size=16)), expected[mixed], **PRECISION)


def test_with_two_layers_they_do() -> None:
    model, given = classifier(2), sorted_samples()
    mixed = np.random.default_rng(1).permutation(50)
    one = probabilities(model, given, Population(batch_size=16))
    two = probabilities(model, TensorSamples(given.x[mixed], given.y), Population(batch_size=16))
    assert np.abs(one[mixed] - two).max() > 1e-3


def test_its_batches_and_their_order_are_told() -> None:
    assert Population().score_columns() == {"momentum": None, "batch_size": 32, "order": 0}
    stored = {"momentum": None, "batch_size": 7, "order": None}
    assert Population(batch_size=7, order=None).score_columns() == stored
    sizes: list[int] = []

    class Counting(TensorSamples):
        def batch(self, index: np.ndarray, rng: Any = None) -> tuple[Tensor, Tensor]:
            sizes.append(len(index))
            return super().batch(index, rng)

    given = sorted_samples(17)
    probabilities(classifier(1), Counting(given.x, given.y), Population(batch_size=7))
    assert sizes == [7, 7, 3] * 2, "two passes"


# ---- what is left behind


def test_dropout_is_off_in_both_passes() -> None:
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(11, 2, 6, 6)))
    given = TensorSamples(x, torch.zeros(11))
    off, on = (probabilities(network(dropout=p).train(), given, Population(batch_size=4)) for p in (0.0, 0.9))
    assert np.array_equal(off, on)


def failing(given: list[Tensor]) -> Iterator[Tensor]:
    yield given[0]
    raise OSError


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("when", ["never", "in the first pass", "between the passes", "inside"])
def test_the_model_is_left_as_it_was(when: str, train: bool) -> None:
    model, given = layers("images", 2).train(train), batches("images")
    before, attributes = copy.deepcopy(model.state_dict()), [set(vars(m)) for m in model.modules()]
    if when == "never":
        run(model, Population(), given)
    else:
        source = (lambda: failing(given)) if when == "in the first pass" else (lambda: iter(given))
        with pytest.raises(OSError), torch.no_grad(), Population().on_site(model, source):
            if when == "inside":
                model(given[0])
            raise OSError
    assert not differing(model.state_dict(), before)
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert all(m.training is train for m in model.modules())
    expected = layers("images", 2).train(train)(given[0])
    assert torch.equal(model(given[0]), expected), "and is used afterwards as before"


def test_a_site_without_images_gives_no_rows() -> None:
    assert len(probabilities(classifier(2), sorted_samples(0), Population())) == 0


def test_no_inference_takes_labels_unless_asked_to() -> None:
    assert {"population", "source", "tsmobn"} <= discover("inference").keys()
    for cls in discover("inference").values():
        assert cls.model_fields["personalise"].get_default() is None
    assert [i.personalise for i in (Population(), Source(), TsmoBN())] == [None] * 3


@pytest.mark.parametrize("inference", [Source(), Population(), TsmoBN()], ids=lambda i: i.name)
def test_without_batch_norm_each_is_ordinary_evaluation(inference: Inference) -> None:
    model, x = network("group norm").eval(), torch.from_numpy(np.random.default_rng(0).normal(size=(13, 2, 6, 6)))
    with site_predictor(model, inference, lambda: iter([x])) as predict:
        assert torch.equal(predict(x), network("group norm").eval()(x))
