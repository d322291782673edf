"""Tests of NVFlare need it, which is in no environment of the project: docs/nvflare.md says how they are run."""

from __future__ import annotations

from apart import is_installed

collect_ignore_glob = [] if is_installed("nvflare") else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say that tests are left out, and where it is said how they are run."""
    return "tests/nvflare is left out, without nvflare: see docs/nvflare.md" if collect_ignore_glob else None
