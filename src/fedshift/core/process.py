"""The start and the end of the process of a command.

A command may run in a process that is forked from one that has its libraries loaded (see `fork_server`): loading torch
takes longer than a small job. This module is imported first, and imports the smallest modules only.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys

ADDRESS = "FEDSHIFT_FORK_SERVER"
"""The environment variable with the folder of the server's Python and the path of its socket, joined by a colon."""
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit the threads of numeric libraries, which read them when they are loaded."""
OWN_THREADS = ("patches", "prepare", "verify")
"""Commands whose threads are Python's: each of these calls numeric libraries, which use one thread then."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_warm() -> int | None:
    """Run this process's command in a child of the fork server, with the same files, folder and environment.

    Signals are forwarded. Returns the exit code, or None where the command must run in this process: without a server,
    with libraries other than the server's, or with several threads in them.
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
    if arguments[1:2] and arguments[1] in OWN_THREADS:
        return True
    return "--threads" not in arguments[:-1] or arguments[arguments.index("--threads") + 1] == "1"


def leave(code: int) -> None:
    """End this process after its threads and exit handlers, as `multiprocessing` ends the processes that it forks.

    Python would first take all libraries apart: a second of processor time where torch and pandas are loaded, and two
    in a forked process, which has to copy the memory that it shares to do so.
    """
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
