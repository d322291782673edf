"""One line a job on the terminal, in place of Snakemake's ten, which stand in its log file as ever.

Imports neither torch nor pandas: Snakemake loads it before anything runs.
"""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.console import duration, say_at_end
from ..study.run import Run
from .run_state import last_line

EVERY = 10.0
"""Seconds until running jobs are named for the first time, where lines cannot be drawn in place."""
LONGEST = 600.0
"""Seconds between such lines at most: the pause grows with the time that has passed."""
MOST = 5
"""Running jobs that are named at once."""
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


@dataclass
class _Job:
    """A job that was started: what it does in words, its log, and when it began."""

    words: str
    log: Path | None
    began: float = field(default_factory=time.monotonic)

    def progress(self) -> str:
        """Return how far the job is, by the last line of its log, and for how long it has run."""
        found = LEFT.match(last_line(self.log)) if self.log else None
        return f"{self.words}: {', '.join(found.groups()) if found else duration(time.monotonic() - self.began)}"


class OneLineAJob(logging.Handler):
    """A handler of Snakemake's records that prints one line for each job, and the jobs at work while one waits.

    On a terminal, the jobs at work are drawn below the last line; elsewhere they are printed at growing intervals.
    Everything else that Snakemake says passes on to its own handler, except what is about its own work.

    Parameters
    ----------
    plain : Snakemake's own handler, whose stream and filters are taken over
    words : the names of runs, partitions and other values of wildcards, in words
    waits : whether jobs run here, so that their logs show how far they are
    idle : called where there is nothing to be done
    """

    def __init__(
        self,
        plain: logging.StreamHandler[Any],
        words: Mapping[str, str],
        waits: bool = True,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(plain.level)
        self.plain, self.words, self.idle, self.filters = plain, words, idle, plain.filters
        self.jobs: dict[int, _Job] = {}
        self.finished: list[int] = []
        self.failed: set[int] = set()
        self.drawn = 0
        self.in_place = bool(plain.stream.isatty())
        self.shown = {
            "job_info": self._begin,
            "job_finished": lambda record: self.finished.append(record.job_id),
            "progress": self._count,
            "job_error": self._fail,
            "run_info": self._announce,
            **dict.fromkeys(("job_started", "resources_info", "workflow_started", "group_info", "rulegraph")),
        }
        self.over = threading.Event()
        if waits:
            threading.Thread(target=self._wait, daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record in one line, pass it on, or leave it out."""
        try:
            event = getattr(record, "event", None)
            if event in self.shown:
                show = self.shown[event]
                if show:
                    show(record)
            elif not (STATUS if record.levelno > logging.INFO else ROUTINE).match(str(record.msg)):
                self._pass_on(record)
                if str(record.msg).startswith(IDLE):
                    self.idle()
            self._draw()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Stop drawing, and take away what is drawn."""
        self.over.set()
        with self.lock:  # type: ignore[union-attr]
            self._erase()
        super().close()

    # ---- events

    def _announce(self, record: logging.LogRecord) -> None:
        """Say how many jobs of each rule there are to do."""
        stats = dict(record.stats)  # type: ignore[attr-defined]
        total = stats.pop("total", sum(stats.values()))
        self._say(f"{total} jobs: {', '.join(f'{count} {rule}' for rule, count in stats.items())}")

    def _begin(self, record: logging.LogRecord) -> None:
        job: Any = record
        words = [self.words.get(value, value) for value in map(str, job.wildcards.values())]
        log = Path(job.log[0]) if job.log else None
        self.jobs[job.jobid] = _Job(" ".join([job.rule_name, ": ".join(words)]).rstrip(), log)
        self.failed.discard(job.jobid)

    def _count(self, record: logging.LogRecord) -> None:
        """Print a line for each job that has finished since the last count."""
        done, total = record.done, record.total  # type: ignore[attr-defined]
        for number, key in enumerate(self.finished, done - len(self.finished) + 1):
            if job := self.jobs.pop(key, None):
                seconds = duration(time.monotonic() - job.began)
                self._say(f"{number:{len(str(total))}} of {total}  {job.words}  {seconds}")
        self.finished.clear()

    def _fail(self, record: logging.LogRecord) -> None:
        """Name a failed job once; its fault stands in its log, and at the end of the call."""
        error: Any = record
        job = self.jobs.pop(error.jobid, None)
        if error.jobid in self.failed:
            return
        self.failed.add(error.jobid)
        if job is None or not error.log:
            self._pass_on(record)
            return
        self._say("; ".join(filter(None, [f"failed: {job.words}", error.rule_msg, f"see {', '.join(error.log)}"])))

    # ---- the terminal

    def _pass_on(self, record: logging.LogRecord) -> None:
        self._erase()
        self.plain.emit(record)

    def _say(self, line: str) -> None:
        self._erase()
        print(line, file=self.plain.stream, flush=True)

    def _erase(self) -> None:
        if self.drawn:
            print(f"\x1b[{self.drawn}F\x1b[J", end="", file=self.plain.stream, flush=True)
            self.drawn = 0

    def _draw(self) -> None:
        """Draw the jobs at work below the last line, in the place of those drawn before."""
        if not self.in_place or self.over.is_set():
            return
        columns, height = shutil.get_terminal_size()
        lines = self._at_work(max(1, min(MOST, height - 3)))
        self._erase()
        for line in lines:
            print(f"  {line}"[: columns - 1], file=self.plain.stream)
        self.plain.stream.flush()
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
            with self.lock:  # type: ignore[union-attr]
                if self.in_place:
                    self._draw()
                    continue
                for line in self._at_work(MOST, EVERY):
                    self._say(f"  {time.strftime('%H:%M:%S')}  {line}")
            pause = min(LONGEST, max(EVERY, (time.monotonic() - began) / 2))


def in_words(runs: Mapping[str, Run]) -> dict[str, str]:
    """Return what the ids of runs and of their partitions stand for; runs that words leave alike keep their id too."""
    words = {key: _run(run) for key, run in runs.items()}
    alike = {text for text in words.values() if list(words.values()).count(text) > 1}
    partitions = {run.partition_id: f"{run.data.dataset.name}, {_held_out(run)}" for run in runs.values()}
    return partitions | {key: f"{text} ({key})" if text in alike else text for key, text in words.items()}


def _run(run: Run) -> str:
    addon = f" + {run.addon.name}" if run.addon else ""
    return f"{run.algorithm.name}{addon}, bn {run.bn}, {_held_out(run)}, seed {run.seed}"


def _held_out(run: Run) -> str:
    return f"held out {run.partition.title}" if run.partition.title else "no site held out"


def take_over(workflow: Any, runs: Mapping[str, Run], idle: Callable[[], None]) -> None:
    """Let one line a job take the place of what Snakemake prints, and call `idle` where there is nothing to be done.

    Does nothing in a dry run, in a job of Snakemake's own, if more or less is asked for (--verbose, --debug-dag,
    --quiet), or if another logger was chosen. Snakemake's log file stays as it is.
    """
    settings = workflow.output_settings
    otherwise = settings.dryrun or settings.verbose or settings.debug_dag or settings.quiet
    if otherwise or not workflow.is_main_process:
        return
    logger = logging.getLogger("snakemake.logging")
    for handler in [h for h in logger.handlers if h.name == "DefaultStreamHandler"]:
        logger.removeHandler(handler)
        logger.addHandler(OneLineAJob(handler, in_words(runs), workflow.local_exec, idle))  # type: ignore[arg-type]


def say_pages(pages: Sequence[Path], index: Path) -> None:
    """Print where the pages of a call are when this process ends: each, or the list of all pages for more than a few.

    It is printed after everything that Snakemake prints itself.
    """
    many = [f"{len(pages)} pages, all listed in {index.absolute()}"]
    say_at_end(many if len(pages) > MOST else [f"The page: {page.absolute()}" for page in pages])
