"""How long tests wait for other processes. A machine that is busy with other work takes its time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1800.0
"""Seconds after which a process counts as hanging. No test passes or fails by a shorter time."""


def until(condition: Callable[[], object], what: str = "what the test waits for") -> None:
    """Wait until a condition holds. Raise TimeoutError, which names it, where it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.02)
