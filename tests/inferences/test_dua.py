"""DUA: momenta and running statistics by hand, changed copies by their properties, and the limits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from adapting import convolutions, dense, equal, images
from torch import Tensor, nn

from fedshift.core.errors import UserError
from fedshift.core.rng import torch_stream
from fedshift.inferences import Site
from fedshift.inferences.dua import DUA, changed_copies

BLACK, WHITE = (-2.0,), (3.0,)


def site(batches: list[Tensor]) -> Site:
    return Site(batches=lambda: iter(batches), greys=(BLACK, WHITE))


def adapted(model: nn.Module, batches: list[Tensor], **settings: float) -> tuple[list[Tensor], nn.Module, Site]:
    changed, at = copy.deepcopy(model), site(batches)
    with torch.no_grad(), DUA(**settings).on_site(changed, at) as predict:
        return [predict(x) for x in batches], changed, at


def test_statistics_by_hand() -> None:
    """Three images: m_k = 0.2 0.5^k + 0.01, and each batch's unbiased variance, of the copies that the stream draws."""
    norm = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 2)).double().eval()
    batches = images(2, 3, shape=(1, 6, 6))
    _, changed, at = adapted(norm, batches, images=3, copies=5, momentum=0.2, decay=0.5, least=0.01)
    generator = torch_stream(0, "DUA")
    mu, v = 0.0, 1.0
    for k, image in enumerate(torch.cat(batches)[:3], start=1):
        x = changed_copies(image, 5, (BLACK, WHITE), generator).numpy()
        m = 0.2 * 0.5**k + 0.01
        mu, v = (1 - m) * mu + m * x.mean(), (1 - m) * v + m * x.var(ddof=1)
    assert changed[0].running_mean.item() == pytest.approx(mu, rel=1e-12)
    assert changed[0].running_var.item() == pytest.approx(v, rel=1e-12)
    assert at.counts["seen"] == 3


def test_predictions_use_the_moved_statistics_and_do_not_move_them() -> None:
    model, batches = convolutions(), images(4, 4, shape=(1, 6, 6))
    ours, changed, _ = adapted(model, batches, images=2)
    assert not changed.training
    with torch.no_grad():
        equal(ours, [changed(x) for x in batches])
        assert not torch.equal(ours[0], model(batches[0]))


def test_no_image_is_source() -> None:
    model, batches = convolutions(), images(4, shape=(1, 6, 6))
    ours, _, at = adapted(model, batches, images=0)
    equal(ours, [model(x) for x in batches])
    assert not at.counts


def test_fewer_images_than_asked_for_are_all_taken() -> None:
    _, _, at = adapted(convolutions(), images(4, shape=(1, 6, 6)), images=100, copies=2)
    assert at.counts["seen"] == 4


@pytest.mark.parametrize("side", [(16, 16), (8, 24)])
def test_copies_are_the_image_moved_flipped_and_turned(side: tuple[int, int]) -> None:
    """Each copy, turned and flipped back, is a window of the image with a black border of an eighth of the side."""
    image = torch.arange(1.0, 1 + side[0] * side[1]).view(1, *side)
    border = max(side) // 8
    padded = np.pad(image[0].numpy(), border, constant_values=BLACK[0])
    windows = {
        padded[i : i + side[0], j : j + side[1]].tobytes() for i in range(2 * border + 1) for j in range(2 * border + 1)
    }
    copies = changed_copies(image, 200, (BLACK, WHITE), torch_stream(1, "DUA"))
    assert copies.shape == (200, 1, *side)
    turns = (0, 1, 2, 3) if side[0] == side[1] else (0, 2)
    seen = set()
    for made in copies[:, 0].numpy():
        undone = [
            (turn, flip)
            for turn in turns
            for flip in (False, True)
            if (np.rot90(made, -turn)[:, :: -1 if flip else 1]).tobytes() in windows
        ]
        assert undone
        seen.update(undone)
    assert seen == {(turn, flip) for turn in turns for flip in (False, True)}
    assert len({made.tobytes() for made in copies.numpy()}) > 50


def test_vectors_are_refused() -> None:
    with pytest.raises(UserError, match="augments images"):
        adapted(dense(), images(4))
