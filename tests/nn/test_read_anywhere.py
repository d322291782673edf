"""Batch norm whose tensors begin between two multiples of 16 bytes, which cuDNN cannot read with channels last."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fedshift.nn.batchnorm import batch_norms, normalised, read_anywhere
from fedshift.nn.flat_state import Layout


class Watching(nn.BatchNorm2d):
    """Batch norm that notes whether cuDNN may be used in its forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.used = torch.backends.cudnn.enabled
        if x.shape[1] != self.num_features:
            raise ValueError("another number of channels")
        return super().forward(x)


def attached(before: int) -> nn.Sequential:
    """A network whose running statistics begin behind `before` floats of a bias, in one flat vector."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Watching(8), nn.Flatten(), nn.Linear(8 * 4, before))
    layout = Layout(model, channels_last=True)
    flat = layout.pack(dict(model.state_dict()))
    layout.attach(model, flat, torch.zeros(layout.trainable.stop), torch.zeros(1, dtype=torch.long))
    return model


@pytest.mark.parametrize(("before", "cudnn"), [(2, False), (10, False), (4, True), (12, True)])
def test_cudnn_is_left_out_only_where_it_cannot_read(before: int, cudnn: bool) -> None:
    model = attached(before)
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    expected = copy.deepcopy(model)(x)
    read_anywhere(model)
    (layer,) = batch_norms(model).values()
    assert torch.equal(model(x), expected)
    assert layer.used is cudnn
    assert torch.backends.cudnn.enabled, "other layers use it"
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        (layer,) = batch_norms(again).values()
        layer.used = None
        again(x)
        assert layer.used is cudnn


def test_a_failing_layer_leaves_cudnn_on() -> None:
    model = attached(2)
    read_anywhere(model)
    with pytest.raises(ValueError, match="another number of channels"):
        model[1](torch.zeros(1, 5, 4, 4))
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize("shift", [0, 1])
def test_statistics_of_any_place_normalise_alike(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the formula in float64; and cuDNN is asked for only where all begin at a multiple of 16 bytes."""
    asked = []
    real = torch.batch_norm
    monkeypatch.setattr(torch, "batch_norm", lambda *given: (asked.append(given[-1]), real(*given))[1])
    x = torch.randn(5, 4, 3, 3)
    mean, var, weight, bias = (torch.rand(4 + shift)[shift:] + 0.5 for _ in range(4))
    mean, var, weight, bias = (torch.empty(4 + shift)[shift:].copy_(t) for t in (mean, var, weight, bias))
    x64, *parts = (t.double() for t in (x, mean, var, weight, bias))
    m, v, w, b = (t.view(1, -1, 1, 1) for t in parts)
    by_hand = (x64 - m) / (v + 1e-5).sqrt() * w + b
    assert (normalised(x, mean, var, weight, bias, 1e-5).double() - by_hand).abs().max() < 1e-5
    assert asked == [not shift]
