"""alpha-BN against its formula in NumPy, and at both ends of alpha."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from adapting import EPS, answers, convolutions, dense, equal, images, with_batch_statistics
from torch import nn

from fedshift.core.errors import UserError
from fedshift.inferences.alpha_bn import AlphaBN

outputs_by_batch = partial(answers, AlphaBN)


def drifted(model: nn.Sequential) -> nn.Sequential:
    """Return the network with training statistics that are not those of its start."""
    for layer in model:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean += 0.7
            layer.running_var *= 2.5
    return model


def test_both_ends() -> None:
    model, batches = drifted(convolutions()), images(6, 6, 4, shape=(1, 6, 6))
    with torch.no_grad():
        source = [model(x) for x in batches]
    equal(outputs_by_batch(model, batches, alpha=1), source)
    equal(outputs_by_batch(model, batches, alpha=0), with_batch_statistics(model, batches))
    equal(outputs_by_batch(model, batches, prior=0), with_batch_statistics(model, batches))
    equal(outputs_by_batch(model, batches, prior=10**12), source, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "weights"), [({}, [16 / 48, 16 / 19]), ({"prior": 4}, [4 / 36, 4 / 7]), ({"alpha": 0.9}, [0.9, 0.9])]
)
def test_mixture_by_hand(settings: dict[str, Any], weights: list[float]) -> None:
    """16 pseudo-samples and a batch of 32 give training a weight of 1/3; the last batch has 3 images."""
    model, batches = drifted(dense()), images(32, 3)
    w1, b1, gamma, beta, w2, b2 = (tensor.detach().numpy() for tensor in model.parameters())
    trained, spread = (model[1].get_buffer(name).numpy() for name in ("running_mean", "running_var"))
    expected = []
    for x, a in zip(batches, weights, strict=True):
        u = x.numpy() @ w1.T + b1
        mean, var = a * trained + (1 - a) * u.mean(0), a * spread + (1 - a) * u.var(0)
        expected.append(torch.from_numpy(((u - mean) / np.sqrt(var + EPS) * gamma + beta) @ w2.T + b2))
    equal(outputs_by_batch(model, batches, **settings), expected)


def test_one_image_is_refused_only_where_training_has_no_weight() -> None:
    assert outputs_by_batch(drifted(dense()), images(1))[0].isfinite().all()
    with pytest.raises(UserError, match="one image"):
        outputs_by_batch(dense(), images(1), alpha=0)


def test_a_layer_without_training_statistics_uses_the_batch() -> None:
    model = dense()
    model[1] = nn.BatchNorm1d(4, track_running_stats=False).double()
    equal(outputs_by_batch(model, images(8)), with_batch_statistics(model, images(8)))
