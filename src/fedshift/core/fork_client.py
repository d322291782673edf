"""The start of a command in a process that is forked from a warm one, which holds the libraries already.

Loading torch takes longer than a small job. `fork_server` describes the other side.
This module is imported before everything else and imports the standard library's smallest modules only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

ADDRESS = "FEDSHIFT_FORK_SERVER"
"""The environment variable with the path of the server's socket."""
LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables that limit the threads of numeric libraries, which read them when they are loaded."""
OWN_THREADS = ("patches", "prepare", "verify")
"""Commands whose threads are Python's: each of these calls numeric libraries, which use one thread then."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def identity() -> list[str]:
    """Return what client and server must share, so that the same libraries are loaded: the Python and its folder."""
    return [sys.version, sys.prefix]


def run_warm() -> int | None:
    """Run this process's command in a child of the fork server, with the same files, folder and environment.

    Signals are forwarded. Returns the exit code, or None where the command has to run in this process: there is no
    server, it has other libraries, or the command's libraries use several threads, while those of the server use one.
    """
    path = os.environ.pop(ADDRESS, None)
    if path is None or not _one_thread(sys.argv):
        return None
    request = {
        "identity": identity(),
        "argv": sys.argv,
        "path": sys.path,
        "folder": os.getcwd(),  # noqa: PTH109 - pathlib would be loaded for nothing
        "environment": dict(os.environ),
    }
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        socket.send_fds(connection, [b"f"], [0, 1, 2])
        connection.sendall(json.dumps(request).encode() + b"\n")
        answers = connection.makefile("rb")
        pid = int(answers.readline())
    except (OSError, ValueError):  # the server has gone, or refused
        return None
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    status = answers.readline()
    if not status:
        print("the fork server was ended, and with it this command", file=sys.stderr)
        return 1
    code = os.waitstatus_to_exitcode(int(status))
    if code < 0:  # ended by a signal: this process ends alike
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _one_thread(arguments: list[str]) -> bool:
    if arguments[1:2] and arguments[1] in OWN_THREADS:
        return True
    return "--threads" not in arguments[:-1] or arguments[arguments.index("--threads") + 1] == "1"
