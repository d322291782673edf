"""CoTTA against its steps by autograd, in its limits, and its augmentations."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from adapting import adapted, convolutions, decided, dense, equal, images, same, with_batch_statistics
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad
from torchvision.transforms.v2.functional import adjust_contrast, gaussian_blur, rotate

from fedshift import UserError
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities
from fedshift.inferences import Site, cotta
from fedshift.inferences.cotta import CoTTA, augmented, contrasted, moved

GREYS = ((-1.0,), (3.0,))


outputs_by_batch = partial(adapted, CoTTA, greys=GREYS)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}


def test_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """All parameters move by autograd through PyTorch's training mode; the teacher follows and answers before that."""
    monkeypatch.setattr(cotta, "augmented", lambda x, draws: x.square())
    model, batches, rate, history = convolutions().train(), images(8, 8, 8, 5, shape=(1, 6, 6)), 0.1, 0.8
    model[4].eval()
    student, teacher, expected = trainable(model), trainable(model), []
    for x in batches:
        answer = functional_call(model, teacher, 4 * ((x + 1) / 4) ** 2 - 1).detach()
        expected.append(answer)
        loss = -(answer.softmax(1) * functional_call(model, student, x).log_softmax(1)).sum(1).mean()
        gradients = torch.autograd.grad(loss, list(student.values()))
        moves = zip(student.items(), gradients, strict=True)
        student = {name: (p - rate * g).detach().requires_grad_() for (name, p), g in moves}
        teacher = {name: history * p.detach() + (1 - history) * student[name].detach() for name, p in teacher.items()}
    settings: dict[str, Any] = {"optimiser": "sgd", "beta": 0, "lr": rate, "sure": 1, "restore": 0}
    equal(outputs_by_batch(convolutions(), batches, teacher=history, **settings)[0], expected)
    equal(outputs_by_batch(convolutions(), batches, teacher=1, **settings)[0][:1], expected[:1])
    assert not torch.allclose(outputs_by_batch(convolutions(), batches, teacher=1, **settings)[0][3], expected[3])


@pytest.mark.parametrize("settings", [{"teacher": 1, "lr": 0.5}, {"lr": 0}, {"optimiser": "sgd", "lr": 0.5}])
def test_a_teacher_that_never_moves_gives_the_batch_statistics_for_ever(settings: dict[str, Any]) -> None:
    """With a sure anchor the student has the teacher's logits, and no gradient: steps leave both where they are."""
    equal(
        outputs_by_batch(dense(), images(8, 8, 3), sure=0, **settings)[0],
        with_batch_statistics(dense(), images(8, 8, 3)),
    )


def test_where_every_element_returns_the_student_is_the_trained_network() -> None:
    model = dense()
    _, changed = outputs_by_batch(model, images(8, 8), sure=0, restore=1, lr=0.5)
    assert same(model, changed)


def test_about_that_share_of_elements_returns_and_the_seed_draws_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cotta, "augmented", lambda x, draws: x.square())
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 100), nn.Linear(100, 3)).double()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])

    def returned(seed: int) -> Tensor:
        _, changed = outputs_by_batch(model, images(8, shape=(1, 6, 6)), sure=1, restore=0.25, lr=0.1, seed=seed)
        return torch.cat([p.detach().flatten() for p in changed.parameters()]) == before

    first = returned(0)
    assert float(first.double().mean()) == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / len(first)) ** 0.5)
    assert torch.equal(returned(0), first)
    assert not torch.equal(returned(1), first)


def test_the_same_site_twice_gives_the_same_bits() -> None:
    samples = TensorSamples(*(torch.rand(20, 1, 6, 6, dtype=torch.float64), torch.zeros(20)))
    method = CoTTA(batch_size=8, augmentations=3, sure=1)
    first = probabilities(convolutions(), samples, method, site=Site(greys=GREYS))
    assert np.array_equal(first, probabilities(convolutions(), samples, method, site=Site(greys=GREYS)))


def test_where_the_anchor_is_not_sure_the_teacher_sees_changed_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levels 0..1 are (x + 1) / 4 for black -1 and white 3; halved, the network sees 4 (level / 2) - 1."""
    model, batches, levels = decided(), images(8, shape=(1, 6, 6)), list[Tensor]()

    def halved(x: Tensor, draws: torch.Generator) -> Tensor:
        levels.append(x)
        return x / (2 * len(levels))

    monkeypatch.setattr(cotta, "augmented", halved)
    logits, _ = outputs_by_batch(model, batches, sure=1, augmentations=2, lr=0)
    equal(levels, [(batches[0] + 1) / 4] * 2)
    views = [4 * (batches[0] + 1) / 4 / divisor - 1 for divisor in (2, 4)]
    equal(logits, [torch.stack(with_batch_statistics(model, views)).mean(0)])


def test_sure_is_compared_with_the_mean_of_the_largest_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches, calls = decided(), images(8, shape=(1, 6, 6)), list[int]()
    monkeypatch.setattr(cotta, "augmented", lambda x, draws: calls.append(1) or x)
    (logits,) = with_batch_statistics(model, batches)
    mean = float(logits.softmax(1).amax(1).mean())
    outputs_by_batch(model, batches, sure=mean - 1e-9)
    assert not calls
    outputs_by_batch(model, batches, sure=mean + 1e-9, augmentations=4)
    assert len(calls) == 4


def test_augmented_images_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cotta, "augmented", lambda x, draws: x)
    batches = images(8, 5, shape=(1, 6, 6))
    for sure, augmented_ in ((0, 0), (1, 13)):
        site = Site(lambda: iter(batches), greys=GREYS)
        with CoTTA(sure=sure).on_site(convolutions(), site) as predict:
            for x in batches:
                predict(x)
        assert dict(site.counts) == {"seen": 13, "augmented": augmented_}


def test_vectors_cannot_be_augmented() -> None:
    with pytest.raises(UserError, match="only images whose black and white are known can be augmented"):
        outputs_by_batch(dense(), images(8), sure=1)


# ---- augmentations


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(2, 3, 12, 9), (2, 1, 8, 8), (1, 2, 2, 3)])
def test_augmented_images_keep_their_shape_and_range_and_depend_on_the_draw(shape: tuple[int, ...]) -> None:
    x = 2 * torch.rand(shape, generator=draws(9)) - 0.5
    out = augmented(x, draws())
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert float(out.min()) >= 0
    assert float(out.max()) <= 1
    assert torch.equal(augmented(x, draws()), out)
    assert not torch.equal(augmented(x, draws(1)), out)


def test_images_are_turned_shifted_and_scaled_about_their_middle() -> None:
    x = torch.rand(2, 3, 8, 6, dtype=torch.float64, generator=draws())
    torch.testing.assert_close(moved(x, 0.0, 1.0, (0.0, 0.0)), x, rtol=0, atol=1e-12)
    square = x[..., :6, :]
    torch.testing.assert_close(moved(square, 90.0, 1.0, (0.0, 0.0)), rotate(square, 90), rtol=0, atol=1e-12)
    right = moved(x, 0.0, 1.0, (1 / 6, 0.0))
    torch.testing.assert_close(right[..., 1:], x[..., :-1], rtol=0, atol=1e-12)
    torch.testing.assert_close(right[..., 0], x[..., 0], rtol=0, atol=1e-12, msg="the border goes on outside")
    down = moved(x, 0.0, 1.0, (0.0, 2 / 8))
    torch.testing.assert_close(down[..., 2:, :], x[..., :-2, :], rtol=0, atol=1e-12)
    ramp = torch.arange(6.0, dtype=torch.float64).expand(1, 1, 8, 6)
    larger = moved(ramp, 0.0, 2.0, (0.0, 0.0))
    expected = torch.tensor([1.25, 1.75, 2.25, 2.75, 3.25, 3.75], dtype=torch.float64)
    torch.testing.assert_close(larger[0, 0, 3], expected, rtol=0, atol=1e-12)


def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `augmented` only shift, blur and flip images."""
    for name, value in {"BRIGHTNESS": (1, 1), "CONTRAST": (1, 1), "GAMMA": (1, 1), "SCALE": (1, 1)}.items():
        monkeypatch.setattr(cotta, name, value)
    monkeypatch.setattr(cotta, "DEGREES", 0.0)
    monkeypatch.setattr(cotta, "NOISE", 0.0)


def test_shifts_are_up_to_an_eighth_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The authors shift by up to 1/16 of an image that they padded to twice its side: 4 of 32 pixels."""
    still(monkeypatch)
    dot = torch.zeros(1, 1, 33, 33)
    dot[..., 16, 16] = 1
    steps = torch.arange(33.0) - 16
    generator = draws()
    moves = []
    for _ in range(400):
        image = augmented(dot, generator)[0, 0]
        moves.append([float(image.sum(0) @ steps), float(image.sum(1) @ steps)])
    largest = torch.tensor(moves).abs().amax(0)
    assert (largest <= 33 / 8 + 1e-3).all()
    assert (largest > 0.97 * 33 / 8).all()


def test_images_are_blurred_before_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the authors' chain: padded to twice the side, moved, blurred, and cut to the image."""
    still(monkeypatch)
    monkeypatch.setattr(cotta, "BLUR", (0.5, 0.5))
    monkeypatch.setattr(cotta, "SHIFT", 0.0)
    monkeypatch.setattr(cotta, "SCALE", (0.8, 0.8))
    monkeypatch.setattr(cotta, "DEGREES", 10.0)
    x = torch.rand(1, 1, 12, 12, dtype=torch.float64, generator=draws(4))
    wide = pad(x, [6, 6, 6, 6], mode="replicate")
    angles = []

    def noted(x: torch.Tensor, degrees: float, scale: float, shift: tuple[float, float]) -> torch.Tensor:
        angles.append(degrees)
        return moved(x, degrees, scale, shift)

    monkeypatch.setattr(cotta, "moved", noted)
    out = augmented(x, draws())
    cut = gaussian_blur(moved(wide, angles[0], 0.8, (0.0, 0.0)), [5, 5], [0.5, 0.5])[..., 6:-6, 6:-6]
    expected = cut if torch.allclose(out, cut, rtol=0, atol=1e-9) else cut.flip(3)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)


def test_contrast_is_about_the_mean_grey_of_an_image() -> None:
    x = torch.rand(2, 3, 5, 5, generator=draws())
    torch.testing.assert_close(contrasted(x, 0.7), adjust_contrast(x, 0.7))
    flat = torch.tensor([0.2, 0.6], dtype=torch.float64).reshape(1, 1, 1, 2)
    assert contrasted(flat, 0.5).flatten().tolist() == pytest.approx([0.3, 0.5])
