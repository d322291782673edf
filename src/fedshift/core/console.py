"""Messages on standard error, and progress: a bar with ETA on a terminal, lines in a log."""

from __future__ import annotations

import atexit
import io
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO, TypeVar

T = TypeVar("T")


def say(line: str) -> None:
    """Print one line on standard error, at once. Control characters, which could steer a terminal, are escaped."""
    print(printable(line), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""Return the text with its control characters escaped, except for tabs and line feeds: ESC becomes `\x1b`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters that are escaped: all but tab and line feed."""


def announce(work: str) -> None:
    """Print `work ...` on standard error, before a command loads libraries and reads files for seconds.

    Print nothing if standard error is a file: the log of a job holds only its results and errors.
    """
    try:
        kind = os.fstat(sys.stderr.fileno()).st_mode
    except (OSError, io.UnsupportedOperation):  # a stream in memory
        return
    # A terminal or another program, which somebody may be watching.
    if stat.S_ISCHR(kind) or stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
        say(f"{work} ...")


def say_at_end(lines: Iterable[str]) -> None:
    """Print lines on standard error when this process ends, after all other output. Print nothing without lines."""
    text = "\n".join(lines)
    if text:
        atexit.register(lambda: say(text))


def duration(seconds: float) -> str:
    """Return seconds as text: 75 is `1:15`, 3700 is `1:01:40`."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


EVERY = 10.0
"""Shortest time in seconds between two printed lines of a Progress without a terminal."""


class Progress:
    """A display on standard error of how much of some work, `what`, is done: a count of `total`, in `unit`s.

    On a terminal this is a tqdm bar. Elsewhere lines are printed with count, share, rate and ETA: at most one every
    EVERY seconds, and one at the end. `out` is another stream to print on.
    """

    def __init__(self, what: str, total: int, unit: str = "it", out: IO[str] | None = None):
        self.what = what
        self.total = total
        self.unit = unit

        self.out = out or sys.stderr
        self.done = 0
        self.told = -1
        self.start = self.last = time.monotonic()
        self._bar = None
        if self.out.isatty():
            from tqdm import tqdm

            scale = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
            self._bar = tqdm(total=total, desc=what, unit=unit, file=self.out, **scale)

    def update(self, n: int = 1) -> None:
        """Count `n` more pieces of work as done."""
        self.done += n
        if self._bar is not None:
            self._bar.update(n)
        elif time.monotonic() - self.last >= EVERY:
            self.last = time.monotonic()
            self._line()

    def say(self, line: str) -> None:
        """Print one line at once, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(line, file=self.out)
        else:
            print(line, file=self.out, flush=True)

    def _line(self) -> None:
        """Print a line with count, share, rate and the estimated time left."""
        seconds = time.monotonic() - self.start
        # The first line may come within the resolution of the clock.
        rate = self.done / max(seconds, 1e-9)
        share = f"{self.done / self.total:.0%}" if self.total else "?"
        left = duration((self.total - self.done) / rate) if self.total and rate else "?"
        pace = f"{1 / rate:.1f} s each" if 0 < rate < 1 else f"{rate:.{0 if rate >= 10 else 1}f} {self.unit}/s"
        self.told = self.done
        self.say(f"{self.what}: {self.done}/{self.total} {self.unit} ({share}), {pace}, ETA {left}")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close()
        if self._bar is None and kind is None and self.told < self.done:
            self._line()

    def close(self) -> None:
        """Close the bar, and leave it on the screen as it is."""
        if self._bar is not None:
            self._bar.close()


def track(items: Iterable[T], what: str, total: int, unit: str = "it") -> Iterator[T]:
    """Yield the items while a Progress named `what` shows how many of `total` are done."""
    with Progress(what, total, unit) as bar:
        for item in items:
            yield item
            bar.update()
