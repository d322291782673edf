"""Progress in a log: lines at intervals, each told once."""

from __future__ import annotations

import io

import pytest
from clock import Clock

from fedshift.core import console
from fedshift.core.console import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def test_the_last_line_is_told_once(clock: Clock) -> None:
    """The second piece of two ends after the interval, so that its line is due just before the work ends."""
    out = io.StringIO()
    with Progress("cut", 2, "slides", out=out) as bar:
        for clock.now in (8.0, 16.0):
            bar.update()
    assert out.getvalue().splitlines() == ["cut: 2/2 slides (100%), 8.0 s each, ETA 0:00"]


def test_a_line_at_the_end_tells_what_came_after_the_last_one(clock: Clock) -> None:
    out = io.StringIO()
    with Progress("cut", 4, "images", out=out) as bar:
        for clock.now in (1.0, 10.0, 11.0, 12.0):
            bar.update()
    assert out.getvalue().splitlines() == [
        "cut: 2/4 images (50%), 5.0 s each, ETA 0:10",
        "cut: 4/4 images (100%), 3.0 s each, ETA 0:00",
    ]


@pytest.mark.parametrize(("images", "pace"), [(1000, "100 images/s"), (15, "1.5 images/s"), (1, "10.0 s each")])
def test_a_pace_is_never_zero(images: int, pace: str, clock: Clock) -> None:
    out = io.StringIO()
    with Progress("read", images, "images", out=out) as bar:
        clock.now = 10.0
        bar.update(images)
    assert f", {pace}, " in out.getvalue()
