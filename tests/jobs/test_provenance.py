"""Provenance: what a manifest says about the machine that trained."""

from __future__ import annotations

import pytest
import torch

from fedshift.jobs import record


def test_what_decides_the_last_digits_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in record.LIMITS:
        monkeypatch.delenv(name, raising=False)
    plain = record.arithmetic()
    assert plain.keys() == {"torch", "oneDNN", "processor"}
    assert plain["torch"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert record.arithmetic() == plain | {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def test_onednn_is_off_where_torch_leaves_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert record.arithmetic()["oneDNN"] == "off"
