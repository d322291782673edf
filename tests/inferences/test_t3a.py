"""T3A against its supports kept by hand in NumPy."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from adapting import answers, convolutions, dense, equal, images
from numpy.typing import NDArray
from torch import nn

from fedshift.inferences.t3a import T3A

Array = NDArray[np.float64]


outputs_by_batch = partial(answers, T3A)


def entropy(z: Array) -> float:
    p = np.exp(z - z.max())
    p /= p.sum()
    return float(-(p * np.log(p)).sum())


def by_hand(features: list[Array], weight: Array, bias: Array, most: int | None) -> list[Array]:
    """Return the scores of batches of features, with a list of supports (entropy, vector) for each class."""
    supports = [[(entropy(weight @ row + bias), row)] for row in weight]
    scale, scores = np.linalg.norm(weight, axis=1).mean(), []
    for batch in features:
        for z in batch:
            logits = weight @ z + bias
            supports[int(logits.argmax())].append((entropy(logits), z))
        supports = [sorted(those, key=lambda pair: pair[0])[:most] for those in supports]
        sums = np.stack([sum(v / max(np.linalg.norm(v), 1e-12) for _, v in those) for those in supports])
        scores.append(scale * batch @ (sums / np.linalg.norm(sums, axis=1, keepdims=True)).T)
    return scores


@pytest.mark.parametrize("most", [1, 3, None])
def test_supports_by_hand(most: int | None) -> None:
    model, batches = convolutions(), images(7, 7, 3, shape=(1, 6, 6))
    with torch.no_grad():
        features = [model[:8](x).numpy() for x in batches]
    weight, bias = (tensor.detach().numpy() for tensor in (model[8].weight, model[8].bias))
    expected = [torch.from_numpy(scores) for scores in by_hand(features, weight, bias, most)]
    equal(outputs_by_batch(model, batches, supports=most), expected)


def test_the_answer_leaves_the_bias_out() -> None:
    """Rows (2, 0) and (0, 1) and features (1, 1.5): the layer says the first class, and T3A the second.

    Both rows are surer of themselves than the image is, so that with one support a class they stay the class vectors:
    the scores are (1, 1.5) times the mean length 1.5. Without the filter the image joins the first class.
    """
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        model[1].bias.zero_()
    (scores,) = outputs_by_batch(model, [torch.tensor([[1.0, 1.5]], dtype=torch.float64)], supports=1)
    torch.testing.assert_close(scores, torch.tensor([[1.5, 2.25]], dtype=torch.float64), rtol=0, atol=1e-12)
    (scores,) = outputs_by_batch(model, [torch.tensor([[1.0, 1.5]], dtype=torch.float64)], supports=None)
    assert scores[0, 0] > 1.5


def test_batch_statistics_on_request() -> None:
    model = dense()
    model[1].get_buffer("running_mean").add_(3)
    source, batch = (outputs_by_batch(model, images(8), statistics=kind)[0] for kind in ("source", "batch"))
    assert not torch.allclose(source, batch)
    u = model[0](images(8)[0]).detach().numpy()
    h = (u - u.mean(0)) / np.sqrt(u.var(0) + model[1].eps) * model[1].weight.detach().numpy()
    features = h + model[1].bias.detach().numpy()
    weight, bias = (tensor.detach().numpy() for tensor in (model[2].weight, model[2].bias))
    equal([batch], [torch.from_numpy(by_hand([features], weight, bias, 100)[0])], atol=1e-11)
