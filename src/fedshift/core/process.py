"""How the process of a fedshift command starts and ends.

Loading torch takes longer than a small job. A command may therefore run in a process that is forked from a server with
loaded libraries (see `fork_server`). This module is imported before all others, and imports small modules only.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys

ADDRESS = "FEDSHIFT_FORK_SERVER"
"""The environment variable that names the fork server: its Python's `sys.prefix`, a colon, and its socket's path."""
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Environment variables that limit the threads of numeric libraries, which read them when they are loaded."""
OWN_THREADS = ("patches", "prepare", "verify")
"""Commands that start threads of Python: `--threads` counts these, and numeric libraries use one thread in each."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a client passes on to its job."""


def run_warm() -> int | None:
    """Run this process's command in a process that the fork server forks, and return its exit code.

    The forked process has the same standard streams, folder and environment; signals are passed on to it. Returns None
    if the command must run in this process: there is no server, the server uses another Python environment, or numeric
    libraries need several threads, which a fork would lose.
    """
    prefix, _, path = os.environ.pop(ADDRESS, "").rpartition(":")
    if prefix != sys.prefix or not _one_thread(sys.argv):
        return None
    folder = os.getcwd()  # noqa: PTH109 - pathlib would be loaded for nothing
    request = {"argv": sys.argv, "path": sys.path, "folder": folder, "environment": dict(os.environ)}
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        socket.send_fds(connection, [b"f"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile("rb")
        answer = answers.readline()
    except OSError:  # the server has ended
        return None
    if not answer:  # it cannot fork
        return None
    if answer.startswith(b"pid "):
        pid = int(answer[4:])
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: os.kill(pid, number))
        answer = answers.readline()
    if not answer:
        print("the fork server was ended, and with it this command", file=sys.stderr)
        return 1
    code = os.waitstatus_to_exitcode(int(answer))
    if code < 0:  # ended by a signal: this process ends alike
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _one_thread(arguments: list[str]) -> bool:
    """Return True if numeric libraries use one thread in the command, whose arguments begin with the program's name."""
    if arguments[1:2] and arguments[1] in OWN_THREADS:
        return True
    return "--threads" not in arguments[:-1] or arguments[arguments.index("--threads") + 1] == "1"


def leave(code: int) -> None:
    """End this process with an exit code, after its threads and exit handlers but without freeing modules.

    `multiprocessing` ends forked processes in the same way. Freeing torch and pandas takes a second of processor time,
    and two in a forked process, which has to copy shared memory to do so.
    """
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
