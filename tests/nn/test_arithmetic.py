"""How a device computes: what a context switches and refuses, and that the process is as before after it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedshift import Federation, UserError
from fedshift.nn.device import arithmetic

Switches = dict[str, Any]


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def switches() -> Switches:
    return {
        "products": torch.backends.cuda.matmul.fp32_precision,
        "convolutions": torch.backends.cudnn.conv.fp32_precision,
        "recurrent": torch.backends.cudnn.rnn.fp32_precision,
        "benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.get_deterministic_debug_mode(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
    }


def same(precision: str) -> Switches:
    return dict.fromkeys(("products", "convolutions", "recurrent"), precision)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_gpu_computes_as_told_and_the_process_as_before(precision: str, deterministic: bool, ampere: None) -> None:
    before = switches()
    with arithmetic("cuda", precision, deterministic):
        inside = switches()
    expected = same("tf32" if precision == "tf32" else "ieee")
    kernels = {"benchmark": not deterministic, "deterministic": 2 if deterministic else 0, "fill": False}
    assert inside == expected | kernels
    assert switches() == before


def test_switches_of_the_process_come_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.set_deterministic_debug_mode("warn")
    try:
        before = switches()
        with pytest.raises(ZeroDivisionError), arithmetic("cuda", deterministic=False):
            _ = 1 / 0
        assert switches() == before
    finally:
        torch.set_deterministic_debug_mode("default")
        torch.backends.cudnn.conv.fp32_precision = "tf32"


def test_older_names_of_torch_can_be_read_afterwards() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with arithmetic("cuda"):
        pass
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_a_torch_before_the_newer_names_is_told_by_the_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(torch.backends.cudnn), "conv", raising=False)
    monkeypatch.delattr(torch.backends.cudnn, "conv", raising=False)
    assert not hasattr(torch.backends.cudnn, "conv")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with arithmetic("cuda"):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, False)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_nothing_changes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    before = switches()
    with arithmetic("cpu", deterministic=False):
        assert switches() == before


@pytest.mark.parametrize(
    ("device", "capability", "precision", "line"),
    [
        ("cpu", (0, 0), "tf32", "is tf32, which NVIDIA GPUs have since Ampere, and CPU has not"),
        ("mps", (0, 0), "tf32", "is tf32, which NVIDIA GPUs have since Ampere, and MPS has not"),
        ("cuda", (7, 5), "tf32", "is tf32, which NVIDIA GPUs have since Ampere, and Tesla T4 has not"),
        ("cuda", (7, 5), "bfloat16", "is bfloat16, which Tesla T4 only imitates, slowly"),
    ],
)
def test_a_precision_that_a_device_lacks_is_refused(
    device: str, capability: tuple[int, int], precision: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    with (
        pytest.raises(UserError, match=f"^training.precision: {line}; set it to float32$"),
        arithmetic(device, precision),
    ):
        pass


def test_a_federation_says_at_once_what_its_device_lacks() -> None:
    data = {"a": (torch.zeros(4, 2), torch.arange(4) % 2)}
    with pytest.raises(UserError, match="precision: is tf32"):
        Federation(torch.nn.Linear(2, 2), data, training={"precision": "tf32"})


def test_an_operation_without_a_deterministic_kernel_is_named() -> None:
    x = torch.zeros(3)
    line = (
        "^training.deterministic: put_ has no kernel on cuda that gives the same bits each time; "
        "set training.deterministic: false, or choose a network without this operation$"
    )
    with pytest.raises(UserError, match=line), arithmetic("cuda"):
        x.put_(torch.tensor([0]), torch.tensor([1.0]))
    with arithmetic("cuda", deterministic=False):
        x.put_(torch.tensor([0]), torch.tensor([1.0]))


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), arithmetic("cuda"):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_cublas_is_told_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    with arithmetic("cuda", deterministic=False):
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    with arithmetic("cuda"):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with arithmetic("cuda"):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_autocast_that_is_entered_twice_ends() -> None:
    data = {"a": (torch.zeros(4, 2), torch.arange(4) % 2)}
    federation = Federation(torch.nn.Linear(2, 2), data, training={"precision": "bfloat16"})
    with federation.trainer.autocast:
        with federation.trainer.autocast:
            assert torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    with federation.trainer.autocast:
        assert federation.trainer.model(torch.zeros(1, 2)).dtype == torch.bfloat16
