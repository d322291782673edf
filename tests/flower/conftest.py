"""Tests of real sites need Flower: in .venv-flower all of them run, as `make test-all` does it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LACKING = importlib.util.find_spec("flwr") is None
if LACKING and Path(sys.prefix).name == ".venv-flower":
    raise ModuleNotFoundError("no flwr in .venv-flower: remove the folder, and call make flower")
collect_ignore_glob = ["test_*.py"] if LACKING else []


def pytest_report_header() -> str | None:
    """Say that tests are left out, and how they are run."""
    how = "make flower; .venv-flower/bin/python -m pytest tests/flower"
    return f"tests/flower is left out, without flwr: {how}" if LACKING else None
