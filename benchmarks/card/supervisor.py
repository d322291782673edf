"""Keeps a worker that does the cases within the minutes: one that hangs or dies costs its own row alone."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

from .rows import NO_TIME, Rows, row

NO_DEVICE, BROKEN = 2, 75
"""Exit codes of a worker: the device is not there; an error has left it unusable for this process."""


class Worker:
    """A process that does the cases, and the events that it writes, one JSON a line."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for text in self.process.stdout:
            self.events.put(json.loads(text))
        self.events.put(None)

    def end(self, patience: float = 0.0) -> int:
        """End the process with all that it has started, at once or when it has not ended by itself in some seconds.

        Returns its exit code.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep it
            self.process.wait(20)
        return self.process.returncode or 0


class Supervisor:
    """Has the cases of some parts done until the minutes are over.

    Parameters
    ----------
    rows : where rows are kept
    parts : names of the parts, in order
    command : starts a worker, but for its last arguments: the end as the clock of `time.monotonic` tells it, and the
        parts
    seconds : time for all of it
    start : seconds in which a worker must have imported everything, or must go on after a case
    """

    def __init__(
        self, rows: Rows, parts: Sequence[str], command: Sequence[str], seconds: float, start: float = 120
    ) -> None:
        self.start = start
        self.rows = rows
        self.left = list(parts)
        self.command = command
        self.end = time.monotonic() + seconds
        self.current: tuple[str, str] | None = None
        self.limit = 0.0
        self.begun = 0.0

    def run(self) -> int:
        """Return NO_DEVICE where the worker has found no device; else 1 if a row failed, and 0 if none did."""
        while self.left and time.monotonic() < self.end:
            worker = Worker([*self.command, str(self.end), *self.left])
            self._watch(time.monotonic() + self.start, None)
            hangs = True
            try:
                hangs = self._follow(worker)
            finally:
                code = worker.end(0 if hangs else 10)
            if code == NO_DEVICE and not hangs:
                return NO_DEVICE
            if time.monotonic() < self.end and (hangs or code != BROKEN):
                self._blame(
                    f"no answer in {self.limit - self.begun:.0f} s" if hangs else f"its process ended with code {code}"
                )
        if self.current:
            self._blame("stopped as the minutes were over")
        for part in self.left:
            self.rows.add(row(part, "what is left", "skipped", reason=NO_TIME))
        return int(bool(self.rows.failed))

    def _watch(self, limit: float, current: tuple[str, str] | None) -> None:
        self.begun, self.limit, self.current = time.monotonic(), limit, current

    def _follow(self, worker: Worker) -> bool:
        """Note what a worker says until it ends; return whether it had to be ended, since it hangs."""
        while True:
            try:
                event = worker.events.get(timeout=max(0.0, min(self.limit, self.end) - time.monotonic()))
            except queue.Empty:
                return True
            if event is None:
                return False
            self._note(event)

    def _note(self, event: dict[str, Any]) -> None:
        if "facts" in event:
            self.rows.facts |= event["facts"]
        elif "begin" in event:
            self._watch(time.monotonic() + event["limit"], (event["part"], event["begin"]))
        elif "row" in event:
            self.rows.add(event["row"])
            self._watch(time.monotonic() + self.start, None)
        elif "finished" in event:
            self.left.remove(event["finished"])

    def _blame(self, reason: str) -> None:
        """Note that the current case failed; where there was none, the part that could not go on."""
        if not self.left:
            return
        part, what = self.current or (self.left[0], "the part")
        self.rows.add(row(part, what, "failed", seconds=time.monotonic() - self.begun, reason=reason))
        if self.current is None:
            self.left.remove(part)
        self.current = None
