"""IABN against its formulas in NumPy, image by image, and in its limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from adapting import EPS, answers, convolutions, dense, equal, images
from torch import Tensor, nn

from fedshift.inferences.iabn import IABN


def predicted(model: nn.Module, batches: list[Tensor], k: float) -> list[Tensor]:
    return answers(IABN, model, batches, k=k)


def layer() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(2).double().eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([0.5, -1.0]))
        norm.running_var.copy_(torch.tensor([2.0, 0.3]))
        norm.weight.copy_(torch.tensor([1.5, -0.5]))
        norm.bias.copy_(torch.tensor([0.1, 0.2]))
    return norm


def soft(z: float, r: float) -> float:
    return 0.0 if abs(z) <= r else z - r * np.sign(z)


@pytest.mark.parametrize("k", [0.0, 0.7, 4.0])
def test_each_image_and_channel_by_hand(k: float) -> None:
    norm = layer()
    x = torch.stack([images(1, shape=(2, 3, 4))[0][0] * scale for scale in (0.05, 0.4, 3.0)])
    (ours,) = predicted(norm, [x], k)
    passed = 0
    for image, out in zip(x.numpy(), ours.numpy(), strict=True):
        for c in range(2):
            mu, v = norm.running_mean[c].item(), norm.running_var[c].item()
            m, w, n = image[c].mean(), image[c].var(ddof=1), image[c].size
            s, t = np.sqrt((v + EPS) / n), (v + EPS) * np.sqrt(2 / (n - 1))
            passed += abs(m - mu) > k * s
            mean, var = mu + soft(m - mu, k * s), max(v + soft(w - v, k * t), 0)
            expected = norm.weight[c].item() * (image[c] - mean) / np.sqrt(var + EPS) + norm.bias[c].item()
            np.testing.assert_allclose(out[c], expected, rtol=1e-11, atol=1e-12)
    assert passed > 0, "the image counts somewhere"
    assert k < 4 or passed < 6, "and training elsewhere"


def test_a_large_k_is_source() -> None:
    model, batches = convolutions(), images(6, 3, shape=(1, 6, 6))
    equal(predicted(model, batches, 1e9), [model(x) for x in batches])


def test_k_0_is_instance_norm() -> None:
    norm, x = layer(), images(4, shape=(2, 5, 5))[0]
    mean, var = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
    expected = (x - mean) / (var + EPS).sqrt() * norm.weight.view(1, 2, 1, 1) + norm.bias.view(1, 2, 1, 1)
    equal(predicted(norm, [x], 0.0), [expected])


def test_vectors_have_training_statistics() -> None:
    model, batches = dense(), images(8, 1)
    equal(predicted(model, batches, 0.0), [model(x) for x in batches])


def test_batches_make_no_difference() -> None:
    model, (x,) = convolutions(), images(7, shape=(1, 6, 6))
    whole = predicted(model, [x], 0.5)[0]
    equal(predicted(model, [*x.split(1)], 0.5), [*whole.split(1)])
