"""Snakemake's logger plug-in `fedshift`: one line a job on the terminal, in place of ten, which its log file keeps.

Snakemake finds it by the name of this package, and imports it before it reads a workflow. The sources beside a workflow
may be others than those installed, so nothing of fedshift is imported before the workflow has done so and set CALL.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake.logging import ColorizingTextHandler
from snakemake_interface_logger_plugins.base import LogHandlerBase

EVERY = 10.0
"""Seconds until running jobs are named for the first time, where lines cannot be drawn in place."""
LONGEST = 600.0
"""Seconds between such lines at most: the pause grows with the time that has passed."""
MOST = 5
"""Running jobs that are named at once."""
SILENT = ("job_started", "resources_info", "workflow_started", "group_info", "rulegraph")
"""Events that are left out."""
ROUTINE = re.compile(
    r"Building DAG of jobs|Using shell: |Conda environments: ignored|Singularity containers: ignored|Group jobs: "
    r"inactive|Select jobs to execute|Storing output in storage|Shutting down, this might take|Job \S+ has been "
    r"submitted with SLURM jobid"
)
"""Lines of Snakemake that are about its own work."""
STATUS = re.compile(r"RuleException:.*\bCalledProcessError\b.* returned non-zero exit status [12]\.$", re.DOTALL)
"""Snakemake's words on a job that ended with a fault of its own, which stands in its log."""
IDLE = "Nothing to be done"
"""How Snakemake begins to say that everything that was asked for is there."""
LEFT = re.compile(r"(?:.*: )?(round \d+/\d+|\d+/\d+ \w+ \(\d+%\)).*(ETA [\d:]+)")
"""A line of a job's log that says how far it is, and what time is left."""


@dataclass(frozen=True)
class Call:
    """What the workflow tells of a call: values of wildcards in words, and what to do where nothing is to be done."""

    words: Mapping[str, str]
    idle: Callable[[], None]


CALL: Call | None = None
"""The call of this process; None for workflows other than fedshift's."""


@dataclass
class _Job:
    """A job that was started: what it does in words, its log, and when it began."""

    words: str
    log: Path | None
    began: float = field(default_factory=lambda: time.monotonic())

    def took(self) -> str:
        """Return for how long it has run."""
        from fedshift.core.console import duration

        return duration(time.monotonic() - self.began)

    def progress(self) -> str:
        """Return the round and remaining time that the job's log gives last; without them, how long it has run."""
        from fedshift.planning.status import last_line

        found = LEFT.match(last_line(self.log)) if self.log else None
        return f"{self.words}: {', '.join(found.groups()) if found else self.took()}"


class LogHandler(LogHandlerBase, ColorizingTextHandler):
    """Prints one line for each job, and the jobs at work while one waits.

    On a terminal, the jobs at work are drawn below the last line; elsewhere they are printed at growing intervals.
    Everything else is printed as Snakemake does, except what is about its own work. So is all of a dry run, of other
    workflows, and where more or less is asked for (--verbose, --debug-dag, --quiet).
    """

    writes_to_stream = True
    writes_to_file = False
    has_filter = False
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        asked = self.common_settings
        stream = sys.stdout if asked.stdout else sys.stderr
        ColorizingTextHandler.__init__(self, nocolor=asked.nocolor, stream=stream)
        self.in_full = bool(asked.dryrun or asked.verbose or asked.debug_dag or asked.quiet)
        self.jobs: dict[int, _Job] = {}
        self.finished: list[int] = []
        self.failed: set[int] = set()
        self.drawn = 0
        self.in_place = self.is_tty
        self.over = threading.Event()
        self.shown = {
            "run_info": self._announce,
            "job_info": self._begin,
            "job_finished": lambda record: self.finished.append(record.job_id),
            "progress": self._count,
            "job_error": self._fail,
        }
        threading.Thread(target=self._wait, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in one line or in full, or leave it out."""
        if CALL is None or self.in_full:
            self._print_in_full(record)
            return
        try:
            event, message = getattr(record, "event", None), str(record.msg)
            unimportant = STATUS if record.levelno > logging.INFO else ROUTINE
            if event in self.shown:
                self.shown[event](record)
            elif event not in SILENT and not unimportant.match(message):
                self._print_in_full(record)
            if message.startswith(IDLE):
                CALL.idle()
            self._draw()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Stop drawing, and take away what is drawn."""
        self.over.set()
        self.acquire()
        try:
            self._erase()
        finally:
            self.release()
        super().close()

    # ---- events: the attributes of a record are those of Snakemake's event

    def _announce(self, record: Any) -> None:
        """Say how many jobs of each rule there are to do."""
        stats = dict(record.stats)
        total = stats.pop("total", sum(stats.values()))
        self._say(f"{total} jobs: {', '.join(f'{count} {rule}' for rule, count in stats.items())}")

    def _begin(self, record: Any) -> None:
        assert CALL
        words = [CALL.words.get(value, value) for value in map(str, record.wildcards.values())]
        log = Path(record.log[0]) if record.log else None
        self.jobs[record.jobid] = _Job(" ".join([record.rule_name, ": ".join(words)]).rstrip(), log)
        self.failed.discard(record.jobid)

    def _count(self, record: Any) -> None:
        """Print a line for each job that has finished since the last count."""
        for number, key in enumerate(self.finished, record.done - len(self.finished) + 1):
            if job := self.jobs.pop(key, None):
                self._say(f"{number:{len(str(record.total))}} of {record.total}  {job.words}  {job.took()}")
        self.finished.clear()

    def _fail(self, record: Any) -> None:
        """Name a failed job once; its fault stands in its log, and at the end of the call."""
        job = self.jobs.pop(record.jobid, None)
        if record.jobid in self.failed:
            return
        self.failed.add(record.jobid)
        if job is None or not record.log:
            self._print_in_full(record)
            return
        self._say("; ".join(filter(None, [f"failed: {job.words}", record.rule_msg, f"see {', '.join(record.log)}"])))

    # ---- the terminal

    def _print_in_full(self, record: logging.LogRecord) -> None:
        self._erase()
        ColorizingTextHandler.emit(self, record)

    def _say(self, line: str) -> None:
        self._erase()
        print(line, file=self.stream, flush=True)

    def _erase(self) -> None:
        if self.drawn:
            print(f"\x1b[{self.drawn}F\x1b[J", end="", file=self.stream, flush=True)
            self.drawn = 0

    def _draw(self) -> None:
        """Draw the jobs at work below the last line, in the place of those drawn before."""
        if not self.in_place or self.over.is_set():
            return
        columns, height = shutil.get_terminal_size()
        lines = self._at_work(max(1, min(MOST, height - 3)))
        self._erase()
        for line in lines:
            print(f"  {line}"[: columns - 1], file=self.stream)
        self.stream.flush()
        self.drawn = len(lines)

    def _at_work(self, most: int, least: float = 0.0) -> list[str]:
        """Return a line for each job that has been at work for `least` seconds, the last one for those left out."""
        now = time.monotonic()
        jobs = [job for job in self.jobs.values() if now - job.began >= least]
        more = [f"and {len(jobs) - most} more jobs"] if len(jobs) > most else []
        return [job.progress() for job in jobs[:most]] + more

    def _wait(self) -> None:
        """Name the jobs at work again and again, until the handler is closed."""
        began = time.monotonic()
        pause = 1.0 if self.in_place else EVERY
        while not self.over.wait(pause):
            self.acquire()
            try:
                self._name_jobs_at_work()
            finally:
                self.release()
            pause = min(LONGEST, max(EVERY, (time.monotonic() - began) / 2))

    def _name_jobs_at_work(self) -> None:
        if self.in_place:
            self._draw()
            return
        for line in self._at_work(MOST, EVERY):
            self._say(f"  {time.strftime('%H:%M:%S')}  {line}")
