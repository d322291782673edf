"""A study is watched until it is done: calm on a terminal, short in a log."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import pytest

from fedshift.cli import parser
from fedshift.planning import status
from fedshift.planning.status import State


def of(run: str, state: status.StateName, message: str = "") -> State:
    return State(run, "B", 0, state, 10, round=4 if state == "running" else None, message=message)


class Terminal(io.StringIO):
    """Text that goes to a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes only while someone sleeps; after `most` looks it is interrupted, as by Ctrl-C."""

    def __init__(self, most: int = 100) -> None:
        self.slept: list[float] = []
        self.most = most

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) >= self.most:
            raise KeyboardInterrupt


def looks(*moments: list[State]) -> Callable[[], list[State]]:
    """Return what is seen at one moment after the other; the last one stays."""
    seen = iter(moments)
    last = moments[-1]
    return lambda: next(seen, last)


@pytest.fixture(autouse=True)
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status.time, "strftime", lambda _: "12:00:00")


RUNNING = [of("a", "running"), of("b", "waiting")]
LATER = [of("a", "done"), of("b", "running")]
DONE = [of("a", "done"), of("b", "done")]


def test_a_log_gets_a_line_for_each_change() -> None:
    out, clock = io.StringIO(), Clock()
    status.watch(looks(RUNNING, RUNNING, RUNNING, LATER, LATER, DONE), "", 7.0, out, clock.sleep)
    assert out.getvalue().splitlines() == [
        "12:00:00  2 runs: 1 running, 1 waiting",
        "12:00:00  2 runs: 1 done, 1 running",
        "12:00:00  2 runs: 2 done",
    ]
    assert clock.slept == [7.0] * 5


def test_a_failed_run_is_named_and_does_not_keep_one_waiting() -> None:
    out = io.StringIO()
    failed = [of("a", "failed", "loss is nan"), of("b", "done")]
    status.watch(looks(RUNNING, failed), "", 1.0, out, Clock().sleep)
    assert out.getvalue().splitlines()[-1] == "          a failed: loss is nan"


def test_what_is_done_needs_one_look() -> None:
    out, clock = io.StringIO(), Clock()
    status.watch(looks(DONE), "", 1.0, out, clock.sleep)
    assert (len(out.getvalue().splitlines()), clock.slept) == (1, [])


def test_ctrl_c_leaves_quietly() -> None:
    out = io.StringIO()
    status.watch(looks(RUNNING), "", 1.0, out, Clock(most=3).sleep)
    assert out.getvalue().splitlines() == ["12:00:00  2 runs: 1 running, 1 waiting"]


def drawn(*moments: list[State], size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is drawn on a terminal of `size` (columns, lines) at each moment."""
    monkeypatch.setattr(status.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size(size))
    out = Terminal()
    status.watch(looks(*moments), "again", 1.0, out, Clock(most=len(moments)).sleep)
    return out.getvalue().split("\x1b[J")


def test_a_terminal_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four lines are drawn, and the cursor goes up by four before they are drawn again."""
    first, second = drawn(RUNNING, DONE, size=(80, 24), monkeypatch=monkeypatch)
    assert first.endswith("\x1b[4F")
    assert [line.split()[0] for line in first.splitlines()[:3]] == ["12:00:00", "a", "b"]
    assert second.splitlines()[-1] == "2 runs: 2 done"


def test_a_small_terminal_shows_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 runs on 10 lines of 40 columns: the two at work, and the counts; no line breaks."""
    states = [of(f"run-{n}", "running" if n in (7, 20) else "waiting", "its turn " * 9) for n in range(30)]
    (text,) = drawn(states, size=(40, 10), monkeypatch=monkeypatch)
    lines = text.splitlines()
    assert [line.split()[0] for line in lines] == ["12:00:00", "run-7", "run-20", "30"]
    assert all(len(line) < 40 for line in lines)


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_an_interval_is_a_time(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser.main(["status", "demo", "--watch", "--interval", text])
    assert "is not a number of seconds from 0.1" in capsys.readouterr().err
