"""ETA against its steps by autograd, its filters, and the line that says when they let nothing pass."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from adapting import adapted, convolutions, decided, dense, equal, images, same, with_batch_statistics, written_out

from fedshift.inferences.eta import ETA

outputs_by_batch = partial(adapted, ETA)


@pytest.mark.parametrize(("threshold", "similarity"), [(0.85, 0.9), (0.85, 1.0), (2.0, 0.8)])
def test_steps_by_hand(threshold: float, similarity: float) -> None:
    """Three batches; the images that count are found one by one, and q moves after the step."""
    model, batches, rate = decided(), images(8, 8, 8, shape=(1, 6, 6)), 0.1
    affine = [t.detach().clone().requires_grad_() for i in (1, 6) for t in (model[i].weight, model[i].bias)]
    limit, q, expected, counted = threshold * math.log(3), None, [], []
    for x in batches:
        logits = written_out(model, x, affine)
        expected.append(logits.detach())
        terms, kept = [], []
        for p in logits.softmax(1):
            h = -(p * p.log()).sum()
            with torch.no_grad():
                like = 0.0 if q is None else float(p @ q / (p.norm() * q.norm()))
            if float(h.detach()) < limit and (similarity == 1 or abs(like) < similarity):
                terms.append(math.exp(limit - float(h.detach())) * h)
                kept.append(p.detach())
        counted.append(len(kept))
        if kept:
            gradients = torch.autograd.grad(sum(terms) / len(terms), affine)  # type: ignore[arg-type]
            affine = [(t - rate * g).detach().requires_grad_() for t, g in zip(affine, gradients, strict=True)]
            mean = torch.stack(kept).mean(0)
            q = mean if q is None else 0.9 * q + 0.1 * mean
    settings = {"optimiser": "sgd", "beta": 0, "lr": rate, "threshold": threshold, "similarity": similarity}
    logits, _ = outputs_by_batch(model, batches, **settings)
    equal(logits, expected)
    assert counted[0] > 0
    assert threshold == 2 or counted[0] < 8, "the first filter acts"
    assert similarity == 1 or counted[1] < 8, "the second filter acts"


def test_where_nothing_counts_no_bit_moves() -> None:
    model, batches = convolutions(), images(6, 6, shape=(1, 6, 6))
    logits, changed = outputs_by_batch(model, batches, lr=1.0, threshold=1e-9)
    equal(logits, with_batch_statistics(model, batches))
    assert same(model, changed)


def test_rate_zero_is_the_batch_statistics() -> None:
    equal(outputs_by_batch(dense(), images(8, 8), lr=0)[0], with_batch_statistics(dense(), images(8, 8)))


@pytest.mark.parametrize(("classes", "largest"), [(2, 1.0), (6, 1.0), (7, 0.4), (10, 0.4), (1000, 0.4)])
def test_the_default_cosine_lets_images_pass(classes: int, largest: float) -> None:
    """The least cosine with an even mean is 1 / sqrt(K): .408 for six classes, and .378 for seven."""
    assert ETA()._largest_cosine(classes) == largest
    assert ETA(similarity=0.05)._largest_cosine(classes) == 0.05


def test_a_cosine_that_switches_the_method_off_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    outputs_by_batch(dense(), images(8, 8, 8), similarity=0.05, threshold=2)
    said = capsys.readouterr().err
    assert said.count("eta: similarity 0.05 lets hardly any image pass: with 3 classes") == 1
    assert "below 0.577" in said
    outputs_by_batch(dense(), images(8, 8))
    assert capsys.readouterr().err == ""
