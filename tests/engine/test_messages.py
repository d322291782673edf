"""Messages between coordinator and sites as bytes."""

from __future__ import annotations

import json
import math

import pytest
import torch

from fedshift.engine.transport import Fault, Message, packed, unpacked
from fedshift.io import tensors


def test_a_message_comes_back_bit_by_bit() -> None:
    sent = {
        "b": torch.tensor([0.1, -0.0, math.inf, math.nan]),
        "a": torch.zeros(0),
        "n": torch.tensor(3),
        "t": torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T,
    }
    message = Message("train", {"round": 3, "loss": math.nan, "names": ["x"], "none": None}, sent)
    back = unpacked(packed(message))
    assert isinstance(back, Message)
    assert (back.kind, json.dumps(back.about)) == (message.kind, json.dumps(message.about))
    assert [*back.tensors] == ["a", "b", "n", "t"]
    for name, tensor in sent.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert back.tensors[name].shape == tensor.shape
        assert back.tensors[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_a_fault_comes_back_as_a_fault() -> None:
    assert unpacked(packed(Fault("has another study"))) == Fault("has another study")


GOOD = packed(Message("train", {"round": 1}, {"a": torch.arange(6.0)}))


@pytest.mark.parametrize(
    "content",
    [GOOD[:-1] + bytes([GOOD[-1] ^ 1]), GOOD[:20], b"", b"x" * 99, tensors.packed({}, {"kind": "train"})],
    ids=["a changed bit", "a part", "nothing", "other bytes", "another file of tensors"],
)
def test_other_bytes_are_a_fault(content: bytes) -> None:
    fault = unpacked(content)
    assert isinstance(fault, Fault)
    assert "not a message" in fault.reason
    assert "\n" not in fault.reason


def test_the_bytes_of_a_message_are_those_of_its_tensors() -> None:
    sent = {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.float64), "n": torch.tensor(1)}
    assert Message("train", {"round": 1}, sent).nbytes == 6 * 4 + 5 * 8 + 8
