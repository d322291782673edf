"""The switch for deterministic kernels: what it changes of ids, of the record of a run, and of its page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_study
import pytest
import torch

from fedshift.algorithms import Training
from fedshift.jobs import record
from fedshift.page.history import caveats, facts


def test_ids_of_studies_stay_unless_it_is_switched_off() -> None:
    assert "deterministic" not in Training().identity()
    assert Training(deterministic=False).identity() == {**Training().identity(), "deterministic": False}


@pytest.mark.parametrize(
    ("device", "asked", "recorded"), [("cuda", True, True), ("cuda", False, False), ("cpu", False, True)]
)
def test_the_record_of_a_run_says_what_its_kernels_were(
    device: str, asked: bool, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "a GPU")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    said = SimpleNamespace(stdout="580.1\n580.1\n")
    monkeypatch.setattr(record.subprocess, "run", lambda *_, **__: said)
    run = next(iter(fake_study.plan(tmp_path, training={"deterministic": asked}).runs.values()))
    trained: Any = SimpleNamespace(
        selected=SimpleNamespace(round=1, values=[0.5]),
        history=[],
        server=SimpleNamespace(round=1, offers={}),
        ledger=dict,
        beforehand=SimpleNamespace(floats=lambda broadcast: {}),
        trainer=SimpleNamespace(channels_last=True),
    )
    given: dict[str, Any] = {"code": "", "threads": 1, "device": torch.device(device), "started": datetime.now(UTC)}
    manifest = record.manifest(run, trained, **given)
    assert manifest["deterministic"] is recorded
    assert manifest["gpu"] == ({"driver": "580.1", "capability": "9.0"} if device == "cuda" else {})
    assert (manifest["precision"], manifest["channels_last"]) == ("float32", True)
    kernels = "deterministic" if recorded else "not deterministic"
    line = f"float32, channels last, {kernels}" + ", driver 580.1, capability 9.0" * (device == "cuda")
    assert ("Arithmetic of the device", line) in facts([SimpleNamespace(manifest=manifest)])  # type: ignore[list-item]


def test_a_gpu_without_nvidias_program_has_an_unknown_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 4))
    monkeypatch.setenv("PATH", "")
    assert record.gpu(torch.device("cuda")) == {"driver": "unknown", "capability": "9.4"}


@pytest.mark.parametrize(("recorded", "line"), [(True, 0), (None, 0), (False, 1)])
def test_the_page_says_where_kernels_vary(recorded: bool | None, line: int, tmp_path: Path) -> None:
    plan = fake_study.plan(tmp_path)
    manifest = {} if recorded is None else {"deterministic": recorded}
    runs: Any = [
        SimpleNamespace(name=name, manifest=fake_study.manifest(run) | manifest) for name, run in plan.runs.items()
    ]
    findings: Any = SimpleNamespace(plan=plan)
    said = [text for text in caveats(findings, runs) if "deterministic" in text]
    expected = (
        "6 of 6 runs were trained on a GPU without deterministic kernels (training.deterministic: false): "
        "repeated, they give slightly other results."
    )
    assert said == [expected] * line
