"""How many images are predicted at once, and where numbers stay: on the device until a site is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedshift.data.samples import TensorSamples
from fedshift.engine import prediction
from fedshift.engine.prediction import class_probabilities, probabilities
from fedshift.inferences.source import Source
from fedshift.nn.device import in_float64
from fedshift.tasks import CLASSIFICATION, Segmentation

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("device", "shape", "settings", "expected"),
    [
        (CPU, (3, 96, 96), {}, 256),
        (GPU, (3, 96, 96), {}, 910),
        (GPU, (3, 512, 512), {}, 256),  # never fewer than on a CPU
        (GPU, (3, 8, 8), {}, 4096),
        (GPU, (10,), {}, 4096),
        (GPU, (3, 96, 96), {"batch_size": 20}, 20),  # who asks for a number has a reason
    ],
)
def test_a_gpu_predicts_as_many_images_at_once_as_fit(
    device: torch.device, shape: tuple[int, ...], settings: dict[str, Any], expected: int
) -> None:
    assert prediction._at_once(Source(**settings), shape, CLASSIFICATION, device) == expected


def test_masks_keep_their_bound_of_pixels() -> None:
    assert prediction._at_once(Source(), (3, 96, 96), Segmentation(), GPU) == 2**20 // 96**2


def test_rows_are_in_stored_order_whatever_the_order_of_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(14.0)[:, None] * torch.tensor([1.0, -1.0]) / 10
    samples = TensorSamples(x, torch.zeros(14, dtype=torch.long))
    how = Source(batch_size=4)
    monkeypatch.setattr(Source, "image_order", lambda self, n: np.arange(n)[::-1].copy())
    expected = torch.softmax(x.double(), 1).numpy()
    np.testing.assert_array_equal(probabilities(nn.Identity(), samples, how), expected)


def test_float64_is_computed_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Apple GPU has no float64: what lies there is copied first, and what lies elsewhere is not."""

    class Elsewhere(Tensor):
        at = "cuda"
        device = property(lambda self: torch.device(self.at))  # type: ignore[assignment]

        def cpu(self, *_: Any, **__: Any) -> Tensor:
            return torch.full((1, 2), 7.0)

    logits = torch.zeros(1, 2).as_subclass(Elsewhere)
    assert in_float64(logits).tolist() == [[0, 0]]
    Elsewhere.at = "mps"
    assert in_float64(logits).tolist() == [[7, 7]]
    assert class_probabilities(logits, logits).dtype == torch.float64
