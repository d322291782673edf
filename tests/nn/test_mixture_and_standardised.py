"""Layers by hand: the mixture of batch and instance norm, standardised weights, and adaptive gradient clipping."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedshift.nn.batchnorm import affine_parameters, batch_norm_by, by_batch
from fedshift.nn.norms import Mixture, StandardisedConv2d, clip_rows, clipped_parameters

X = torch.tensor([[1.0, 3.0], [5.0, 11.0]], dtype=torch.float64)


def test_the_mixture_by_hand() -> None:
    """Two images of one channel: batch norm takes all four values together, instance norm each image alone."""
    layer = Mixture(1).double().train()
    layer.batch.eps = layer.instance.eps = 1e-14  # torch refuses 0 in training
    images = X.view(2, 1, 1, 2)
    expected = ((X - 5) / 14**0.5 + torch.tensor([-1.0, 1.0])) / 2
    torch.testing.assert_close(layer(images).view(2, 2), expected)
    assert layer(images).flatten().tolist() == pytest.approx([-1.034522, 0.232739, -0.5, 1.301784], abs=1e-6)
    with torch.no_grad():
        layer.instance.score.zero_()  # scores (1, 0): shares e / (1 + e) and 1 / (1 + e)
    share = np.e / (1 + np.e)
    assert share == pytest.approx(0.731059, abs=1e-6)
    parts = share * (X - 5) / 14**0.5 + (1 - share) * torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(layer(images).view(2, 2), parts)


@pytest.mark.parametrize(("scores", "part"), [((1e4, 0.0), "batch"), ((0.0, 1e4), "instance")])
def test_a_large_score_leaves_one_part_of_the_mixture(scores: tuple[float, float], part: str) -> None:
    layer = Mixture(3).train()
    with torch.no_grad():
        layer.batch.score.fill_(scores[0])
        layer.instance.score.fill_(scores[1])
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x), layer.get_submodule(part)(x))


def test_test_time_statistics_replace_the_batch_part_of_a_mixture_alone() -> None:
    """In evaluation mode the batch part has its running statistics (0, 1), and by the batch those of the batch."""
    layer = Mixture(1).double().eval()
    layer.batch.eps = layer.instance.eps = 0
    images = X.view(2, 1, 1, 2)
    instance = torch.tensor([-1.0, 1.0])
    torch.testing.assert_close(layer(images).view(2, 2), (X + instance) / 2)
    with batch_norm_by(layer, by_batch):
        torch.testing.assert_close(layer(images).view(2, 2), ((X - 5) / 14**0.5 + instance) / 2)
    assert len(affine_parameters(layer)) == 2  # gamma and beta; the score is not adapted


# ---- standardised weights and adaptive clipping


def standardised(*rows: tuple[float, ...]) -> StandardisedConv2d:
    layer = StandardisedConv2d(nn.Conv2d(len(rows[0]), len(rows), 1, bias=False).double())
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows).double()[:, :, None, None])
    return layer.double()


def test_standardised_weights_by_hand() -> None:
    """The filter (1, 2, 3, 6) has mean 3 and N var 14; 1e-4 under the root moves the sixth digit."""
    layer = standardised((1, 2, 3, 6))
    centred = np.array([-2, -1, 0, 3])
    assert layer.scale == pytest.approx((2 / (1 - 1 / np.pi)) ** 0.5, rel=1e-12)
    exact = layer.scale * centred / np.sqrt(14 + 1e-4)
    assert layer.standardised().flatten().tolist() == pytest.approx(exact, rel=1e-12)
    assert layer.standardised().flatten().tolist() == pytest.approx([-0.915561, -0.457780, 0, 1.373342], abs=1e-5)
    with torch.no_grad():
        layer.gain.fill_(2)
    assert layer.standardised().flatten().tolist() == pytest.approx(2 * exact, rel=1e-12)


def test_the_mean_of_two_filters_reverses_one_of_them() -> None:
    """Of (1, 3) and (2, -2) the mean is (1.5, 0.5): the larger spread wins, as the docstring says."""
    one, other, mean = (standardised(row).standardised().flatten() for row in ((1, 3), (2, -2), (1.5, 0.5)))
    assert torch.equal(one.sign(), -mean.sign())
    assert torch.equal(other.sign(), mean.sign())
    assert (mean / StandardisedConv2d.scale).tolist() == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-4)


def test_adaptive_clipping_by_hand() -> None:
    """At 0.1: the limits of the rows are 0.5 and 0.0001, the norms of their gradients 1 and 0.5."""
    weight = torch.tensor([[3.0, 4.0], [0.0, 0.0]]).double()
    grad = torch.tensor([[0.6, 0.8], [0.3, 0.4]]).double()
    vector, of_vector = torch.tensor([3.0, 4.0]), torch.tensor([0.03, 0.04])  # below its limit 0.5: one row
    clip_rows([(weight, grad), (vector, of_vector)], 0.1)
    torch.testing.assert_close(grad, torch.tensor([[0.3, 0.4], [6e-5, 8e-5]]).double())
    assert torch.equal(of_vector, torch.tensor([0.03, 0.04]))


def test_the_last_layer_is_not_clipped() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    assert [id(p) for p in clipped_parameters(model)] == [id(p) for p in model[0].parameters()]
