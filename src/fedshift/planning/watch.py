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
    shown: list[str] = []
    counts = ""
    try:
        while True:
            states = look()
            if out.isatty():
                # The cursor goes up to the first line that was drawn, and all below is erased.
                back = f"\x1b[{len(shown)}F\x1b[J" * bool(shown)
                shown = _screen(states, again)
                print(back + "\n".join(shown), file=out, flush=True)
            else:
                counts = _print_changes(states, counts, out)
            if all(state.state in ("done", "failed") for state in states):
                return
            sleep(interval)
    except KeyboardInterrupt:
        return


def _print_changes(states: list[State], before: str, out: IO[str]) -> str:
    """Print the number of runs in each state, with those that have failed, unless it is `before`. Return it."""
    line = total_line(states)
    counts = line.partition(", at least ")[0]
    if counts != before:
        print(f"{time.strftime('%H:%M:%S')}  {line}", file=out, flush=True)
        for state in states:
            if before and state.state == "failed":
                print(f"          {state.run} failed: {state.message}", file=out, flush=True)
    return counts


def _screen(states: list[State], again: str) -> list[str]:
    """Return the lines of `fedshift status`, cut to the size of the terminal."""
    columns, height = shutil.get_terminal_size()
    head = f"{time.strftime('%H:%M:%S')}  Ctrl-C leaves; the runs go on."
    shown = [head, *lines(states, again)]
    if len(shown) >= height:
        busy = [line for state, line in zip(states, shown[1:], strict=False) if state.state not in QUIET]
        shown = [head, *busy[: max(0, height - 4)], total_line(states)]
    return [line[: columns - 1] for line in shown]
