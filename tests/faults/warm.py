"""Processes that are forked from one that has imported everything, so that a trial costs no second for each import.

`Warm` forks Snakemake's own command line, and runs the jobs that Snakemake starts. Snakemake finds a program `python`
first on its path that passes its command line, folder, environment and open files on to the warm process. That forks a
process of its own for each job, in the process group of Snakemake, and the little program ends as the job ends: with
its exit code or by the same signal. With `cold`, the program starts the job as the workflow does, with Python anew.
In both cases the job is a real process, which is killed as such, and the faults of `harm` happen inside it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harm
import matplotlib.pyplot  # noqa: F401 - loaded once, for all that is forked
import monai.transforms  # noqa: F401
import sklearn.linear_model  # noqa: F401
import snakemake.cli

import fedshift.core.fork_server
import fedshift.jobs.control
import fedshift.jobs.predict
import fedshift.jobs.prepare
import fedshift.jobs.train
import fedshift.page.gallery
import fedshift.page.page
import fedshift.page.summary
from fedshift.cli import parser

PATIENCE = 600.0
"""Seconds after which a call of Snakemake counts as hanging."""
BLOCK = 8
"""Images that `prepare` writes at once, so that a few images have a middle."""
CLIENT = """#!/bin/sh
'''exec' "{python}" -ISu "$0" "$@"
'''
import json, os, signal, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.connect({address!r})
keep = {{k: v for k, v in os.environ.items()}}
about = dict(words=sys.argv[1:], folder=os.getcwd(), group=os.getpgrp(), pid=os.getpid(), environment=keep)
socket.send_fds(sock, [json.dumps(about).encode() + b"\\n"], [0, 1, 2])
answer = json.loads(sock.makefile().readline())
if "run" in answer:
    os.execv(answer["run"][0], answer["run"])
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, lambda number, _: os.kill(answer["pid"], number))
code = json.loads(sock.makefile().readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@dataclass
class Job:
    """A job of the workflow at work: its rule and its process."""

    rule: str
    pid: int
    began: float
    connection: socket.socket | None = None
    """The little program that waits for the job; None for a job that Python started anew."""


@dataclass
class Called:
    """The end of a call of Snakemake: its exit code, all that it printed, its jobs and how they ended."""

    code: int
    said: str
    jobs: list[str]
    ends: list[tuple[str, int]]
    """The rule and exit code of each job that ended, negative for a signal."""
    hit: bool = False
    """True where the disturbance took place."""


@dataclass
class Disturbance:
    """A signal that is sent while a job of a rule is at work: so many seconds after its start."""

    rule: str
    after: float
    number: int
    to: str
    """`job`, `snakemake`, or `all` for the whole group of processes, as a terminal does it at Ctrl-C."""


@dataclass
class Warm:
    """A process that has imported everything; it forks Snakemake and, for each of Snakemake's jobs, a job."""

    place: Path
    """A folder for the little program and its socket."""
    root: Path
    """The project."""
    cold: bool = False
    fault: harm.Fault = harm.NONE
    """The fault inside the jobs of `rule`."""
    rule: str = ""
    jobs: dict[int, Job] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each rule's last job took that ended well."""

    def __post_init__(self) -> None:
        self.place.mkdir(parents=True)
        address = str(self.place / "socket")
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(address)
        self.server.listen()
        program = self.place / "bin" / "python"
        program.parent.mkdir()
        program.write_text(CLIENT.format(python=sys.executable, address=address))
        program.chmod(0o755)
        self.program = str(program)

    # ---- calls

    def snakemake(self, words: list[str], disturbance: Disturbance | None = None) -> Called:
        """Call Snakemake, and send the signal of `disturbance` when it is due."""

        def child() -> int:
            os.setpgid(0, 0)
            sys.executable = self.program  # the Snakefile puts its folder first on the path of jobs
            fedshift.core.fork_server.start = lambda *_: None  # jobs are forked here, with their faults
            sys.argv = ["snakemake", *words]
            try:
                snakemake.cli.main(words)
            except SystemExit as end:
                return int(end.code or 0)
            return 0

        said = self.place / "said"
        pid = self._fork(child, said)
        began, ends, started = time.monotonic(), [], []
        called = Called(0, "", started, ends)
        code = None
        while code is None:
            started += [job.rule for job in self._take(0.01)]
            ends += self._reap()
            if disturbance and not called.hit:
                called.hit = self._disturb(disturbance, pid)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
            if time.monotonic() - began > PATIENCE:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise TimeoutError(" ".join(words))
        ends += self._reap()
        called.code, called.said = code, said.read_text(errors="replace")
        return called

    def command(self, words: list[str], fault: harm.Fault = harm.NONE) -> tuple[int, str]:
        """Call a command of fedshift in a process of its own, and return its exit code and all that it printed."""

        def child() -> int:
            with harm.at_disk(fault, self.root, self._count(words[0])):
                return parser.main(words)

        said = self.place / "said"
        pid = self._fork(child, said)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said.read_text(errors="replace")

    def quiet(self) -> None:
        """Wait until all jobs have ended that outlived Snakemake."""
        end = time.monotonic() + PATIENCE
        while self.jobs:
            self._take(0.02)
            self._reap()
            if time.monotonic() > end:
                raise TimeoutError(str(self.jobs))

    def close(self) -> None:
        self.server.close()

    # ---- processes

    def _fork(self, work: Callable[[], int], said: Path) -> int:
        """Fork a process that does some work in the project, with a file in the place of its terminal."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.signal(
                signal.SIGINT, signal.default_int_handler
            )  # a shell ignores it in what runs in the background
            os.chdir(self.root)
            _redirect(said)
            atexit._clear()  # of the parent's
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            _end(code)
        raise AssertionError

    def _take(self, seconds: float) -> Iterator[Job]:
        """Start the jobs that Snakemake asks for, waiting for so long for the first."""
        begun = []
        while select.select([self.server], [], [], seconds if not begun else 0)[0]:
            connection, _ = self.server.accept()
            message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            while not message.endswith(b"\n"):
                message += connection.recv(1 << 20)
            about = json.loads(message)
            job = self._cold(about, connection) if self.cold else self._warm(about, connection, files)
            for file in files:
                os.close(file)
            self.jobs[job.pid] = job
            begun.append(job)
        return begun

    def _fault(self, rule: str) -> harm.Fault:
        return self.fault if rule == self.rule else harm.NONE

    def _cold(self, about: dict[str, Any], connection: socket.socket) -> Job:
        rule = _rule(about["words"])
        run = [sys.executable, harm.__file__, str(self.root), str(self._count(rule)), self._fault(rule).json()]
        connection.sendall(json.dumps({"run": [*run, *about["words"]]}).encode() + b"\n")
        connection.close()
        return Job(rule, about["pid"], time.monotonic())

    def _warm(self, about: dict[str, Any], connection: socket.socket, files: list[int]) -> Job:
        rule = _rule(about["words"])
        pid = os.fork()
        if not pid:
            code = 1
            try:
                atexit._clear()  # of the parent's: among them the removal of the campaign's folder
                code = _exit_code(lambda: self._job(rule, about, files))
            except BaseException:
                traceback.print_exc()
            finally:
                _end(code)
        connection.sendall(json.dumps({"pid": pid}).encode() + b"\n")
        return Job(rule, pid, time.monotonic(), connection)

    def _job(self, rule: str, about: dict[str, Any], files: list[int]) -> int:
        """Run a command of fedshift where Snakemake started it, and return its exit code."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _join(about["group"])
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", 1, closefd=False)
        os.chdir(about["folder"])
        os.environ.clear()
        os.environ.update(about["environment"])
        fedshift.jobs.prepare.BLOCK = BLOCK
        words = about["words"][about["words"].index("fedshift") + 1 :]
        with harm.at_disk(self._fault(rule), self.root, self._count(rule)):
            return parser.main(words)

    def _count(self, rule: str) -> Path:
        return self.place / f"events-{rule}"

    def events(self, rule: str) -> int:
        """The number of disk events of a rule's last job that ended well."""
        return int(self._count(rule).read_text())

    def _reap(self) -> list[tuple[str, int]]:
        """Pass on how jobs have ended, and return their rules and exit codes."""
        ended = []
        for job in list(self.jobs.values()):
            code = self._ended(job)
            if code is None:
                continue
            del self.jobs[job.pid]
            if code == 0:
                self.seconds[job.rule] = time.monotonic() - job.began
            ended.append((job.rule, code))
            if job.connection:
                with contextlib.suppress(OSError):  # the little program was killed
                    job.connection.sendall(json.dumps(code).encode() + b"\n")
                job.connection.close()
        return ended

    def _ended(self, job: Job) -> int | None:
        if job.connection:
            done, status = os.waitpid(job.pid, os.WNOHANG)
            return os.waitstatus_to_exitcode(status) if done else None
        try:  # a process of Snakemake's: gone, or dead and not yet waited for by it
            state = Path(f"/proc/{job.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state == "Z" else None

    def _disturb(self, disturbance: Disturbance, pid: int) -> bool:
        """Send the signal if it is due, and return whether it was."""
        now = time.monotonic()
        for job in self.jobs.values():
            if job.rule == disturbance.rule and now - job.began >= disturbance.after:
                if disturbance.to == "all":
                    os.killpg(pid, disturbance.number)
                else:
                    os.kill(job.pid if disturbance.to == "job" else pid, disturbance.number)
                return True
        return False


def _rule(words: list[str]) -> str:
    """Return the rule that a command line belongs to: the command of fedshift has its name."""
    return words[words.index("fedshift") + 1]


def _join(group: int) -> None:
    """Move this process into Snakemake's group; into one of its own where Snakemake has ended with all its group."""
    try:
        os.setpgid(0, group)
    except OSError:
        os.setpgid(0, 0)


def _exit_code(call: Callable[[], int]) -> int:
    """Return how `python -m fedshift` would end."""
    try:
        return call()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except SystemExit as end:
        return int(end.code or 0)


def _redirect(said: Path) -> None:
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for number in (1, 2):
        os.dup2(file, number)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdout, sys.stderr = os.fdopen(1, "w", 1, closefd=False), os.fdopen(2, "w", 1, closefd=False)


def _end(code: int) -> None:
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # the workflow's last words are among them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
