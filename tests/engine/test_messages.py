"""Messages between coordinator and sites as bytes."""

from __future__ import annotations

import pytest
import torch
from messages import SENT, require_sent

from fedshift.engine.transport import Fault, Message, packed, unpacked
from fedshift.io import tensors


def test_a_message_comes_back_bit_by_bit() -> None:
    require_sent(unpacked(packed(SENT)))


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
