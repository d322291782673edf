"""The state of runs, looked at again and again: drawn in place on a terminal, changes as lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import IO

from .run_state import State
from .status import lines, total_line

QUIET = ("done", "waiting")
"""States that are left out on a terminal with too few lines for all runs."""


def watch(
    look: Callable[[], list[State]],
    again: str,
    interval: float = 5.0,
    out: IO[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the states that `look` returns every `interval` seconds, until all runs are done or failed, or Ctrl-C.

    On a terminal the lines are drawn in place. Elsewhere the line for all runs is printed with the time of day, and
    only when it has changed, so that a log stays short. `again` is the command that trains RUN by hand.
    """
    out = out or sys.stdout
    show = _Screen(out) if out.isatty() else _Lines(out)
    try:
        while True:
            states = look()
            show(states, again)
            if all(state.state in ("done", "failed") for state in states):
                return
            sleep(interval)
    except KeyboardInterrupt:
        return


class _Lines:
    """Lines for a log: the time of day, and the count of runs in each state."""

    def __init__(self, out: IO[str]) -> None:
        self.out, self.counts = out, ""

    def __call__(self, states: list[State], again: str) -> None:
        line = total_line(states)
        counts = line.partition(", at least ")[0]
        if counts != self.counts:
            print(f"{time.strftime('%H:%M:%S')}  {line}", file=self.out, flush=True)
            for state in states if self.counts else []:
                if state.state == "failed":
                    print(f"          {state.run} failed: {state.message}", file=self.out, flush=True)
        self.counts = counts


class _Screen:
    """The lines of `fedshift status`, cut to the size of the terminal, each time in the place of the last ones."""

    def __init__(self, out: IO[str]) -> None:
        self.out, self.drawn = out, 0

    def __call__(self, states: list[State], again: str) -> None:
        columns, height = shutil.get_terminal_size()
        shown = [f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves; the runs go on.", *lines(states, again)]
        if len(shown) >= height:
            head, each = shown[0], list(zip(states, shown[1:], strict=False))
            busy = [line for state, line in each if state.state not in QUIET][: max(0, height - 4)]
            shown = [head, *busy, total_line(states)]
        back = f"\x1b[{self.drawn}F\x1b[J" if self.drawn else ""
        print(back + "\n".join(line[: columns - 1] for line in shown), file=self.out, flush=True)
        self.drawn = len(shown)
