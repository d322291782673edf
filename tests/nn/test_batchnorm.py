"""Batch-norm layers whose forward pass is replaced: gradients against PyTorch's own, and what is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from fedshift.core.errors import UserError
from fedshift.nn.batchnorm import affine_parameters, batch_norm_by, by_batch, moments, normalise

CHANNELS = 3
SHAPES = {"vectors": (7, CHANNELS), "images": (4, CHANNELS, 2, 3), "volumes": (2, CHANNELS, 2, 1, 2)}
MAKE: dict[str, Callable[..., nn.Module]] = {
    "vectors": nn.BatchNorm1d,
    "images": nn.BatchNorm2d,
    "volumes": nn.BatchNorm3d,
}
PRECISION: Any = {"rtol": 1e-11, "atol": 1e-12}


def tensor(*shape: int, seed: int, low: float = -1.0) -> Tensor:
    """Uniform float64 noise that needs gradients."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 3 + low).requires_grad_()


def layer(kind: str, affine: bool = True) -> Any:
    made = MAKE[kind](CHANNELS, affine=affine).double().eval()
    with torch.no_grad():
        made.running_mean += 5
        if affine:
            made.weight.copy_(tensor(CHANNELS, seed=1))
            made.bias.copy_(tensor(CHANNELS, seed=2))
    return made


# ---- gradients


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_by_batch_has_the_value_and_the_gradients_of_training(kind: str, affine: bool) -> None:
    """For the input, gamma and beta, through mean and variance of the batch: F.batch_norm(training=True)."""
    bn, x, away = layer(kind, affine), tensor(*SHAPES[kind], seed=3), tensor(*SHAPES[kind], seed=4).detach()
    with batch_norm_by(bn, by_batch):
        got = bn(x)
    expected = batch_norm(x, None, None, bn.weight, bn.bias, training=True, eps=bn.eps)
    torch.testing.assert_close(got, expected, **PRECISION)
    wanted = [x, *bn.parameters()]
    assert len(wanted) == (3 if affine else 1)
    for one, other in zip(
        torch.autograd.grad((got * away).sum(), wanted),
        torch.autograd.grad((expected * away).sum(), wanted),
        strict=True,
    ):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(one, other, **PRECISION)


@pytest.mark.parametrize("kind", SHAPES)
def test_by_batch_passes_gradcheck(kind: str) -> None:
    bn, x = layer(kind), tensor(*SHAPES[kind], seed=3)

    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with batch_norm_by(bn, by_batch):
            return torch.func.functional_call(bn, {"weight": weight, "bias": bias}, (x,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(forward, (x, tensor(CHANNELS, seed=5), tensor(CHANNELS, seed=6)))


@pytest.mark.parametrize("kind", SHAPES)
def test_normalise_passes_gradcheck_in_the_statistics_too(kind: str) -> None:
    bn = layer(kind)
    mean, var = tensor(CHANNELS, seed=7), tensor(CHANNELS, seed=8, low=0.5)
    assert torch.autograd.gradcheck(lambda x, m, v: normalise(bn, x, m, v), (tensor(*SHAPES[kind], seed=3), mean, var))
    assert torch.autograd.gradcheck(lambda m, v: normalise(bn, tensor(*SHAPES[kind], seed=3), m, v, False), (mean, var))


@pytest.mark.parametrize("kind", SHAPES)
def test_moments_pass_gradcheck(kind: str) -> None:
    assert torch.autograd.gradcheck(moments, (tensor(*SHAPES[kind], seed=3),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", SHAPES)
def test_whether_gradients_are_recorded_changes_no_bit_of_moments(kind: str, dtype: torch.dtype) -> None:
    x = tensor(*SHAPES[kind], seed=3).detach().to(dtype)
    dims = [0, *range(2, x.dim())]
    mean = x.mean(dims, keepdim=True)
    expected = mean.flatten(), ((x - mean) * (x - mean)).mean(dims)
    with torch.no_grad():
        without = moments(x)
    for found in (without, moments(x.requires_grad_())):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", SHAPES)
def test_without_gradients_normalise_has_the_bits_of_evaluation(kind: str) -> None:
    bn, x = layer(kind), tensor(*SHAPES[kind], seed=3).detach()
    mean, var = moments(x)
    expected = batch_norm(x, mean, var, bn.weight, bn.bias, training=False, eps=bn.eps)
    assert torch.equal(normalise(bn, x, mean, var), expected)
    plain = batch_norm(x, mean, var, None, None, training=False, eps=bn.eps)
    assert torch.equal(normalise(bn, x, mean, var, affine=False), plain)


def test_one_value_a_channel_has_no_spread() -> None:
    with pytest.raises(UserError, match="no spread"), batch_norm_by(bn := layer("vectors"), by_batch):
        bn(tensor(1, CHANNELS, seed=0))


def test_affine_parameters_are_gamma_and_beta_of_batch_norm_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), layer("vectors"), nn.LayerNorm(3), layer("vectors", False), layer("vectors"))
    found = affine_parameters(model)
    assert [id(p) for p in found] == [id(p) for k in (1, 4) for p in (model[k].weight, model[k].bias)]
    assert affine_parameters(nn.Linear(2, 3)) == []


# ---- what is left behind


class Twice(nn.Module):
    """One layer that is called twice in a forward pass, and is known by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layer("vectors")
        self.alias = self.norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.alias(self.norm(x).tanh())
        return out


@pytest.mark.parametrize("fails", [False, True])
def test_a_layer_that_is_called_twice_is_restored(fails: bool) -> None:
    model, x = Twice(), tensor(*SHAPES["vectors"], seed=3)
    before, attributes, expected = copy.deepcopy(model.state_dict()), set(vars(model.norm)), model(x)
    calls: list[int] = []

    def counted(bn: Any, call: int) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            calls.append(len(x))
            if fails and len(calls) == 2:
                raise OSError
            return by_batch(bn)(x)

        return forward

    try:
        with batch_norm_by(model, counted):
            got = model(x)
    except OSError:
        assert fails
    else:
        bn = model.norm
        h = x
        for squash in (torch.tanh, lambda out: out):
            h = squash(batch_norm(h, None, None, bn.weight, bn.bias, training=True, eps=bn.eps))
        torch.testing.assert_close(got, h, **PRECISION)
    assert len(calls) == 2
    assert set(vars(model.norm)) == attributes
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(model(x), expected)


def test_each_use_of_a_layer_has_its_own_function_in_every_pass() -> None:
    """The first pass, one that fails half-way, and the next one all begin with the first use."""
    model, x = Twice(), tensor(*SHAPES["vectors"], seed=3)
    made: list[int] = []
    used: list[int] = []

    def numbered(_: Any, call: int) -> Callable[[Tensor], Tensor]:
        made.append(call)

        def forward(x: Tensor) -> Tensor:
            used.append(call)
            if len(used) == 3:
                raise OSError
            return x

        return forward

    with batch_norm_by(model, numbered):
        model(x)
        with pytest.raises(OSError):
            model(x)
        model(x)
        model.norm(x)
    assert made == [0, 1]
    assert used == [0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("fails", [False, True])
def test_blocks_within_blocks_are_undone_one_by_one(fails: bool) -> None:
    bn, x = layer("vectors"), tensor(*SHAPES["vectors"], seed=3)
    expected = bn(x)
    with batch_norm_by(bn, lambda *_: lambda x: x + 1):
        try:
            with batch_norm_by(bn, lambda *_: lambda x: x + 2):
                assert torch.equal(bn(x), x + 2)
                if fails:
                    raise OSError
        except OSError:
            assert fails
        assert torch.equal(bn(x), x + 1)
    assert torch.equal(bn(x), expected)
    assert "forward" not in vars(bn)
