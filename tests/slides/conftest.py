"""Tests of slides need OpenSlide: in .venv-exports all of them run, as `make test` does it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LACKING = importlib.util.find_spec("openslide") is None
if LACKING and Path(sys.prefix).name == ".venv-exports":
    raise ModuleNotFoundError("no openslide in .venv-exports: remove the folder, and call make exports")
collect_ignore_glob = ["test_*.py"] if LACKING else []


def pytest_report_header() -> str | None:
    """Say that tests are left out, and how they are run."""
    how = "make exports; .venv-exports/bin/python -m pytest tests/slides"
    return f"tests/slides is left out, without openslide: {how}" if LACKING else None
