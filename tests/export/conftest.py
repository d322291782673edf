"""Tests of exports need what they export to: in .venv-exports all of them run, as `make test` does it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LACKING = [name for name in ("ignite", "mlflow", "tensorboard") if importlib.util.find_spec(name) is None]
if LACKING and Path(sys.prefix).name == ".venv-exports":
    raise ModuleNotFoundError(f"no {', '.join(LACKING)} in .venv-exports: remove the folder, and call make exports")
collect_ignore_glob = ["test_*.py"] if LACKING else []


def pytest_report_header() -> str | None:
    """Say that tests are left out, and how they are run."""
    how = "make exports; .venv-exports/bin/python -m pytest tests/export"
    return f"tests/export is left out, without {', '.join(LACKING)}: {how}" if LACKING else None
