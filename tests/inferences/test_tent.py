"""TENT against steps by hand, in NumPy and in PyTorch float64, and in the limits where no step counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from adapting import EPS, adapted, answers, convolutions, dense, equal, images, with_batch_statistics, written_out
from torch import Tensor, nn

from fedshift.core.errors import UserError
from fedshift.inferences.tent import Tent
from fedshift.inferences.tsmobn import TsmoBN

outputs_by_batch = partial(adapted, Tent)


class TwoClasses(nn.Module):
    """One batch-norm channel; the logits are 0 and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def test_two_parameters() -> None:
    """dL/dgamma = -mean(h^2 s (1 - s)) with s = sigmoid(h), h = x / sqrt(1 + eps) and x = -1, 1; dL/dbeta = 0."""
    h = 1 / np.sqrt(1 + EPS)
    s = 1 / (1 + np.exp(-h))
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    _, model = outputs_by_batch(TwoClasses().double().eval(), [x], optimiser="sgd", lr=0.1)
    assert model.norm.weight.item() == pytest.approx(1 + 0.1 * h**2 * s * (1 - s), abs=1e-12)
    assert model.norm.weight.item() == pytest.approx(1.019661, abs=1e-6)
    assert model.norm.bias.item() == pytest.approx(0, abs=1e-12)


def test_adam_by_hand_in_numpy() -> None:
    """Three batches, the last one smaller, with dH/dz_k = -p_k (ln p_k + H) and the moments of Adam."""
    model, batches, rate = dense(), images(8, 8, 3), 0.05
    w1, b1, gamma, beta, w2, b2 = (tensor.detach().numpy().copy() for tensor in model.parameters())
    theta = np.concatenate([gamma, beta])
    m, v = np.zeros(8), np.zeros(8)
    expected = []
    for t, batch in enumerate(batches, 1):
        u = batch.numpy() @ w1.T + b1
        h = (u - u.mean(0)) / np.sqrt(u.var(0) + EPS)
        z = (theta[:4] * h + theta[4:]) @ w2.T + b2
        expected.append(torch.from_numpy(z))
        log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
        p = np.exp(log_p)
        entropy = -(p * log_p).sum(1, keepdims=True)
        error = -p * (log_p + entropy) / len(z) @ w2
        g = np.concatenate([(error * h).sum(0), error.sum(0)])
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    logits, changed = outputs_by_batch(model, batches, lr=rate)
    equal(logits, expected, atol=1e-10)
    np.testing.assert_allclose(changed[1].weight.detach().numpy(), theta[:4], rtol=0, atol=1e-10)
    np.testing.assert_allclose(changed[1].bias.detach().numpy(), theta[4:], rtol=0, atol=1e-10)


def test_sgd_by_hand_through_two_layers() -> None:
    """Two steps for each of two batches, with momentum 0.9, and the answer after them."""
    model, batches, rate = convolutions(), images(6, 4, shape=(1, 6, 6)), 0.1
    affine = [t.detach().clone().requires_grad_() for i in (1, 6) for t in (model[i].weight, model[i].bias)]
    history = [torch.zeros_like(t) for t in affine]
    expected = []
    for x in batches:
        for _ in range(2):
            p = written_out(model, x, affine).softmax(1)
            loss = -(p * p.log()).sum(1).mean()
            history = [0.9 * h + g for h, g in zip(history, torch.autograd.grad(loss, affine), strict=True)]
            affine = [(t - rate * h).detach().requires_grad_() for t, h in zip(affine, history, strict=True)]
        expected.append(written_out(model, x, affine).detach())
    logits, _ = outputs_by_batch(model, batches, optimiser="sgd", lr=rate, steps=2, answer="after")
    equal(logits, expected)


def test_rate_zero_and_the_first_answer_are_those_of_the_batch_statistics() -> None:
    model, batches = convolutions(), images(6, 6, 4, shape=(1, 6, 6))
    plain = with_batch_statistics(model, batches)
    for settings in ({"lr": 0.0}, {"lr": 0.0, "steps": 3}, {"lr": 0.0, "optimiser": "sgd", "answer": "after"}):
        equal(outputs_by_batch(model, batches, **settings)[0], plain)
    equal(answers(TsmoBN, model, batches, momentum=0), plain)
    logits, _ = outputs_by_batch(model, batches, lr=0.1)
    equal(logits[:1], plain[:1])
    assert not torch.allclose(logits[1], plain[1])


def test_equal_logits_give_no_gradient() -> None:
    model = dense()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    _, changed = outputs_by_batch(model, images(8, 8), optimiser="sgd", lr=10.0)
    for a, b in zip(model.parameters(), changed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_gamma_and_beta_alone_are_changed() -> None:
    model = convolutions()
    _, changed = outputs_by_batch(model, images(6, 6, shape=(1, 6, 6)), lr=0.1)
    after = changed.state_dict()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, after[name])}
    assert moved == {"1.weight", "1.bias", "6.weight", "6.bias"}


def test_steps_lower_the_entropy() -> None:
    batch = images(16)
    before, after = (
        outputs_by_batch(dense(), batch, lr=0.01, steps=5, answer=answer)[0][0] for answer in ("before", "after")
    )
    start = with_batch_statistics(dense(), batch)[0]
    values = [torch.distributions.Categorical(logits=z).entropy().mean().item() for z in (start, before, after)]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[1] > values[2]


@pytest.mark.parametrize("settings", [{}, {"steps": 2}, {"optimiser": "sgd", "answer": "after"}])
def test_steps_are_kept_within_a_site_and_forgotten_after_it(settings: dict[str, Any]) -> None:
    model, (first, second) = dense(), images(8, 8)
    both, _ = outputs_by_batch(model, [first, second], lr=0.1, **settings)
    again, _ = outputs_by_batch(model, [first, second], lr=0.1, **settings)
    alone, _ = outputs_by_batch(model, [second], lr=0.1, **settings)
    assert all(torch.equal(a, b) for a, b in zip(both, again, strict=True))
    assert not torch.allclose(both[1], alone[0])


@pytest.mark.parametrize("settings", [{"steps": 2}, {"answer": "after"}, {"optimiser": "sgd", "answer": "after"}])
def test_episodic_answers_do_not_depend_on_other_batches(settings: dict[str, Any]) -> None:
    model, (first, second) = dense(), images(8, 8)
    both, _ = outputs_by_batch(model, [first, second], lr=0.1, episodic=True, **settings)
    alone, _ = outputs_by_batch(model, [second], lr=0.1, episodic=True, **settings)
    assert torch.equal(both[1], alone[0])


def test_order_within_a_batch_makes_no_difference() -> None:
    model, batches = dense(), images(8, 8)
    order = [3, 1, 7, 0, 2, 6, 5, 4]
    equal(
        [z[order] for z in outputs_by_batch(model, batches, lr=0.1)[0]],
        outputs_by_batch(model, [x[order] for x in batches], lr=0.1)[0],
    )


def test_networks_without_anything_to_adapt() -> None:
    bare = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double().eval()
    fixed = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)).double().eval()
    batches = images(8, 8)
    assert all(torch.equal(z, bare(x)) for z, x in zip(outputs_by_batch(bare, batches)[0], batches, strict=True))
    equal(outputs_by_batch(fixed, batches)[0], with_batch_statistics(fixed, batches))


def test_one_image_needs_more_than_one_value_a_channel() -> None:
    flat = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 3)).double().eval()
    logits, _ = outputs_by_batch(flat, images(4, 1, shape=(1, 6, 6)))
    assert all(z.isfinite().all() for z in logits)
    with pytest.raises(UserError, match="one image"):
        outputs_by_batch(dense(), images(8, 1))


def test_episodic_with_an_answer_from_before_the_only_step_is_refused() -> None:
    with pytest.raises(ValueError, match="episodic: has no effect with one step"):
        Tent(episodic=True)
    assert Tent(episodic=True, answer="after").steps == 1
