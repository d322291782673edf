"""What stands in for operations that have no deterministic kernel on a GPU: the same bits on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from fedshift.models._blocks import MeanOfCells, means
from fedshift.nn.features import cross_entropies
from fedshift.tasks import Classification

G = torch.Generator().manual_seed(0)


def with_gradient(x: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
    return losses.detach(), torch.autograd.grad(losses.mean(), x)[0]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(3, 2, 7, 5), (2, 4, 16, 16), (1, 3, 1, 9)])
def test_the_cross_entropy_of_pixels_has_the_bits_of_that_of_images(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    x = (5 * torch.randn(shape, generator=G)).contiguous(memory_format=layout).requires_grad_()
    y = torch.randint(0, shape[1], (shape[0], *shape[2:]), generator=G)
    expected = with_gradient(x, cross_entropy(x, y, reduction="none"))
    for found, value in zip(with_gradient(x, cross_entropies(x, y)), expected, strict=True):
        assert found.equal(value)
    mean = torch.autograd.grad(cross_entropy(x, y), x)[0]
    assert mean.equal(expected[1])


def test_the_cross_entropy_of_samples_has_the_bits_of_torch() -> None:
    x = (5 * torch.randn(33, 7, generator=G)).requires_grad_()
    y = torch.randint(0, 7, (33,), generator=G)
    expected = with_gradient(x, cross_entropy(x, y, reduction="none"))
    assert all(one.equal(other) for one, other in zip(with_gradient(x, cross_entropies(x, y)), expected, strict=True))
    measured = Classification().measured((x.detach(), y))
    of_images = cross_entropy(x.detach().t()[None], y[None], reduction="none")[0]
    assert measured[0].equal(of_images.double())


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (6, 6), (7, 13), (12, 9), (3, 20)])
def test_means_of_cells_are_those_of_torch(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, dtype=torch.float64, generator=G, requires_grad=True)
    expected = adaptive_avg_pool2d(x, 6)
    found = means(means(x, -2, 6), -1, 6)
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=G)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    ours, theirs = (torch.autograd.grad((weights * y).sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)
    assert MeanOfCells(6)(x).equal(expected)
