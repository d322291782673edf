"""SHOT-IM against steps by autograd on batch norm written out, and in the limits where it is TENT or nothing."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from adapting import adapted, convolutions, dense, equal, images, with_batch_statistics, written_out
from torch import Tensor, nn

from fedshift.inferences.shot_im import ShotIM
from fedshift.inferences.tent import Tent

outputs_by_batch = partial(adapted, ShotIM)


def test_sgd_by_hand() -> None:
    model, batches, rate = convolutions(), images(6, 4, shape=(1, 6, 6)), 0.1
    affine = [t.detach().clone().requires_grad_() for i in (1, 6) for t in (model[i].weight, model[i].bias)]
    expected = []
    for x in batches:
        logits = written_out(model, x, affine)
        p = logits.softmax(1)
        mean = p.mean(0)
        loss = -(p * p.log()).sum(1).mean() + 0.5 * (mean * mean.log()).sum()
        expected.append(logits.detach())
        gradients = torch.autograd.grad(loss, affine)
        affine = [(t - rate * g).detach().requires_grad_() for t, g in zip(affine, gradients, strict=True)]
    logits, changed = outputs_by_batch(model, batches, optimiser="sgd", beta=0, lr=rate, diversity=0.5)
    equal(logits, expected)
    for i, k in ((1, 0), (6, 2)):
        torch.testing.assert_close(changed[i].weight, affine[k].detach(), rtol=0, atol=1e-12)  # type: ignore[index]


def test_without_diversity_it_is_tent() -> None:
    model, batches = dense(), images(8, 8, 3)
    without, _ = outputs_by_batch(model, batches, lr=0.05, diversity=0)
    equal(without, adapted(Tent, model, batches, lr=0.05)[0])
    assert not torch.allclose(outputs_by_batch(model, batches, lr=0.05)[0][1], without[1])


def test_rate_zero_is_the_batch_statistics() -> None:
    model, batches = convolutions(), images(6, 4, shape=(1, 6, 6))
    equal(outputs_by_batch(model, batches, lr=0)[0], with_batch_statistics(model, batches))


def test_one_image_and_equal_images_move_nothing() -> None:
    """H(p) - H(q) is zero, with its gradient, where the mean of predictions is each of them."""
    flat = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3)).double().eval()
    (image,) = images(1, shape=(1, 6, 6))
    for batch in (image, image.expand(5, -1, -1, -1)):
        _, changed = outputs_by_batch(flat, [batch], optimiser="sgd", lr=10.0)
        for a, b in zip(flat.parameters(), changed.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_its_loss_falls_and_stays_in_its_range() -> None:
    def loss(logits: Tensor) -> float:
        p = logits.softmax(1)
        return float(-(p * p.log()).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum())

    batch = images(16)
    before, after = (loss(outputs_by_batch(dense(), batch * n, lr=0.02)[0][-1]) for n in (1, 6))
    assert -math.log(3) <= after < before <= 0


@pytest.mark.parametrize("parameters", ["bn", "features"])
def test_the_classifier_never_moves(parameters: str) -> None:
    model = convolutions()
    _, changed = outputs_by_batch(model, images(6, 6, shape=(1, 6, 6)), lr=0.1, parameters=parameters)
    after = changed.state_dict()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, after[name])}
    affine = {"1.weight", "1.bias", "6.weight", "6.bias"}
    every = affine | {"0.weight", "0.bias", "5.weight", "5.bias"}
    # batch norm takes every constant out again: the biases before it have no gradient but rounding
    assert moved - {"0.bias", "5.bias"} == (affine if parameters == "bn" else every - {"0.bias", "5.bias"})
