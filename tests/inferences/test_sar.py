"""SAR against its two gradients by autograd, in the limits where it is TENT, and its resets."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from adapting import adapted, decided, dense, equal, images, same, with_batch_statistics, written_out

from fedshift.inferences.sar import SAR
from fedshift.inferences.tent import Tent

EVERYTHING = {"threshold": 10.0, "reset": 0.0}


outputs_by_batch = partial(adapted, SAR)


def test_two_gradients_by_hand() -> None:
    model, batches, rate, rho = decided(), images(8, 8, 6, shape=(1, 6, 6)), 0.1, 1.5
    affine = [t.detach().clone().requires_grad_() for i in (1, 6) for t in (model[i].weight, model[i].bias)]
    limit, expected, dropped = 0.85 * math.log(3), [], 0
    for x in batches:
        logits = written_out(model, x, affine)
        expected.append(logits.detach())
        p = logits.softmax(1)
        h = -(p * p.log()).sum(1)
        first = torch.autograd.grad(h[h < limit].mean(), affine)
        norm = math.sqrt(sum(float(g.square().sum()) for g in first))
        moved = [(t + rho * g / norm).detach().requires_grad_() for t, g in zip(affine, first, strict=True)]
        p = written_out(model, x, moved).softmax(1)
        again = -(p * p.log()).sum(1)
        both = (h < limit) & (again < limit)
        dropped += int((h < limit).sum() - both.sum())
        second = torch.autograd.grad(again[both].mean(), moved)
        affine = [(t - rate * g).detach().requires_grad_() for t, g in zip(affine, second, strict=True)]
    settings = {"optimiser": "sgd", "beta": 0, "lr": rate, "threshold": 0.85, "rho": rho, "reset": 0}
    equal(outputs_by_batch(model, batches, **settings)[0], expected, atol=1e-11)  # the classifier is ten times as steep
    assert dropped, "an image counts for the first gradient only"


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_without_distance_filter_and_reset_it_is_tent(optimiser: str) -> None:
    model, batches = dense(), images(8, 8, 3)
    expected, _ = adapted(Tent, model, batches, lr=0.05, optimiser=optimiser)
    equal(outputs_by_batch(model, batches, rho=0, lr=0.05, optimiser=optimiser, **EVERYTHING)[0], expected)


def test_a_reset_begins_again_after_every_batch_or_never() -> None:
    """The mean entropy lies below ln K times 10 always, and below 0 never."""
    model, batches = dense(), images(8, 8, 8)
    plain = with_batch_statistics(model, batches)
    logits, changed = outputs_by_batch(model, batches, lr=0.5, threshold=10.0, reset=10.0)
    equal(logits, plain)
    assert same(model, changed)
    assert not torch.allclose(outputs_by_batch(model, batches, lr=0.5, **EVERYTHING)[0][2], plain[2])


def test_where_nothing_counts_no_bit_moves() -> None:
    model, batches = dense(), images(8, 8)
    logits, changed = outputs_by_batch(model, batches, lr=1.0, threshold=1e-9)
    equal(logits, with_batch_statistics(model, batches))
    assert same(model, changed)


def test_the_reset_of_a_thousand_classes_is_the_published_one() -> None:
    assert SAR().reset * math.log(1000) == pytest.approx(0.2, abs=1e-12)
    assert SAR().reset * math.log(2) == pytest.approx(0.020, abs=5e-4)
