"""What is too much for one day: with TESTS=day (make test) each day tries a part of a long list; else all is tried."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import date
from typing import TypeVar

T = TypeVar("T")
ALL = os.environ.get("TESTS") != "day"
TODAY = int(os.environ.setdefault("TESTS_DAY", str(date.today().toordinal())))
"""The day of all processes of one call, which may end on another day than it began."""


def of_day(cases: Iterable[T], days: int) -> list[T]:
    """Return the cases whose turn it is today, where each has one in `days` days; all without TESTS=day.

    `days` is no multiple of a week, which would give Mondays always the same ones.
    """
    assert days % 7
    return list(cases) if ALL else list(cases)[TODAY % days :: days]
