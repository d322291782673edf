"""What a call of Snakemake prints: a line a job, how far the jobs at work are, and all that is wrong."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clock import Clock
from patience import PATIENCE, until
from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

import snakemake_logger_plugin_fedshift as terminal
from fedshift.core import console
from fedshift.planning.call import MOST_PAGES, say_pages
from snakemake_logger_plugin_fedshift import Call, LogHandler

WORDS = {"fedavg-local-1": "fedavg, bn local, held out C, seed 0"}
ROUND = "round 3/20  loss 0.5012  val accuracy A 0.750, B 0.333  1.2 s  ETA 1:02:40\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Threads:
    """Stands for the module `threading`. A thread starts when a test says so, so that none draws between two lines."""

    Event = threading.Event

    def __init__(self) -> None:
        self.made: list[threading.Thread] = []

    def Thread(self, **settings: Any) -> SimpleNamespace:  # noqa: N802 - the module's name
        self.made.append(threading.Thread(**settings))
        return SimpleNamespace(start=lambda: None)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The plug-in's clock, which stands still."""
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    threads = Threads()
    monkeypatch.setattr(terminal, "threading", threads)
    return threads


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called because nothing was to be done."""
    called: list[str] = []
    monkeypatch.setattr(terminal, "CALL", Call(WORDS, lambda: called.append("idle")))
    return called


def handler(out: io.StringIO, **settings: Any) -> LogHandler:
    """Return the plug-in's handler as Snakemake makes it, with a stream of the test."""
    defaults = {"dryrun": False, "verbose": False, "debug_dag": False, "quiet": None, "stdout": False, "nocolor": True}
    made = LoggerPluginRegistry().get_plugin("fedshift").log_handler(SimpleNamespace(**defaults | settings), None)
    made.setStream(out)
    made.in_place = out.isatty()
    made.addFilter(DefaultFilter(settings.get("quiet"), False, False, False, False))
    made.setFormatter(DefaultFormatter(show_failed_logs=True))
    return made


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def calm(out: io.StringIO) -> Iterator[LogHandler]:
    yield (calm := handler(out))
    calm.close()


def say(calm: LogHandler, message: str | None, level: int = logging.INFO, **extra: Any) -> None:
    record = logging.makeLogRecord(
        {"msg": message, "levelno": level, "levelname": logging.getLevelName(level), **extra}
    )
    calm.handle(record)


def begin(calm: LogHandler, key: int, log: Path | str = "x.log") -> None:
    extra = {"rule_name": "train", "wildcards": {"run": "fedavg-local-1"}, "log": [str(log)]}
    say(calm, "Rule: train", event=LogEvent.JOB_INFO, jobid=key, **extra)


def finish(calm: LogHandler, key: int, done: int, total: int = 12) -> None:
    say(calm, f"Finished jobid: {key}", event=LogEvent.JOB_FINISHED, job_id=key)
    say(calm, None, event=LogEvent.PROGRESS, done=done, total=total)


def fail(calm: LogHandler, key: int, message: str | None = None) -> None:
    rest = {"input": [], "output": ["y"], "conda_env": None, "shellcmd": "false", "aux": {}}
    extra = {"rule_name": "train", "rule_msg": message, "log": ["x.log"], **rest}
    say(calm, "Error in rule train", logging.ERROR, event=LogEvent.JOB_ERROR, jobid=key, **extra)


def test_a_job_is_one_line(calm: LogHandler, out: io.StringIO) -> None:
    for line in ("Building DAG of jobs...", "Using shell: /bin/bash", "Select jobs to execute..."):
        say(calm, line)
    say(calm, "Job stats: ...", event=LogEvent.RUN_INFO, stats={"prepare": 1, "train": 11, "total": 12})
    say(calm, "Execute 2 jobs...", event=LogEvent.JOB_STARTED, jobs=[7, 8])
    begin(calm, 7)
    begin(calm, 8)
    finish(calm, 8, 1)
    finish(calm, 7, 2)
    line = "of 12  train fedavg, bn local, held out C, seed 0  0:00"
    assert out.getvalue().splitlines() == ["12 jobs: 1 prepare, 11 train", f" 1 {line}", f" 2 {line}"]


def test_a_failed_job_is_one_line_however_often_it_is_reported(calm: LogHandler, out: io.StringIO) -> None:
    begin(calm, 7)
    status = "RuleException:\nCalledProcessError in file x, line 2:\nCommand 'x' returned non-zero exit status 2."
    say(calm, status, logging.ERROR, event=LogEvent.ERROR, exception="RuleException")
    fail(calm, 7, "SLURM status is OUT_OF_MEMORY")
    fail(calm, 7)
    line = "failed: train fedavg, bn local, held out C, seed 0; SLURM status is OUT_OF_MEMORY; see x.log"
    assert out.getvalue().splitlines() == [line]
    begin(calm, 7)  # tried again
    fail(calm, 7)
    assert out.getvalue().splitlines()[1:] == ["failed: train fedavg, bn local, held out C, seed 0; see x.log"]


@pytest.mark.parametrize(
    ("message", "level"),
    [
        ("Nothing to be done (all requested files are present and up to date).", logging.INFO),
        ("Removing output files of failed job train", logging.INFO),
        ("Select jobs to execute... but there is a warning", logging.WARNING),
        ("MissingInputException in rule train: a.npy", logging.ERROR),
        ("Error: Directory cannot be locked.", logging.CRITICAL),
        ("RuleException:\nCalledProcessError in file x, line 2:\nCommand 'x' died with SIGKILL.", logging.ERROR),
    ],
)
def test_all_that_is_no_routine_passes(calm: LogHandler, out: io.StringIO, message: str, level: int) -> None:
    say(calm, message, level)
    assert out.getvalue() == f"{message}\n"


def test_an_error_of_a_job_that_was_never_announced_is_told_in_full(calm: LogHandler, out: io.StringIO) -> None:
    fail(calm, 9)
    assert "Error in rule train:" in out.getvalue()


def test_quiet_calls_stay_quiet(out: io.StringIO) -> None:
    calm = handler(out, quiet={Quietness.PROGRESS})
    finish(calm, 7, 1)
    assert not out.getvalue()
    say(calm, "no such file", logging.ERROR)
    assert out.getvalue() == "no such file\n"


def test_one_waits_with_round_and_eta(
    out: io.StringIO, clock: Clock, threads: Threads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where lines cannot be drawn in place, those of jobs at work come again after a pause, without control codes."""
    monkeypatch.setattr(terminal, "EVERY", 0.05)
    (log := tmp_path / "train.log").write_text(f"starting\n{ROUND}")
    calm = handler(out)
    begin(calm, 7, log)
    clock.now += 1
    (thread,) = threads.made
    thread.start()
    until(lambda: "ETA" in out.getvalue())
    calm.close()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "nothing is printed after the end"
    line = out.getvalue().splitlines()[-1]
    assert line.endswith("  train fedavg, bn local, held out C, seed 0: round 3/20, ETA 1:02:40")
    assert "\x1b" not in out.getvalue()


def test_a_terminal_draws_jobs_at_work_below_the_last_line(tmp_path: Path) -> None:
    out = Terminal()
    (log := tmp_path / "prepare.log").write_text("prepare: 3/9 images (33%), 2 images/s, ETA 0:03\n")
    calm = handler(out)
    begin(calm, 7, log)
    drawn = "  train fedavg, bn local, held out C, seed 0: 3/9 images (33%), ETA 0:03\n"
    assert out.getvalue() == drawn
    say(calm, "a warning", logging.WARNING)
    assert out.getvalue() == f"{drawn}\x1b[1F\x1b[Ja warning\n{drawn}"
    calm.close()
    assert out.getvalue().endswith(f"{drawn}\x1b[1F\x1b[J")


def test_many_jobs_at_work_are_not_all_drawn(out: io.StringIO) -> None:
    calm = handler(out)
    for key in range(20):
        begin(calm, key)
    assert calm._at_work(5)[5:] == ["and 15 more jobs"]


@pytest.mark.parametrize(
    "settings", [{"dryrun": True}, {"verbose": True}, {"debug_dag": True}, {"quiet": {Quietness.RULES}}]
)
def test_snakemake_keeps_its_own_lines_where_more_or_less_is_asked_for(
    settings: dict[str, Any], out: io.StringIO
) -> None:
    calm = handler(out, **settings)
    say(calm, "Building DAG of jobs...")
    say(calm, "Job stats: ...", event=LogEvent.RUN_INFO, stats={"train": 1, "total": 1})
    assert out.getvalue() == "Building DAG of jobs...\nJob stats: ...\n"


def test_other_workflows_keep_snakemakes_lines(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "CALL", None)
    say(handler(out), "Building DAG of jobs...")
    assert out.getvalue() == "Building DAG of jobs...\n"


def test_the_workflow_hears_that_nothing_is_to_be_done(calm: LogHandler, idle: list[str]) -> None:
    say(calm, "Building DAG of jobs...")
    assert not idle
    say(calm, "Nothing to be done (all requested files are present and up to date).")
    assert idle == ["idle"]


def test_the_plug_in_imports_nothing_of_fedshift() -> None:
    """It is imported before the workflow, whose own sources may be others."""
    code = "import sys, snakemake_logger_plugin_fedshift; assert 'fedshift' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("count", [0, 1, MOST_PAGES, MOST_PAGES + 1])
def test_the_end_says_where_the_pages_are(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(console.atexit, "register", ends.append)
    monkeypatch.chdir(tmp_path)
    say_pages([Path(f"reports/{n}.html") for n in range(count)], Path("reports/index.html"))
    for end in ends:
        end()
    each = [f"The page: {tmp_path}/reports/{n}.html" for n in range(count)]
    listed = [f"{count} pages, all listed in {tmp_path}/reports/index.html"]
    assert capsys.readouterr().err.splitlines() == (listed if count > MOST_PAGES else each)
