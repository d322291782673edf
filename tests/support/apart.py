"""Tests of a folder that need packages of an environment apart: in it all run, elsewhere they are left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def left_out(folder: str, how: str, *packages: str) -> tuple[list[str], Callable[[], str | None]]:
    """The patterns of files that pytest does not collect in a folder of tests, and what its first lines say of them.

    `how` is the command that makes the environment, and which is its name after `.venv-`. `packages` are distributions.
    """
    lacking = [package for package in packages if not is_installed(package)]
    if lacking and Path(sys.prefix).name == f".venv-{how}":
        raise ModuleNotFoundError(f"no {', '.join(lacking)} in .venv-{how}: remove the folder, and call make {how}")
    names = ", ".join(lacking)
    run = f"make {how}; .venv-{how}/bin/python -m pytest tests/{folder}"

    def pytest_report_header() -> str | None:
        return f"tests/{folder} is left out, without {names}: {run}" if lacking else None

    return ["test_*.py"] if lacking else [], pytest_report_header


def is_installed(package: str) -> bool:
    """Whether a distribution is installed. A module of its name would not tell: a folder of tests may have the same."""
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False
