"""A process that goes on for long holds no more memory, open files or threads than at first."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FEW_MB = 20
"""Growth of memory that a few rounds may show: what the allocator keeps differs from call to call."""


@pytest.fixture(scope="module")
def leaking() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leaking", ROOT / "benchmarks" / "leaking.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["leaking"] = module
    spec.loader.exec_module(module)
    return module


def test_rounds_and_predictions_hold_what_they_held(leaking: ModuleType, tmp_path: Path) -> None:
    for held, number in zip(leaking.measured(tmp_path, 12, 8), (12, 8), strict=True):
        assert len(held.memory) == number
        assert held.growth(held.files) == 0
        assert held.growth(held.threads) == 0
        assert held.growth(held.memory) < FEW_MB


def test_growth_is_seen(leaking: ModuleType) -> None:
    """A thing more each time: medians of the last and of the second quarter of 0 to 11 are 10 and 4."""
    held = leaking.Held()
    assert held.growth([float(n) for n in range(12)]) == 6
    assert held.growth([50.0, 90.0, 90.0, 90.0]) == 0, "the first time warms up"
    files = []
    for _ in range(12):
        files.append((ROOT / "README.md").open())
        held.measure()
    for file in files:
        file.close()
    assert held.growth(held.files) == 6
