"""Messages between coordinator and sites as bytes."""

from __future__ import annotations

import pytest
import torch
from messages import SENT, require_sent

from fedshift.engine.messages import Fault, Message, packed, unpacked
from fedshift.io import arrays


def test_a_message_comes_back_bit_by_bit() -> None:
    require_sent(unpacked(packed(SENT)))


def test_a_fault_comes_back_as_a_fault() -> None:
    assert unpacked(packed(Fault("has another study"))) == Fault("has another study")


GOOD = packed(Message("train", {"round": 1}, {"a": torch.arange(6.0)}))


@pytest.mark.parametrize(
    "content",
    [GOOD[:-1] + bytes([GOOD[-1] ^ 1]), GOOD[:20], b"", b"x" * 99, arrays.packed({}, {"kind": "train"})],
    ids=["a changed bit", "a part", "nothing", "other bytes", "another file of tensors"],
)
def test_other_bytes_are_a_fault(content: bytes) -> None:
    fault = unpacked(content)
    assert isinstance(fault, Fault)
    assert "not a message" in fault.reason
    assert "\n" not in fault.reason


NESTED = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "about",
    [
        NESTED,
        f'{{"a": {NESTED}}}',
        "[1]",
        "null",
        "1e999",
        '{"a": ' + "9" * 5000 + "}",
        '{"a": "' + "x" * 2_000_000 + '"}',
    ],
    ids=["nested", "nested in a mapping", "a list", "null", "a number", "many digits", "megabytes"],
)
def test_plain_data_that_is_no_mapping_of_a_message_is_a_fault(about: str) -> None:
    assert isinstance(unpacked(arrays.packed({}, {"kind": "train", "about": about})), Fault)


def test_the_reason_of_a_fault_is_one_short_line_that_steers_no_terminal() -> None:
    arrived = unpacked(packed(Fault("\x1b[2J\x9b31m a\n\nb" + "x" * 10_000_000)))
    assert isinstance(arrived, Fault)
    assert arrived.reason.startswith("\\x1b[2J\\x9b31m a b")
    assert len(arrived.reason) == 500
    assert arrived.reason.isprintable()


def test_the_bytes_of_a_message_are_those_of_its_tensors() -> None:
    sent = {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.float64), "n": torch.tensor(1)}
    assert Message("train", {"round": 1}, sent).nbytes == 6 * 4 + 5 * 8 + 8
