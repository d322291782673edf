"""A message with numbers that are easily lost on their way, and its comparison with what arrived, bit by bit."""

from __future__ import annotations

import json
import math

import torch

from fedshift.engine.messages import Fault, Message

SENT = Message(
    "train",
    {"round": 3, "loss": math.nan, "names": ["x"], "none": None},
    {
        "b": torch.tensor([0.1, -0.0, math.inf, math.nan]),
        "a": torch.zeros(0),
        "n": torch.tensor(3),
        "t": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
    },
)


def require_sent(back: Message | Fault) -> None:
    """Fail unless SENT has arrived."""
    assert isinstance(back, Message)
    assert (back.kind, json.dumps(back.about)) == (SENT.kind, json.dumps(SENT.about))
    assert [*back.tensors] == sorted(SENT.tensors)
    for name, tensor in SENT.tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert back.tensors[name].shape == tensor.shape
        assert back.tensors[name].numpy().tobytes() == tensor.numpy().tobytes()
