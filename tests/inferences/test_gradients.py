"""Inferences that take gradient steps at test time: against plain PyTorch, float64, and what is left behind."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from toy import clients, fingerprint, network

from fedshift.core.registry import discover
from fedshift.core.rng import stream
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities, site_predictor
from fedshift.inferences import ORDERED, Inference, Predict
from fedshift.inferences.source import Source
from fedshift.inferences.tsmobn import TsmoBN
from fedshift.nn.batchnorm import affine_parameters, batch_norm_by, by_batch
from fedshift.nn.features import classifier, inputs_of

Array = NDArray[np.float64]
Batches = Callable[[], Iterator[Tensor]]
PRECISION: Any = {"rtol": 1e-11, "atol": 1e-12}


class Entropy(Inference):
    """SGD steps on gamma and beta towards a lower entropy of each batch; answers are from before the step."""

    gradients: ClassVar[bool] = True
    order: int | None = ORDERED
    lr: float = Field(0.5, ge=0, description="rate of the steps")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
        optimiser = torch.optim.SGD([{"params": affine_parameters(model)}], lr=self.lr)

        def predict(x: Tensor) -> Tensor:
            logits: Tensor = model(x)
            log_p = logits.log_softmax(1)
            optimiser.zero_grad()
            (-(log_p.exp() * log_p).sum(1).mean()).backward()
            optimiser.step()
            return logits

        with batch_norm_by(model, by_batch):
            yield predict


def site(name: str) -> TensorSamples:
    x, y = clients()[name]
    return TensorSamples(x, y)


def by_hand(model: nn.Module, x: Tensor, order: Array, size: int, lr: float) -> Array:
    """The toy network of two convolutions as functions, and SGD written out."""
    state = {k: v.detach().clone() for k, v in model.state_dict().items()}
    norms = [f"{k}.{leaf}" for k in (1, 4) for leaf in ("weight", "bias")]
    out = np.empty((len(x), 3))
    for start in range(0, len(x), size):
        index = order[start : start + size]
        theta = {k: state[k].requires_grad_() for k in norms}
        h = x[torch.from_numpy(index)]
        for conv, norm in ((0, 1), (3, 4)):
            h = torch.nn.functional.conv2d(h, state[f"{conv}.weight"], state[f"{conv}.bias"], padding=1)
            h = batch_norm(h, None, None, theta[f"{norm}.weight"], theta[f"{norm}.bias"], training=True)
            h = h.relu()
        p = (h.mean((2, 3)) @ state["9.weight"].T + state["9.bias"]).softmax(1)
        out[index] = p.detach().numpy()
        entropy = -(p * p.log()).sum(1).mean()
        for key, gradient in zip(norms, torch.autograd.grad(entropy, list(theta.values())), strict=True):
            state[key] = (theta[key] - lr * gradient).detach()
    return out


# ---- the steps


@pytest.mark.parametrize("order", [0, None])
@pytest.mark.parametrize("size", [5, 22])
def test_steps_are_those_of_plain_pytorch(size: int, order: int | None) -> None:
    """Entropy falls by SGD on gamma and beta; dropout is off and running statistics stay out of it."""
    model, given = network(dropout=0.5), site("b")
    taken = np.arange(22) if order is None else stream(order, "test order").permutation(22)
    expected = by_hand(model, given.x, taken, size, 0.5)
    found = probabilities(model.train(), given, Entropy(batch_size=size, order=order))
    np.testing.assert_allclose(found, expected, **PRECISION)
    still = probabilities(model, given, Entropy(batch_size=size, order=order, lr=0))
    assert (np.abs(found - still).max() > 1e-3) == (size < 22), "the answer is that from before the step"


@pytest.mark.parametrize("size", [5, 22])
def test_without_a_rate_it_is_batch_norm_by_batch(size: int) -> None:
    one, two = Entropy(batch_size=size, lr=0), TsmoBN(momentum=0.0, batch_size=size)
    np.testing.assert_allclose(*(probabilities(network(), site("b"), i) for i in (one, two)), **PRECISION)


def test_one_step_by_algebra() -> None:
    """x = -1, 1 and logits 0, gamma x: dH/dgamma = -mean(x^2 s (1 - s)), with x normalised and s = sigmoid(x)."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([torch.zeros_like(x), self.norm(x)], 1)

    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    with site_predictor(Pair().double(), Entropy(lr=0.1), lambda: iter([x])) as predict:
        first, second = predict(x), predict(x)
    normed = 1 / math.sqrt(1 + 1e-5)
    s = 1 / (1 + math.exp(-normed))
    assert first[:, 1].tolist() == pytest.approx([-normed, normed], rel=1e-12)
    gamma = 1 + 0.1 * normed**2 * s * (1 - s)
    assert gamma == pytest.approx(1.019661, abs=1e-6)
    assert second[:, 1].tolist() == pytest.approx([-gamma * normed, gamma * normed], rel=1e-12)


def test_the_example_for_authors_runs_and_is_this_method() -> None:
    """The code on the page that explains inferences, as it stands there."""
    page = Path(__file__).parents[2] / "docs" / "add-an-inference.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "class LowEntropy" in block]
    here: dict[str, Any] = {"__name__": "fedshift.inferences.low_entropy"}
    exec(example, here)
    method = here["LowEntropy"]
    assert (method.name, method().order, method().batch_size) == ("low_entropy", 0, 32)
    found = probabilities(network(), site("b"), method(lr=0.5, batch_size=5))
    assert np.array_equal(found, probabilities(network(), site("b"), Entropy(lr=0.5, batch_size=5)))
    norm_free = network("group norm")
    plain = probabilities(norm_free, site("b"), Source())
    np.testing.assert_allclose(probabilities(norm_free, site("b"), method(lr=0.5)), plain, **PRECISION)


# ---- sites


def test_the_same_site_twice_gives_the_same_bits_whatever_lies_between() -> None:
    model, how = network(), Entropy(batch_size=5)
    first = probabilities(model, site("b"), how)
    other = probabilities(model, site("a"), how)
    assert np.array_equal(probabilities(model, site("b"), how), first)
    assert np.array_equal(probabilities(network(), site("a"), how), other)


def test_draws_from_torchs_generators_are_the_same_at_every_site_and_leave_no_trace() -> None:
    class Noisy(Inference):
        """Adds noise before and while it predicts."""

        @contextmanager
        def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
            offset = torch.rand(3)
            yield lambda x: model(x) + offset + torch.rand(3)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = probabilities(network(), site("b"), Noisy(batch_size=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert np.array_equal(probabilities(network(), site("b"), Noisy(batch_size=5)), first)
    assert np.abs(first - probabilities(network(), site("b"), Source())).max() > 1e-2


def test_gradients_are_recorded_where_the_class_asks_for_them_and_nowhere_else() -> None:
    recorded: list[bool] = []

    class Looks(Inference):
        """Notes whether gradients are recorded."""

        @contextmanager
        def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
            recorded.append(torch.is_grad_enabled())

            def predict(x: Tensor) -> Tensor:
                recorded.append(torch.is_grad_enabled())
                return model(x)  # type: ignore[no-any-return]

            yield predict

    class Steps(Looks):
        """Notes whether gradients are recorded, and asks for them."""

        gradients: ClassVar[bool] = True

    x = site("b").x
    for cls, outside in ((Looks, True), (Looks, False), (Steps, True), (Steps, False)):
        recorded.clear()
        with torch.set_grad_enabled(outside), site_predictor(network(), cls(), lambda: iter([x])) as predict:
            assert torch.is_grad_enabled() == outside, "the caller's setting stays"
            assert not predict(x).requires_grad
        assert recorded == [cls.gradients] * 2


@pytest.mark.parametrize("given", [Entropy(), Source(), TsmoBN()])
def test_every_batch_is_predicted_once_in_test_order(given: Inference) -> None:
    taken: list[int] = []

    class Noted(TensorSamples):
        def batch(self, index: Array, rng: Any = None) -> tuple[Tensor, Tensor]:
            taken.extend(index)
            return super().batch(index)

    how = given.model_copy(update={"batch_size": 4})
    probabilities(network(), Noted(site("b").x, site("b").y), how)
    order = np.arange(22) if how.order is None else stream(how.order, "test order").permutation(22)
    assert taken == order.tolist()


# ---- methods of other forms, each with this one hook


class Memory(Inference):
    """Class means of the features seen so far in place of the classifier, started from its rows, as T3A does."""

    @contextmanager
    def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
        last = classifier(model)
        bank, labels = last.weight.clone(), torch.arange(last.out_features)
        with inputs_of(last) as features:

            def predict(x: Tensor) -> Tensor:
                nonlocal bank, labels
                labels = torch.cat([labels, model(x).argmax(1)])
                bank = torch.cat([bank, features.pop()])
                means = torch.stack([bank[labels == k].mean(0) for k in range(last.out_features)])
                return bank[-len(x) :] @ means.T

            yield predict


class Teacher(Inference):
    """A second network that follows the first, and gives the answers."""

    gradients: ClassVar[bool] = True

    @contextmanager
    def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
        teacher = copy.deepcopy(model)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

        def predict(x: Tensor) -> Tensor:
            with torch.no_grad():
                answer: Tensor = teacher(x)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x), answer.softmax(1)).backward()
            optimiser.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.5)
            return answer

        yield predict


class Offline(Inference):
    """Three passes of steps over all of the site's images before the first is predicted, as SHOT does."""

    gradients: ClassVar[bool] = True

    @contextmanager
    def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        model.train()
        for _ in range(3):
            for x in batches():
                p = model(x).softmax(1)
                optimiser.zero_grad()
                (p.mean(0).log() * p.mean(0)).sum().backward()
                optimiser.step()
        model.eval()
        yield model


@pytest.mark.parametrize("method", [Memory, Teacher, Offline])
def test_a_memory_a_teacher_and_several_passes_are_a_file_each(method: type[Inference]) -> None:
    model, how = network(dropout=0.3), method(batch_size=5)
    before = fingerprint(model)
    first = probabilities(model, site("b"), how)
    probabilities(model, site("a"), how)
    assert np.array_equal(probabilities(model, site("b"), how), first)
    assert fingerprint(model) == before
    assert np.abs(first - probabilities(model, site("b"), Source())).max() > 1e-3
    np.testing.assert_allclose(first.sum(1), 1)


# ---- what is left behind


class Ruin(Inference):
    """An inference that changes all that can be changed, and fails at a batch if asked to."""

    gradients: ClassVar[bool] = True
    fails_at: int = Field(-1, description="number of the batch; -1 for the entry, -2 for never")

    @contextmanager
    def on_site(self, model: nn.Module, batches: Batches) -> Iterator[Predict]:
        assert isinstance(model, nn.Sequential)
        model(next(batches())).sum().backward()
        model[0].weight.data = model[0].weight.data + 1
        with torch.no_grad():
            model[3].weight.mul_(2)
        model[9].weight = nn.Parameter(model[9].weight.detach() * 3)
        model[9].weight.register_hook(torch.zeros_like)
        for norm in (model[1], model[4]):
            for name, buffer in norm.named_buffers():
                setattr(norm, name, buffer + 1)
            for parameter in norm.parameters():
                parameter.requires_grad_(False)
        model[2].register_forward_hook(lambda *_: None)
        model[3].register_buffer("extra", torch.ones(1))
        model[5].forward = torch.abs  # type: ignore[method-assign]
        model[7] = nn.Flatten()
        model.train()
        if self.fails_at == -1:
            raise OSError
        number = 0

        def predict(x: Tensor) -> Tensor:
            nonlocal number
            if number == self.fails_at:
                raise OSError
            number += 1
            return model(x)  # type: ignore[no-any-return]

        yield predict


def test_the_fingerprint_sees_what_is_done() -> None:
    model = network()
    before = fingerprint(model)
    assert fingerprint(model) == before
    with pytest.raises(OSError), Ruin().on_site(model, lambda: iter([site("a").x])):
        pass
    after = fingerprint(model)
    for path in ("0", "1", "2", "3", "4", "5", "7", "9"):
        assert [part for part in before if part[0] == path] != [part for part in after if part[0] == path]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fails_at", [-2, -1, 0, 1])
@pytest.mark.parametrize("norm", ["batch norm", "group norm"])
def test_whatever_an_inference_does_the_network_keeps_every_bit(norm: str, fails_at: int, train: bool) -> None:
    model = network(norm, dropout=0.3).train(train)
    model(site("a").x).sum().backward()
    model[9].bias.requires_grad_(False)  # type: ignore[index]
    model[0].register_forward_hook(lambda *_: None)  # type: ignore[index]
    before, state = fingerprint(model), torch.get_rng_state()
    try:
        probabilities(model, site("b"), Ruin(fails_at=fails_at, batch_size=5))
    except OSError:
        assert fails_at != -2
    else:
        assert fails_at == -2
    assert fingerprint(model) == before
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


# ---- settings


def test_order_and_batch_size_are_settings_of_every_inference() -> None:
    for cls in (Inference, *discover("inference").values()):
        assert {"order", "batch_size"} <= set(cls.model_fields)
    assert [discover("inference")[name]().order for name in ("source", "tsmobn", "population")] == [None, 0, 0]


def test_what_a_report_says_decides_nothing() -> None:
    class Silent(TsmoBN):
        def score_columns(self) -> dict[str, Any]:
            return {"momentum": None, "batch_size": None, "order": None}

    one, two = (probabilities(network(), site("b"), cls(batch_size=5, order=3)) for cls in (TsmoBN, Silent))
    assert np.array_equal(one, two)
