"""Tests of real sites need Flower: in .venv-flower all of them run, as `make test-all` does it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from apart import left_out

collect_ignore_glob, pytest_report_header = left_out("flower", "flower", "flwr")


@pytest.fixture
def towns(tmp_path: Path) -> Iterator[Any]:
    """Make a federation of three sites, see `town.Town`; its processes end with the test."""
    from town import Town

    made: list[Town] = []

    def make(rounds: int, secure: bool = True) -> Town:
        made.append(Town(tmp_path / "town", rounds, secure))
        return made[-1]

    yield make
    for town in made:
        town.end()
