"""LAME in the limits where it is the network alone, against its iteration in NumPy, and on features that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from adapting import answers, dense, equal, images
from torch import Tensor, nn

from fedshift.inferences.lame import LAME, agreed


def outputs_by_batch(model: nn.Module, batches: list[Tensor], **settings: Any) -> list[Tensor]:
    return [logits.softmax(1) for logits in answers(LAME, model, batches, **settings)]


def source(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [model(x).softmax(1) for x in batches]


def test_without_weight_and_for_one_image_it_is_the_network() -> None:
    model, batches = dense(), images(8, 5)
    equal(outputs_by_batch(model, batches, weight=0), source(model, batches), atol=1e-9)
    (one,) = images(1)
    equal(outputs_by_batch(model, [one], affinity="knn"), source(model, [one]), atol=1e-9)
    assert outputs_by_batch(model, [one])[0].argmax() == source(model, [one])[0].argmax()


@pytest.mark.parametrize("affinity", ["rbf", "knn", "linear"])
def test_iteration_by_hand(affinity: str) -> None:
    model, (batch,) = dense(), images(9)
    with torch.no_grad():
        f = model[:2](batch).numpy()
    p = source(model, [batch])[0].numpy()
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    d = np.sqrt(((f[:, None] - f[None]) ** 2).sum(-1))
    if affinity == "linear":
        w = f @ f.T
    elif affinity == "rbf":
        sigma = np.sort(d, axis=1)[:, 2].mean()
        w = np.exp(-(d**2) / (2 * sigma**2))
    else:
        w = np.zeros((9, 9))
        for i in range(9):
            others = sorted((j for j in range(9) if j != i), key=lambda j: d[i, j])
            w[i, others[:3]] = 1
    y = p
    for _ in range(100):
        e = np.exp(np.log(p + 1e-10) + 0.7 * w @ y)
        y = e / e.sum(1, keepdims=True)
    (got,) = outputs_by_batch(model, [batch], affinity=affinity, neighbours=3, weight=0.7)
    np.testing.assert_allclose(got.numpy(), y, rtol=0, atol=1e-5)


def test_an_affinity_with_oneself_alone_keeps_every_class() -> None:
    (p,) = source(dense(), images(20))
    assert torch.equal(agreed(p, 3 * torch.eye(20, dtype=torch.float64)).argmax(1), p.argmax(1))


def test_order_within_a_batch_makes_no_difference() -> None:
    model, (batch,), order = dense(), images(8), [3, 1, 7, 0, 2, 6, 5, 4]
    equal([outputs_by_batch(model, [batch])[0][order]], outputs_by_batch(model, [batch[order]]), atol=1e-9)


def test_equal_features_give_finite_predictions() -> None:
    model, (batch,) = dense(), images(1)
    for affinity in ("rbf", "knn", "linear"):
        (p,) = outputs_by_batch(model, [batch.expand(6, -1)], affinity=affinity)
        assert p.isfinite().all()
        torch.testing.assert_close(p.sum(1), torch.ones(6, dtype=torch.float64))


def test_neighbours_win_over_a_doubtful_image() -> None:
    """Four sure images of class 0 and a doubtful one with the same features: it joins them."""
    p = torch.tensor([[0.98, 0.02]] * 4 + [[0.45, 0.55]], dtype=torch.float64)
    assert agreed(p, torch.ones(5, 5, dtype=torch.float64)).argmax(1).tolist() == [0] * 5
