"""The fork server: a process beside Snakemake that has slow libraries loaded and forks one process for each local job.

A client is the process of a command that Snakemake starts; it sends its request to the server (see `process`). The
forked process, the job, takes over the open files, the folder and the environment of its client, and is killed when the
client or the server dies. The server never imports a module of fedshift that computes, so that a job reads the sources
as they are when it starts.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .process import ADDRESS, FORWARDED, LIMITS

LIBRARIES = ("pandas", "pyarrow.parquet", "scipy.stats", "sklearn.linear_model", "matplotlib.figure", "jinja2")
"""Modules of installed libraries that most jobs import, which the server loads in advance."""
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""The setting with which glibc asks Linux for pages of 2 MiB.

Each batch of a training takes and gives back memory anew; pages of 4 KiB would be seven to ten times as many. Only a
process that starts reads the setting. The user's own value is kept.
"""
PR_SET_PDEATHSIG = 1
"""The option of Linux's prctl that sends a process a signal when its parent dies."""


def start(slow: Iterable[str] = ()) -> None:
    """Start a fork server for the jobs that this process starts from now on; the server ends with this process.

    While the first job works, the server imports the modules `slow` and LIBRARIES. No server is started if the
    environment already names one, on systems other than Linux, or if the path of temporary files is too long for a
    socket.
    """
    if ADDRESS in os.environ or sys.platform != "linux":
        return
    folder = tempfile.mkdtemp(prefix="fedshift-")
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(f"{folder}/socket")
    except OSError:
        shutil.rmtree(folder)
        return
    listener.listen(128)
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(listener.fileno()), *slow, *LIBRARIES],
        stdin=subprocess.PIPE,  # closed with this process: then the server ends
        stdout=subprocess.PIPE,  # Python asks once whether it can seek, and must not where a job's output is a pipe
        env={**LARGE_PAGES, **os.environ, **dict.fromkeys(LIMITS, "1")},  # a fork would lose other threads
        pass_fds=[listener.fileno()],
    )
    listener.close()
    atexit.register(wait_for, server)
    os.environ[ADDRESS] = f"{sys.prefix}:{folder}/socket"


def wait_for(server: subprocess.Popen[bytes]) -> None:
    """Close the server's standard input and wait until the server and its jobs have ended; Ctrl-C stops the waiting."""
    with contextlib.suppress(KeyboardInterrupt):
        server.communicate()


def serve(listener: socket.socket, libraries: Iterable[str] = ()) -> socket.socket | None:
    """Accept clients on a socket, fork a process (job) for each, and send each client the exit status of its job.

    Between clients, import the modules named in `libraries`. In a forked process, return the connection to its client.
    In the server, return None when standard input is closed and all jobs have ended.
    """
    to_import = list(libraries)
    jobs: dict[int, tuple[int, socket.socket]] = {}  # the id and the connection of each, by a descriptor of the process
    poll = select.poll()
    poll.register(0)
    poll.register(listener, select.POLLIN)
    serving = True
    while serving or jobs:
        ready = dict(poll.poll(0 if to_import and jobs else None))
        if not ready:
            with contextlib.suppress(Exception):
                importlib.import_module(to_import.pop(0))
        elif 0 in ready:
            serving = False
            poll.unregister(0)
            poll.unregister(listener)
        elif listener.fileno() in ready:
            connection, _ = listener.accept()
            if threading.active_count() > 1:  # a library has started a thread, which a fork would lose
                connection.close()
                continue
            pid = _fork()
            if not pid:
                for held in (listener, *(other for _, other in jobs.values())):
                    held.close()
                return connection
            process = os.pidfd_open(pid)
            jobs[process] = pid, connection
            poll.register(process, select.POLLIN)
            poll.register(connection, 0)  # reports the end of the client alone: its request is for the job
        for process in jobs.keys() & ready:
            pid, connection = jobs.pop(process)
            _, status = os.waitpid(pid, 0)
            poll.unregister(process)
            poll.unregister(connection)
            with contextlib.suppress(OSError):  # the client has died
                connection.sendall(f"{status}\n".encode())
            connection.close()
            os.close(process)
        for pid, connection in jobs.values():
            if connection.fileno() in ready:
                os.kill(pid, signal.SIGKILL)
    return None


def _fork() -> int:
    """Fork a process that is killed when this one dies. Return the new process's id, and 0 in the new process."""
    server = os.getpid()
    gc.freeze()  # a collection in the forked process would copy the memory of all libraries to look at it
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # it died before this process asked for the signal
            os._exit(1)
    return pid


def become(connection: socket.socket) -> dict[str, Any]:
    """Make this forked process run as its client would, and return the client's request.

    The process takes over standard input, output and error, the folder, arguments, environment and import path of the
    client, and resets signal handlers. It forgets loaded modules of fedshift, whose sources may have changed.
    """
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    line = connection.makefile("rb").readline()
    if not line:  # the client has died
        os._exit(1)
    request: dict[str, Any] = json.loads(line)
    os.setpgid(0, 0)  # a Ctrl-C reaches the client, which forwards it
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(files):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = request["argv"]
    sys.path[:] = request["path"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "fedshift"]:
        del sys.modules[name]  # its sources may have changed
    connection.sendall(f"pid {os.getpid()}\n".encode())
    connection.close()
    return request


def main() -> None:
    """Run the server until it ends; in a forked process, run the fedshift command that its client has asked for."""
    for number in FORWARDED:  # the server ends when Snakemake does
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=int(sys.argv[1]))
    connection = serve(listener, sys.argv[2:])
    if connection is None:
        shutil.rmtree(Path(listener.getsockname()).parent)
        os._exit(0)  # libraries complain on the terminal where Python takes them apart
    become(connection)
    runpy.run_module("fedshift", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
